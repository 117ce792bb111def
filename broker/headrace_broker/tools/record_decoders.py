"""Formats records of Kafka's internal topics like Kafka's DumpLogSegments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_broker.protocol.codec import DecodeError, decode
from headrace_broker.protocol.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace_broker.protocol.control_records import (
    ControlType,
    EndTxnMarker,
    decode_control_type,
    decode_control_value,
)
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.group_records import GROUP_KEYS, GroupMetadataValue
from headrace_broker.protocol.json_text import json_text, to_json
from headrace_broker.protocol.metadata_records import decode_metadata_record
from headrace_broker.protocol.notation import Message
from headrace_broker.protocol.primitives import read_unsigned_varint
from headrace_broker.protocol.transaction_records import TransactionLogKey
from headrace_broker.protocol.transaction_states import TRANSACTION_STATES
from headrace_broker.protocol.versioned import RecordKey, RecordValue, decode_key, decode_value, key_type

_CONTROL_LABELS = {
    ControlType.LEADER_CHANGE: "LeaderChange:",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeader",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooter",
    ControlType.KRAFT_VERSION: "KRaftVersion",
    ControlType.KRAFT_VOTERS: "KRaftVoters",
}

Parsed = tuple[str | None, str | None]
"""A record's (formatted key, formatted payload); the tool does not print None."""
RecordParser = Callable[[int, bytes | None, bytes | None], Parsed]


def control_text(key: bytes | None, value: bytes | None) -> str:
    number = decode_control_type(key or b"")
    try:
        control_type = ControlType(number)
    except ValueError:
        return f" controlType: UNKNOWN({number})"
    message = decode_control_value(control_type, value or b"")
    if isinstance(message, EndTxnMarker):
        return f" endTxnMarker: {control_type.name} coordinatorEpoch: {message.coordinator_epoch}"
    return f" {_CONTROL_LABELS[control_type]} {json_text(to_json(message, getattr(message, 'version', 0)))}"


def parse_strings(offset: int, key: bytes | None, value: bytes | None) -> Parsed:
    def text(data: bytes | None) -> str | None:
        return None if data is None else data.decode("utf-8", "replace")

    return text(key), text(value)


def parse_offsets(offset: int, key: bytes | None, value: bytes | None) -> Parsed:
    return _parse_coordinator_record(GROUP_KEYS, offset, key, value)


def parse_transactions(offset: int, key: bytes | None, value: bytes | None) -> Parsed:
    return _parse_coordinator_record({0: TransactionLogKey}, offset, key, value)


def _parse_coordinator_record(
    classes: dict[int, type[RecordKey]], offset: int, key: bytes | None, value: bytes | None
) -> Parsed:
    if key is None:
        raise ValueError(
            f"Failed to decode message at offset {offset} using the specified decoder (message had a missing key)"
        )
    try:
        number = key_type(key)
        if number not in classes:
            return f"Unknown record type {number} at offset {offset}, skipping.", None
        message = decode_key(classes, key)
        key_text = json_text({"type": str(number), "data": to_json(message, 0)})
        if value is None:
            return key_text, "<DELETE>"
        version = int.from_bytes(value[:2], "big", signed=True)
        decoded = decode_value(value_class(type(message)), value)
        return key_text, json_text({"version": str(version), "data": _value_json(decoded, version)})
    except (DecodeError, ProtocolError) as error:
        return f"Error at offset {offset}, skipping. {error}", None


def value_class(key_class: type[RecordKey]) -> type[RecordValue]:
    """Return the class that decodes the values of records with this key class."""
    name = key_class.__name__.removesuffix("Key") + "Value"
    return next(value_class for value_class in RecordValue.__subclasses__() if value_class.__name__ == name)


def _value_json(message: Message, version: int) -> dict[str, Any]:
    fields = to_json(message, version)
    if isinstance(message, GroupMetadataValue) and message.protocol_type == "consumer":
        for member, shown in zip(message.members, fields["members"], strict=True):
            _show_consumer_bytes(shown, "subscription", member.subscription, ConsumerProtocolSubscription)
            _show_consumer_bytes(shown, "assignment", member.assignment, ConsumerProtocolAssignment)
    status = fields.get("transactionStatus")
    if isinstance(status, int) and 0 <= status < len(TRANSACTION_STATES):
        fields["transactionStatus"] = TRANSACTION_STATES[status]
    return fields


def _show_consumer_bytes(shown: dict[str, Any], name: str, data: bytes, message: type[Message]) -> None:
    version = int.from_bytes(data[:2], "big", signed=True)
    try:
        shown[name] = to_json(decode(message, version, data, 2), version)
    except (ProtocolError, ValueError):
        return  # `data` cannot be decoded, so `shown` keeps the raw bytes


def parse_metadata(offset: int, key: bytes | None, value: bytes | None) -> Parsed:
    try:
        message = decode_metadata_record(value or b"")
    except (DecodeError, ProtocolError) as error:
        return None, f"Error at {offset}, skipping. {error}"
    _, position = read_unsigned_varint(value or b"", 0)
    _, position = read_unsigned_varint(value or b"", position)
    version, _ = read_unsigned_varint(value or b"", position)
    name = "".join(f"_{letter}" if letter.isupper() else letter for letter in type(message).__name__)
    fields = {"type": name.lstrip("_").upper(), "version": version, "data": to_json(message, version)}
    return None, json_text(fields)
