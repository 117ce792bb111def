"""Single records: a source task may return them, and per-record transforms and sinks receive them.

Do not modify a record after passing it on; create a modified copy with `replace`.
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
    """The origin of a consumed record's timestamp. The values are those of Kafka's enum ``TimestampType``."""

    NO_TIMESTAMP_TYPE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ConnectRecord(msgspec.Struct, kw_only=True):
    """The attributes that source and sink records share.

    If `partition` is None, the producer chooses the partition. `timestamp` is in milliseconds since the epoch.
    """

    topic: str | None
    partition: int | None = None
    key_schema: Schema | None = None
    key: Any = None
    value_schema: Schema | None = None
    value: Any = None
    timestamp: int | None = None
    headers: Headers = msgspec.field(default_factory=Headers)

    def replace(self: _R, **changes: Any) -> _R:
        """Return a copy with some attributes changed.

        Unless `headers` is changed, both records share one Headers object.
        """
        return msgspec.structs.replace(self, **changes)


class SourceRecord(ConnectRecord, kw_only=True):
    """A record to be produced to a topic, with its source partition and source offset."""

    source_partition: Mapping[str, Any] | None = None
    source_offset: Mapping[str, Any] | None = None


class SinkRecord(ConnectRecord, kw_only=True, eq=False):
    """A record consumed from a topic.

    The ``original_*`` attributes contain the topic, partition and offset that the record had before transforms
    (KIP-793). `raw` references the bytes that the platform fetched, which the dead letter queue needs. Two records that
    differ only in `raw` are equal.
    """

    offset: int
    timestamp_type: TimestampType = TimestampType.NO_TIMESTAMP_TYPE
    original_topic: str | None = None
    original_partition: int | None = None
    original_offset: int | None = None
    raw: Any = None

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._compared_fields())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._compared_fields())
        return f"{type(self).__name__}({shown})"

    @classmethod
    def _compared_fields(cls) -> list[str]:
        return [name for name in cls.__struct_fields__ if name != "raw"]
