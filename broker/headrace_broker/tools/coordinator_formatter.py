"""Formats records of internal topics as JSON, like the message formatters of Kafka's console consumer.

    {"key":{"type":1,"data":{…}},"value":{"version":4,"data":{…}}}

The output has one line for each record of the types that the formatter shows. A tombstone's value is null.
This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_broker.protocol.codec import DecodeError
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.group_records import GROUP_KEYS
from headrace_broker.protocol.json_text import json_text, to_json
from headrace_broker.protocol.transaction_records import TransactionLogKey
from headrace_broker.protocol.transaction_states import TRANSACTION_STATES
from headrace_broker.protocol.versioned import RecordKey, decode_key, decode_value, key_type
from headrace_broker.records.columns import RecordColumns
from headrace_broker.tools.record_decoders import value_class

_TRANSACTION_KEYS: Mapping[int, type[RecordKey]] = {0: TransactionLogKey}
_FORMATTERS: dict[str, tuple[Mapping[int, type[RecordKey]], frozenset[int]]] = {
    "OffsetsMessageFormatter": (GROUP_KEYS, frozenset((0, 1))),
    "GroupMetadataMessageFormatter": (GROUP_KEYS, frozenset((2,))),
    "TransactionLogMessageFormatter": (_TRANSACTION_KEYS, frozenset((0,))),
}


def coordinator_formatter(name: str) -> Callable[[int, RecordColumns], bytes]:
    """Return the formatter with this name; the formatter raises ValueError for a record that cannot be decoded."""
    return _Formatter(*_FORMATTERS[name]).format


@dataclass(frozen=True, slots=True)
class _Formatter:
    classes: Mapping[int, type[RecordKey]]
    shown: frozenset[int]

    def format(self, partition: int, columns: RecordColumns) -> bytes:
        count = len(columns)
        rows = zip(columns.offsets or range(count), columns.keys or [None] * count, columns.values, strict=True)
        lines = []
        for offset, key, value in rows:
            try:
                if key is not None and key_type(key) in self.shown:
                    lines.append(json_text(self._record(key, value)))
            except (DecodeError, ProtocolError) as error:
                raise ValueError(f"Could not read record at offset {offset} due to: {error}") from error
        return "".join(f"{line}\n" for line in lines).encode()

    def _record(self, key: bytes, value: bytes | None) -> dict[str, Any]:
        decoded = decode_key(self.classes, key)
        shown: dict[str, Any] = {"key": {"type": key_type(key), "data": to_json(decoded, 0)}, "value": None}
        if value is not None:
            version = int.from_bytes(value[:2], "big", signed=True)
            data = to_json(decode_value(value_class(type(decoded)), value), version)
            status = data.get("transactionStatus")
            if isinstance(status, int) and 0 <= status < len(TRANSACTION_STATES):
                data["transactionStatus"] = TRANSACTION_STATES[status]
            shown["value"] = {"version": version, "data": data}
        return shown
