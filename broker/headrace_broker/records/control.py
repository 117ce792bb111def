"""Control records: transaction markers and the quorum's own, which no consumer is shown (KIP-98, KIP-595)."""

from __future__ import annotations

import struct
from enum import IntEnum

from headrace_broker.records.batch import CONTROL_MASK, NO_LEADER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TRANSACTIONAL_MASK
from headrace_broker.records.builder import finish_batch
from headrace_broker.records.varint import encode_varint

_KEY = struct.Struct(">hh")
_END_TRANSACTION = struct.Struct(">hi")


class ControlType(IntEnum):
    """The type in a control record's key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def parse_control_key(key: bytes | None) -> int:
    """Return the type number in a control record's key. Raises ValueError when there is none."""
    if key is None or len(key) < _KEY.size:
        raise ValueError(f"control record key {key!r} is shorter than {_KEY.size} bytes")
    return int(_KEY.unpack_from(key)[1])


def parse_coordinator_epoch(value: bytes | None) -> int:
    """Return the coordinator epoch of a transaction marker. Raises ValueError when it is cut short."""
    if value is None or len(value) < _END_TRANSACTION.size:
        raise ValueError(f"transaction marker {value!r} is shorter than {_END_TRANSACTION.size} bytes")
    return int(_END_TRANSACTION.unpack_from(value)[1])


def end_transaction_value(coordinator_epoch: int) -> bytes:
    """Return the value of a commit or abort marker."""
    return _END_TRANSACTION.pack(0, coordinator_epoch)


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
    """Return a batch with one control record; commit and abort markers carry their producer and are transactional."""
    key = _KEY.pack(0, control_type)
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
