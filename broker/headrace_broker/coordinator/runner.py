"""Runs one shard on the event loop: appends what it wants stored, and lets replies go after the commit.

Within one call everything from the shard's decision to the append happens without a pause, so no two requests ever
work on half a change. Offset commits of one loop tick share one append. Replies wait for the high watermark in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace_broker.coordinator.error_replies import with_error
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.records import encode_record
from headrace_broker.coordinator.groups.shard import GroupShard
from headrace_broker.coordinator.runtime import CoordinatorRecord, Outcome, Reply
from headrace_broker.protocol.codec import EncodeError
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import Buffer
from headrace_broker.records.builder import build_batch, split
from headrace_broker.records.columns import RecordColumns

_log = logging.getLogger(__name__)

_JUMP_MS = 500
"""A difference between wall clock and monotonic clock that is not drift any more."""


class InternalTopic(Protocol):
    """The coordinator's port to its internal topic, and to what topics there are; nothing here waits."""

    def partition_count(self) -> int:
        """How many partitions the topic has; 0 while it does not exist."""

    def topic_exists(self, topic: str) -> bool:
        """Whether any topic of this name exists."""

    def append(self, partition: int, batch: bytearray) -> int:
        """Append one batch as leader and return its last offset. Raises ApiError when nothing was written."""

    def high_watermark(self, partition: int) -> int:
        """The offset below which everything is committed; -1 when this node does not lead the partition."""

    def read(self, partition: int, offset: int, size_bytes_max: int) -> Buffer | None:
        """Whole batches from `offset` (or the log's start, if later) on; None at the log's end."""


@dataclass(slots=True)
class _Settled:
    """What who waits for a commit is told."""

    error_code: ErrorCode = ErrorCode.NONE


class ShardRunner:
    """One shard and what waits for it. Owned by the event loop."""

    def __init__(
        self,
        shard: GroupShard,
        topic: InternalTopic,
        partition: int,
        config: GroupConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self.shard = shard
        self._topic = topic
        self._partition = partition
        self._config = config
        self._wall_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._wall_ahead_ms = self._measure_wall_ahead_ms()
        self._last_offset = -1
        self._waiting: deque[tuple[int, list[Reply]]] = deque()  # last offset the replies depend on
        self._waiting_timer: asyncio.TimerHandle | None = None
        self._commits: list[Outcome] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    # -- doing what the shard wants

    def run(self, outcome: Outcome) -> None:
        """Append the outcome's records, reply when they are committed, and set the timer for what comes next."""
        self._execute(outcome)
        self._arm()

    def run_with_next_commits(self, outcome: Outcome) -> None:
        """The same for an offset commit, together with the others of this loop tick."""
        if not outcome.records:
            self._release(outcome.replies)
            return
        self._commits.append(outcome)
        if len(self._commits) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Append the offset commits collected so far. To be called before the shard is asked anything else."""
        if self._commits:
            commits, self._commits = self._commits, []
            records = [record for outcome in commits for record in outcome.records]
            replies = [reply for outcome in commits for reply in outcome.replies]
            self._execute(Outcome(records, replies))

    async def settled(self) -> ErrorCode:
        """Wait until all that was appended by now is committed; an error where that does not come to be known here."""
        if self._is_settled:
            return ErrorCode.NONE
        future: asyncio.Future[_Settled] = self._loop.create_future()
        self._release([Reply(future, _Settled())])
        return (await future).error_code

    def _execute(self, outcome: Outcome) -> None:
        now_ms = self.now_ms()
        error = self._append(outcome.records, now_ms)
        if error is None:
            self._release(outcome.replies)
            after = self.shard.appended(outcome, now_ms)
        else:
            self._release([Reply(reply.token, with_error(reply.response, error)) for reply in outcome.replies])
            after = self.shard.append_failed(outcome, error, now_ms)
        if after.records:
            self._execute(after)
        else:
            self._release(after.replies)

    def _append(self, records: list[CoordinatorRecord], now_ms: int) -> ErrorCode | None:
        """Append the records in batches no larger than the topic takes; the error of the first refused batch."""
        if not records:
            return None
        try:
            pairs = [encode_record(record) for record in records]
        except EncodeError:
            _log.exception("Records for partition %d of the internal topic cannot be written", self._partition)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        columns = RecordColumns(values=[value for _, value in pairs], keys=[key for key, _ in pairs], timestamps=now_ms)
        done = 0
        for part in split(columns, self._config.batch_size_bytes_max):
            try:
                self._last_offset = self._topic.append(self._partition, build_batch(part))
            except ApiError as error:
                _log.warning("Partition %d of the internal topic refused records: %s", self._partition, error)
                self.shard.appended(Outcome(records[:done]), now_ms)  # those are in the log
                return _COORDINATOR_ERRORS.get(error.code, error.code)
            done += len(part)
        return None

    # -- replies

    @property
    def _is_settled(self) -> bool:
        return self._last_offset < self._topic.high_watermark(self._partition)

    def _release(self, replies: list[Reply]) -> None:
        if not replies:
            return
        if not self._waiting and self._is_settled:
            _deliver(replies)
            return
        self._waiting.append((self._last_offset, replies))
        if self._waiting_timer is None:
            timeout_s = self._config.offset_commit_timeout_ms / 1000
            self._waiting_timer = self._loop.call_later(timeout_s, self._waited_too_long, self._last_offset)

    def advance(self, high_watermark: int) -> None:
        """The high watermark of the partition moved."""
        while self._waiting and self._waiting[0][0] < high_watermark:
            _deliver(self._waiting.popleft()[1])
        if not self._waiting and self._waiting_timer is not None:
            self._waiting_timer.cancel()
            self._waiting_timer = None

    def _waited_too_long(self, offset: int) -> None:
        """Replies that waited since before `offset` was appended are refused; the change itself stays."""
        self._waiting_timer = None
        while self._waiting and self._waiting[0][0] <= offset:
            _deliver_error(self._waiting.popleft()[1], ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._waiting:
            timeout_s = self._config.offset_commit_timeout_ms / 1000
            self._waiting_timer = self._loop.call_later(timeout_s, self._waited_too_long, self._waiting[-1][0])

    # -- timers

    def _arm(self) -> None:
        deadline_ms = self.shard.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(0, deadline_ms - self.now_ms()) / 1000, self._run_timers)

    def _run_timers(self) -> None:
        self._timer = None
        try:
            self.flush()
            for outcome in self.shard.run_timers(self.now_ms()):
                self._execute(outcome)
        finally:
            self._arm()  # one group's failure must not stop the clock of the others

    def now_ms(self) -> int:
        """Wall-clock time; when somebody sets the clock, sessions and rebalances take no notice."""
        ahead_ms = self._measure_wall_ahead_ms()
        jump_ms = ahead_ms - self._wall_ahead_ms
        if abs(jump_ms) >= _JUMP_MS:
            self._wall_ahead_ms = ahead_ms
            self.shard.clock_jumped(jump_ms)
            if self._timer is not None:
                self._timer_ms += jump_ms
        return self._wall_ms()

    def _measure_wall_ahead_ms(self) -> int:
        return self._wall_ms() - int(self._loop.time() * 1000)

    # -- beginning and end

    def load(self, records: list[CoordinatorRecord], next_offset: int) -> None:
        """Replay records that are in the log, which goes on at `next_offset`."""
        for record in records:
            self.shard.replay(record)
        self._last_offset = next_offset - 1

    def close(self, error: ErrorCode) -> None:
        """Answer everything that waits with `error`; what has not been appended yet will not be."""
        commits, self._commits = self._commits, []
        for outcome in commits:
            _deliver_error(outcome.replies, error)
        for timer in (self._timer, self._waiting_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._waiting_timer = None
        while self._waiting:
            _deliver_error(self._waiting.popleft()[1], error)
        _deliver(self.shard.unload(error).replies)


def _deliver(replies: list[Reply]) -> None:
    """Hand each response to the future that waits for it; a client that is gone has cancelled its own."""
    for reply in replies:
        if not reply.token.done():
            reply.token.set_result(reply.response)


def _deliver_error(replies: list[Reply], error: ErrorCode) -> None:
    _deliver([Reply(reply.token, with_error(reply.response, error)) for reply in replies])


_COORDINATOR_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""What a refused append means to a client of the coordinator."""
