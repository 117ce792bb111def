"""The interface between a coordinator shard and its `ShardRunner`.

A shard is the coordinator's state for one partition of an internal topic. The inputs of a shard are requests and the
current time, and its output is a `CoordinatorResult`. `ShardRunner` handles each result in three steps:

1. It appends `result.records` before the next operation on the shard. (Consecutive offset commits
   may share one append.)
2. It calls `shard.on_appended(result, now_ms)`, or `shard.on_append_failed(result, error, now_ms)` if
   the append failed.
3. It sends the responses when every record appended so far is committed, so that no client sees a
   state that a failover could revert.

A replay of a shard's log into an empty shard restores the same offsets and the same Empty and Stable
groups (`tests/property/test_group_replay.py`). A shard does not schedule its timers:
`next_deadline_ms()` returns the time at which `ShardRunner` must call `run_timers(now_ms)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.versioned import RecordKey, RecordValue

Token = Any
"""Identifies a pending request. The shard returns the token with the response and does not read it."""


@dataclass(slots=True, frozen=True)
class CoordinatorRecord:
    """One record of the internal topic. A value of None is a tombstone."""

    key: RecordKey
    value: RecordValue | None
    value_version: int = 0


@dataclass(slots=True, frozen=True)
class PendingResponse:
    """The response to the request that `token` identifies. The runner sends it after the records are committed."""

    token: Token
    response: Any


@dataclass(slots=True)
class CoordinatorResult:
    """The result of a shard operation: records to append, and responses to send after the records are committed.

    After the append, the shard calls the callback `on_appended` or `on_append_failed`, which continues the operation.
    The callback's first argument is a new `CoordinatorResult`, to which it adds further responses and records.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    responses: list[PendingResponse] = field(default_factory=list)
    on_appended: Callable[[CoordinatorResult, int], None] | None = None
    on_append_failed: Callable[[CoordinatorResult, ErrorCode, int], None] | None = None

    def respond(self, token: Token, response: Any) -> None:
        self.responses.append(PendingResponse(token, response))


class Shard(Protocol):
    """A coordinator shard: the state of one partition of the coordinator's topic.

    `ShardRunner` calls these methods in addition to the request handlers.
    """

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record of the log while the shard is loading."""

    def on_loaded(self, now_ms: int) -> CoordinatorResult:
        """Start the timers. `ShardRunner` calls this method after it has replayed the whole log."""

    def on_appended(self, result: CoordinatorResult, now_ms: int) -> CoordinatorResult:
        """Apply the appended records of `result`; return further responses and records."""

    def on_append_failed(self, result: CoordinatorResult, error: ErrorCode, now_ms: int) -> CoordinatorResult:
        """Undo or fail the operations whose records could not be appended."""

    def next_deadline_ms(self) -> int | None:
        """Return the earliest time at which a timer may expire, or None if there is no timer."""

    def run_timers(self, now_ms: int) -> Iterator[CoordinatorResult]:
        """Run the timers that have expired, and yield the result of each timer."""

    def on_clock_jump(self, jump_ms: int) -> None:
        """Shift every deadline by `jump_ms`, the amount by which the wall clock was changed."""

    def unload(self, error: ErrorCode) -> CoordinatorResult:
        """Fail every pending request with `error`. The shard is not used again."""
