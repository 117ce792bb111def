"""Runs one shard on the event loop: appends the shard's records, and sends responses after the records are committed.

There is no await between the shard's operation and the append, so no other request sees a
half-finished operation. Offset commits of one event loop iteration share one append. A response is sent
when the high watermark passes the records of the operation. Responses are sent in order.
This module does I/O.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.records import encode_record
from headrace_broker.coordinator.groups.shard import GroupShard
from headrace_broker.coordinator.response_errors import with_error
from headrace_broker.coordinator.runtime import CoordinatorRecord, CoordinatorResult, PendingResponse
from headrace_broker.protocol.codec import EncodeError
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import Buffer
from headrace_broker.records.builder import build_batch, split
from headrace_broker.records.columns import RecordColumns

_log = logging.getLogger(__name__)

_JUMP_MS = 500
"""A change of at least `_JUMP_MS` in the difference between the wall clock and the monotonic clock
means that the wall clock was set."""


class InternalTopic(Protocol):
    """Lets the coordinator read from and append to its internal topic, and check whether other topics exist.

    No method blocks.
    """

    def partition_count(self) -> int:
        """Return the internal topic's number of partitions, or 0 if the topic does not exist."""

    def topic_exists(self, topic: str) -> bool:
        """Return whether the cluster has a topic with this name."""

    def append(self, partition: int, batch: bytearray) -> int:
        """Append one batch as the partition's leader and return the batch's last offset.

        Raises ApiError if nothing was written.
        """

    def high_watermark(self, partition: int) -> int:
        """Return the partition's high watermark, or -1 if this node is not the partition's leader."""

    def read(self, partition: int, offset: int, size_bytes_max: int) -> Buffer | None:
        """Return whole batches, starting with the batch that contains `offset`.

        If `offset` is below the log start offset, start at the log start offset. Return None if
        `offset` is the log end offset.
        """


@dataclass(slots=True)
class _CommitResult:
    """The result of `ShardRunner.wait_for_commit`.

    A call of `wait_for_commit` adds this object to the queue of responses. The object stays in the queue until all
    records that were appended before this call are committed, or until the wait fails.
    """

    error_code: ErrorCode = ErrorCode.NONE


class ShardRunner:
    """Runs one shard and holds each response until the records that it depends on are committed.

    All methods must be called on the event loop.
    """

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
        self._wall_clock_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._clock_offset_ms = self._measure_clock_offset_ms()
        self._last_offset = -1
        # Each entry holds responses, and the offset that must be committed before they are sent.
        self._uncommitted_responses: deque[tuple[int, list[PendingResponse]]] = deque()
        self._commit_timer: asyncio.TimerHandle | None = None
        self._offset_commits: list[CoordinatorResult] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    # -- executing results

    def run(self, result: CoordinatorResult) -> None:
        """Append the records, send the responses when the records are committed, and set the shard's next timer."""
        self._execute(result)
        self._schedule_timer()

    def run_offset_commit(self, result: CoordinatorResult) -> None:
        """Run an offset commit. All offset commits of one event loop iteration share one append."""
        if not result.records:
            self._respond_when_committed(result.responses)
            return
        self._offset_commits.append(result)
        if len(self._offset_commits) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Append the collected offset commits. Call this method before any other shard operation."""
        if self._offset_commits:
            commits, self._offset_commits = self._offset_commits, []
            records = [record for result in commits for record in result.records]
            responses = [response for result in commits for response in result.responses]
            self._execute(CoordinatorResult(records, responses))

    async def wait_for_commit(self) -> ErrorCode:
        """Wait until every record appended so far is committed.

        Return NONE, or COORDINATOR_NOT_AVAILABLE if the wait takes longer than
        offsets.commit.timeout.ms. If `close` is called during the wait, return the error passed to
        `close`.
        """
        if self._is_committed:
            return ErrorCode.NONE
        future: asyncio.Future[_CommitResult] = self._loop.create_future()
        self._respond_when_committed([PendingResponse(future, _CommitResult())])
        return (await future).error_code

    def _execute(self, result: CoordinatorResult) -> None:
        now_ms = self.now_ms()
        error = self._append(result.records, now_ms)
        if error is None:
            self._respond_when_committed(result.responses)
            after = self.shard.on_appended(result, now_ms)
        else:
            self._respond_when_committed(
                [PendingResponse(response.token, with_error(response.response, error)) for response in result.responses]
            )
            after = self.shard.on_append_failed(result, error, now_ms)
        if after.records:
            self._execute(after)
        else:
            self._respond_when_committed(after.responses)

    def _append(self, records: list[CoordinatorRecord], now_ms: int) -> ErrorCode | None:
        """Append the records in batches of at most `batch_size_bytes_max`.

        If a batch cannot be encoded or appended, return the error code for the responses, else None.
        """
        if not records:
            return None
        try:
            pairs = [encode_record(record) for record in records]
        except EncodeError:
            _log.exception(
                "__consumer_offsets-%d: records cannot be encoded, failing the request with UNKNOWN_SERVER_ERROR",
                self._partition,
            )
            return ErrorCode.UNKNOWN_SERVER_ERROR
        columns = RecordColumns(values=[value for _, value in pairs], keys=[key for key, _ in pairs], timestamps=now_ms)
        done = 0
        for batch_columns in split(columns, self._config.batch_size_bytes_max):
            try:
                self._last_offset = self._topic.append(self._partition, build_batch(batch_columns))
            except ApiError as error:
                _log.warning(
                    "__consumer_offsets-%d: cannot append records, failing the request: %s", self._partition, error
                )
                self.shard.on_appended(CoordinatorResult(records[:done]), now_ms)  # apply the batches already appended
                return _COORDINATOR_ERRORS.get(error.code, error.code)
            done += len(batch_columns)
        return None

    # -- responses

    @property
    def _is_committed(self) -> bool:
        return self._last_offset < self._topic.high_watermark(self._partition)

    def _respond_when_committed(self, responses: list[PendingResponse]) -> None:
        if not responses:
            return
        if not self._uncommitted_responses and self._is_committed:
            _send_responses(responses)
            return
        self._uncommitted_responses.append((self._last_offset, responses))
        if self._commit_timer is None:
            timeout_s = self._config.offset_commit_timeout_ms / 1000
            self._commit_timer = self._loop.call_later(timeout_s, self._on_commit_timeout, self._last_offset)

    def on_high_watermark_advanced(self, high_watermark: int) -> None:
        """Send the responses whose records are below the new high watermark."""
        while self._uncommitted_responses and self._uncommitted_responses[0][0] < high_watermark:
            _send_responses(self._uncommitted_responses.popleft()[1])
        if not self._uncommitted_responses and self._commit_timer is not None:
            self._commit_timer.cancel()
            self._commit_timer = None

    def _on_commit_timeout(self, offset: int) -> None:
        """Fail the requests that wait for records up to `offset`, which were not committed in time.

        The records stay in the log.
        """
        self._commit_timer = None
        while self._uncommitted_responses and self._uncommitted_responses[0][0] <= offset:
            _send_error_responses(self._uncommitted_responses.popleft()[1], ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self._uncommitted_responses:
            timeout_s = self._config.offset_commit_timeout_ms / 1000
            self._commit_timer = self._loop.call_later(
                timeout_s, self._on_commit_timeout, self._uncommitted_responses[-1][0]
            )

    # -- timers

    def _schedule_timer(self) -> None:
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
            for result in self.shard.run_timers(self.now_ms()):
                self._execute(result)
        finally:
            self._schedule_timer()  # an error in one group must not stop the timers of other groups

    def now_ms(self) -> int:
        """Return the wall-clock time.

        If the wall clock was set forward or back, shift all deadlines by the same amount, so that
        sessions do not expire early or late.
        """
        offset_ms = self._measure_clock_offset_ms()
        jump_ms = offset_ms - self._clock_offset_ms
        if abs(jump_ms) >= _JUMP_MS:
            self._clock_offset_ms = offset_ms
            self.shard.on_clock_jump(jump_ms)
            if self._timer is not None:
                self._timer_ms += jump_ms
        return self._wall_clock_ms()

    def _measure_clock_offset_ms(self) -> int:
        return self._wall_clock_ms() - int(self._loop.time() * 1000)

    # -- loading and closing

    def load(self, records: list[CoordinatorRecord], next_offset: int) -> None:
        """Replay `records` from the log. `next_offset` is the offset after the last record."""
        for record in records:
            self.shard.replay(record)
        self._last_offset = next_offset - 1

    def close(self, error: ErrorCode) -> None:
        """Fail every pending request with `error` and discard the offset commits that are not appended yet."""
        commits, self._offset_commits = self._offset_commits, []
        for result in commits:
            _send_error_responses(result.responses, error)
        for timer in (self._timer, self._commit_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._commit_timer = None
        while self._uncommitted_responses:
            _send_error_responses(self._uncommitted_responses.popleft()[1], error)
        _send_responses(self.shard.unload(error).responses)


def _send_responses(responses: list[PendingResponse]) -> None:
    """Complete each request's future, unless the future was cancelled because the client disconnected."""
    for response in responses:
        if not response.token.done():
            response.token.set_result(response.response)


def _send_error_responses(responses: list[PendingResponse], error: ErrorCode) -> None:
    _send_responses([PendingResponse(response.token, with_error(response.response, error)) for response in responses])


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
"""Maps the error code of an append to the error code of the coordinator's response, as in Kafka."""
