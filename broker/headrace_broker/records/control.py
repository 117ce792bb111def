"""Control batches, which consumers never see: transaction markers and records of the KRaft quorum (KIP-98, KIP-595).

`protocol.control_records` encodes the keys and values of control records. This module builds the batches.
"""

from __future__ import annotations

from headrace_broker.protocol.control_records import (
    ControlType,
    EndTxnMarker,
    decode_control_type,
    decode_control_value,
    encode_control_key,
    encode_control_value,
)
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.records.batch import CONTROL_MASK, NO_LEADER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL_MASK
from headrace_broker.records.builder import finish_batch
from headrace_broker.records.varint import encode_varint

__all__ = [
    "ControlType",
    "build_control_batch",
    "end_transaction_value",
    "parse_control_key",
    "parse_coordinator_epoch",
]


def parse_control_key(key: bytes | None) -> int:
    """Return the type number in a control record's key. Raises ValueError if the key is null or too short."""
    try:
        return decode_control_type(key or b"")
    except ProtocolError as error:
        raise ValueError(str(error)) from error


def parse_coordinator_epoch(value: bytes | None) -> int:
    """Return the coordinator epoch of a transaction marker. Raises ValueError if the value is incomplete."""
    try:
        marker = decode_control_value(ControlType.COMMIT, value or b"")
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    assert isinstance(marker, EndTxnMarker)
    return marker.coordinator_epoch


def end_transaction_value(coordinator_epoch: int) -> bytes:
    """Return the value of a commit or abort marker."""
    return encode_control_value(EndTxnMarker(coordinator_epoch=coordinator_epoch))


def build_control_batch(
    control_type: int,
    value: bytes,
    *,
    timestamp: int,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Return a batch with one control record. Commit and abort markers are transactional."""
    key = encode_control_key(ControlType(control_type))
    body = b"\0\0\0" + encode_varint(len(key)) + key + encode_varint(len(value)) + value + b"\0"
    is_marker = control_type in (ControlType.ABORT, ControlType.COMMIT)
    return finish_batch(
        encode_varint(len(body)) + body,
        attributes=CONTROL_MASK | (TRANSACTIONAL_MASK if is_marker else 0),
        records_count=1,
        last_offset_delta=0,
        base_offset=base_offset,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        partition_leader_epoch=partition_leader_epoch,
    )
