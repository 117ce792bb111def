"""The metadata and assignments that Connect workers exchange in JoinGroup and SyncGroup, as bytes.

The formats are those of Kafka Connect: version 0 (eager rebalances), 1 (incremental cooperative rebalances, KIP-415)
and 2 (like 1, but internal REST requests are signed, KIP-507). Missing fields at the end have their default values.
This module does no I/O.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

from headrace.data.java import hash_set_copy_order
from headrace.herder.assignment import EMPTY, Assignment

PROTOCOL_TYPE = "connect"
NO_ERROR, CONFIG_MISMATCH = 0, 1
_CONNECTOR_TASK = -1
_NO_OFFSET = -1


class Version(IntEnum):
    """A version of the group protocol. A group prefers the highest version that all its workers support."""

    EAGER = 0
    COMPATIBLE = 1
    SESSIONED = 2

    @property
    def protocol(self) -> str:
        """The name of the protocol in JoinGroup."""
        return ("default", "compatible", "sessioned")[self]

    @classmethod
    def of_protocol(cls, protocol: str) -> Version:
        """Return the version that a group has chosen. Raises GroupProtocolError."""
        for version in cls:
            if version.protocol == protocol:
                return version
        raise GroupProtocolError(f"the group has chosen the unknown protocol {protocol!r}")

    @classmethod
    def of_config(cls, value: str) -> Version:
        """Return the highest version that `connect.protocol` (eager, compatible or sessioned) permits."""
        return cls[value.upper()]


class GroupProtocolError(ValueError):
    """The bytes are not valid metadata or a valid assignment."""


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """The assignment that the leader computed for one worker.

    With version 0, `assigned` replaces the worker's assignment. With later versions, the worker adds `assigned` to it,
    and stops `revoked`. After `delay_ms`, the worker must rejoin the group, unless `delay_ms` is 0.
    """

    leader: str
    leader_url: str
    config_offset: int
    assigned: Assignment = EMPTY
    revoked: Assignment = EMPTY
    delay_ms: int = 0
    error: int = NO_ERROR


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """The state that a worker sends with JoinGroup. `config_offset` is the next offset of the config topic."""

    url: str
    config_offset: int
    held: GroupAssignment | None = None
    """The last assignment. `assigned` contains all that the worker runs. None with version 0 or without assignment."""


def protocols(metadata: WorkerMetadata, highest: Version) -> list[tuple[str, bytes]]:
    """Return (protocol, metadata) pairs for JoinGroup, the preferred one first."""
    offered = [version for version in reversed(Version) if version <= highest]
    return [(version.protocol, encode_metadata(metadata, version)) for version in offered]


def encode_metadata(metadata: WorkerMetadata, version: Version) -> bytes:
    """Encode a worker's metadata."""
    parts = [struct.pack(">h", version), _string(metadata.url), struct.pack(">q", metadata.config_offset)]
    if version > Version.EAGER:
        held = None if metadata.held is None else encode_assignment(metadata.held, version)
        parts.append(struct.pack(">i", -1) if held is None else struct.pack(">i", len(held)) + held)
    return b"".join(parts)


def decode_metadata(data: bytes) -> WorkerMetadata:
    """Decode a worker's metadata. Raises GroupProtocolError."""
    fields = _Fields(data)
    version = fields.version()
    url, offset = fields.string() or "", fields.int64()
    held = fields.nullable_bytes() if version > Version.EAGER and not fields.is_at_end else None
    return WorkerMetadata(url, offset, None if held is None else decode_assignment(held))


def encode_assignment(assignment: GroupAssignment, version: Version) -> bytes:
    """Encode a worker's assignment."""
    parts = [
        struct.pack(">hh", version, assignment.error),
        _string(assignment.leader),
        _string(assignment.leader_url),
        struct.pack(">q", assignment.config_offset),
        _items(assignment.assigned),
    ]
    if version > Version.EAGER:
        parts += [_items(assignment.revoked), struct.pack(">i", assignment.delay_ms)]
    return b"".join(parts)


@lru_cache(maxsize=32)  # the leader decodes the metadata of each member several times in a rebalance
def decode_assignment(data: bytes) -> GroupAssignment:
    """Decode a worker's assignment. Raises GroupProtocolError."""
    fields = _Fields(data)
    version = fields.version()
    error = fields.int16()
    found = GroupAssignment(fields.string() or "", fields.string() or "", fields.int64(), error=error)
    found = found if fields.is_at_end else replace(found, assigned=fields.items())
    if version == Version.EAGER:
        return found
    found = found if fields.is_at_end else replace(found, revoked=fields.items())
    return found if fields.is_at_end else replace(found, delay_ms=fields.int32())


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


@lru_cache(maxsize=8)  # a worker encodes what it runs for each protocol that it offers
def _items(assignment: Assignment) -> bytes:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for name in hash_set_copy_order(sorted(assignment.connectors)):  # as Kafka Connect writes them
        numbers[name].append(_CONNECTOR_TASK)
    for name, number in sorted(assignment.tasks):
        numbers[name].append(number)
    return struct.pack(">i", len(numbers)) + b"".join(map(_item, numbers.items()))


def _item(item: tuple[str, Sequence[int]]) -> bytes:
    name, numbers = item
    return _string(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


class _Fields:
    """Reads the fields of a message in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._data)

    def version(self) -> int:
        version = self.int16()
        if version < 0:
            raise GroupProtocolError(f"the version {version} is negative")
        return version

    def int16(self) -> int:
        return self._number(">h", 2)

    def int32(self) -> int:
        return self._number(">i", 4)

    def int64(self) -> int:
        return self._number(">q", 8)

    def string(self) -> str | None:
        length = self.int16()
        if length < 0:
            return None
        try:
            return self._read(length).decode()
        except UnicodeDecodeError as error:
            raise GroupProtocolError(f"a string is not UTF-8: {error}") from None

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self._read(length)

    def items(self) -> Assignment:
        connectors: set[str] = set()
        tasks: set[tuple[str, int]] = set()
        for _ in range(self.int32()):
            name = self.string() or ""
            count = max(self.int32(), 0)
            for number in struct.unpack(f">{count}i", self._read(4 * count)):
                if number == _CONNECTOR_TASK:
                    connectors.add(name)
                else:
                    tasks.add((name, number))
        return Assignment(frozenset(connectors), frozenset(tasks))

    def _number(self, format_: str, size: int) -> int:
        number: int = struct.unpack(format_, self._read(size))[0]
        return number

    def _read(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        if len(data) < size:
            raise GroupProtocolError(f"the message ends at byte {len(self._data)} within a field")
        self._position += size
        return data
