"""Records, as per-record code sees them: what a source task may return, what a user's transform gets.

A record is not changed in place once handed on: `replace` makes the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

from headrace.data.headers import Headers
from headrace.data.schema import Schema

_R = TypeVar("_R", bound="ConnectRecord")


class TimestampType(IntEnum):
    """Where a consumed record's timestamp came from; the values are those of the record batch attribute."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ConnectRecord(msgspec.Struct, kw_only=True):
    """What source and sink records share. `partition` None leaves the choice to the producer; timestamps are ms."""

    topic: str | None
    partition: int | None = None
    key_schema: Schema | None = None
    key: Any = None
    value_schema: Schema | None = None
    value: Any = None
    timestamp: int | None = None
    headers: Headers = msgspec.field(default_factory=Headers)

    def replace(self: _R, **changes: Any) -> _R:
        """A copy with some attributes changed; the headers are the same object unless given."""
        return msgspec.structs.replace(self, **changes)


class SourceRecord(ConnectRecord, kw_only=True):
    """A record on its way to a topic, with the place in the source that it came from."""

    source_partition: Mapping[str, Any] | None = None
    source_offset: Mapping[str, Any] | None = None


class SinkRecord(ConnectRecord, kw_only=True):
    """A record that came from a topic. The ``original_*`` attributes survive transforms that reroute (KIP-793)."""

    offset: int
    timestamp_type: TimestampType = TimestampType.NO_TIMESTAMP_TYPE
    original_topic: str | None = None
    original_partition: int | None = None
    original_offset: int | None = None
