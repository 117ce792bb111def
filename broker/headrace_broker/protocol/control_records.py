"""Control records: transaction markers, leader changes of the metadata log, snapshot headers and footers, voter sets.

A control record's key is the key's version (0) and the record's type, both as int16. The record's
value depends on the type.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from headrace_broker.protocol.codec import decode, encode_joined
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.notation import Buffer, Message, array, int16, int32, int64, string, struct, uint16, uuid

_KEY = Struct(">hh")
_PREFIX = Struct(">h")


class EndTxnMarker(Message, versions="0"):
    """The value of a commit or abort marker, which is encoded as an int16 version and this message."""

    coordinator_epoch: int = int32()


class Voter(Message):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid("1+")


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """The first record that a leader of the metadata log appends in its leader epoch."""

    version: int = int16()
    leader_id: int = int32()
    voters: list[Voter] = array(Voter)
    granting_voters: list[Voter] = array(Voter)


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    """The first record of a metadata snapshot."""

    version: int = int16()
    last_contained_log_timestamp: int = int64()


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    """The last record of a metadata snapshot."""

    version: int = int16()


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    """The finalized level of the feature kraft.version (KIP-853)."""

    version: int = int16()
    kraft_version: int = int16()


class Endpoint(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()


class KRaftVersionFeature(Message):
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class VotersRecordVoter(Message):
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
    endpoints: list[Endpoint] = array(Endpoint)
    kraft_version_feature: KRaftVersionFeature = struct(KRaftVersionFeature)


class VotersRecord(Message, versions="0", flexible="0+"):
    """The voters of the metadata quorum (KIP-853)."""

    version: int = int16()
    voters: list[VotersRecordVoter] = array(VotersRecordVoter)


class ControlType(IntEnum):
    """The type in the key of a control record."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


CONTROL_VALUES: dict[ControlType, type[Message]] = {
    ControlType.ABORT: EndTxnMarker,
    ControlType.COMMIT: EndTxnMarker,
    ControlType.LEADER_CHANGE: LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: VotersRecord,
}
"""The classes of control record values by control type."""


def encode_control_key(control_type: ControlType) -> bytes:
    """Return the encoded key of a control record of this type."""
    return _KEY.pack(0, control_type)


def decode_control_type(key: Buffer) -> int:
    """Return the type number in a control record's key. Raises ProtocolError.

    The number may be one that `ControlType` does not define.
    """
    if len(key) < _KEY.size:
        raise ProtocolError(f"Error reading control record key of {_KEY.size} bytes, only {len(key)} bytes available")
    version, control_type = _KEY.unpack_from(key)
    if version < 0:
        raise ProtocolError(f"Invalid version {version} in a control record key")
    return int(control_type)


def encode_control_value(value: Message) -> bytes:
    """Return the encoded value of a control record. Raises EncodeError."""
    body = encode_joined(value, 0)
    return _PREFIX.pack(0) + body if isinstance(value, EndTxnMarker) else body


def decode_control_value(control_type: ControlType, value: Buffer) -> Message:
    """Return the decoded value of a control record of this type. Raises DecodeError."""
    message = CONTROL_VALUES[control_type]
    return decode(message, 0, value, _PREFIX.size if message is EndTxnMarker else 0)
