"""The contract between a coordinator shard and whoever runs it.

A shard is the coordinator's state for one partition of an internal topic. It is pure: requests and the time come
in, an `Outcome` goes out. Whoever runs it must, for each outcome and before the next call on that shard,

1. append `outcome.records` as one batch, then call `shard.appended(outcome, now_ms)`; or, when the append is refused,
   call `shard.append_failed(outcome, error, now_ms)` (nothing was written);
2. send the replies only when everything appended so far is committed, so that no client sees what a failover could
   take back.

A shard whose log is replayed record by record into an empty shard is the same shard (tests/property holds this).
Timers are data: `next_deadline_ms()` says when `run_timers(now_ms)` wants to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.versioned import RecordKey, RecordValue

Token = Any  # names the waiting request; the shard hands it back with the reply and never looks inside


@dataclass(slots=True, frozen=True)
class CoordinatorRecord:
    """One record of the internal topic: a key message and a value message, or None for a tombstone."""

    key: RecordKey
    value: RecordValue | None
    value_version: int = 0


@dataclass(slots=True, frozen=True)
class Reply:
    """The answer to the request that `token` names."""

    token: Token
    response: Any


@dataclass(slots=True)
class Outcome:
    """What a shard wants done: records to append, replies to send after the commit.

    `on_appended` and `on_append_failed` continue the shard's own work once the fate of the records is known; they are
    called by `appended` and `append_failed` with an outcome that collects further replies.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    on_appended: Callable[[Outcome, int], None] | None = None
    on_append_failed: Callable[[Outcome, ErrorCode, int], None] | None = None

    def reply(self, token: Token, response: Any) -> None:
        self.replies.append(Reply(token, response))


class Shard(Protocol):
    """What the runner needs of a shard besides its request handlers."""

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply one record of the log while loading."""

    def loaded(self, now_ms: int) -> Outcome:
        """Start the timers after the whole log was replayed."""

    def appended(self, outcome: Outcome, now_ms: int) -> Outcome:
        """Apply the records of an outcome that were appended; the result holds replies, and may hold records."""

    def append_failed(self, outcome: Outcome, error: ErrorCode, now_ms: int) -> Outcome:
        """Undo or refuse what depended on records that could not be appended."""

    def next_deadline_ms(self) -> int | None:
        """The earliest time at which a timer may be due."""

    def run_timers(self, now_ms: int) -> Iterator[Outcome]:
        """The outcomes of the timers that are due, one by one."""

    def clock_jumped(self, jump_ms: int) -> None:
        """Move every deadline along with a clock that was set."""

    def unload(self, error: ErrorCode) -> Outcome:
        """Answer every parked request with `error`; the shard is not used again."""
