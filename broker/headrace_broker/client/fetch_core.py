"""The consumer's fetch logic: partitions to fetch from each broker, positions, prefetch, resets, aborted transactions.

This module does no I/O. `Fetcher` passes in the responses, and receives the next fetches to send.
Guarantees:
- The chunks of a partition are returned in log order, from the position on. No offset is skipped or repeated, even
  after pauses and leader elections. If a seek changed the position after a fetch was sent, the response to this fetch
  is discarded.
- At most one fetch per node is in flight. The next fetch to a node is sent only when the buffered records from the node
  are smaller than the last response of the node. This limits prefetching to about one response per node.
- If the leader returns a preferred read replica (KIP-392), fetches are sent to that replica until the preference
  expires, the leader changes or the replica fails. After that, fetches are sent to the leader, which may return a
  preferred read replica again. After a replica has failed, fetches are sent only to the leader for `_LEADER_ONLY_MS`.
- Control batches, compaction gaps, and the records of a batch before the requested offset are skipped.

Only the `Fetcher` that created a `FetchCore` uses it, so there are no locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.batch import BatchHeader, CorruptBatchError, iter_batches, read_header
from headrace_broker.records.control import ControlType, parse_control_key
from headrace_broker.records.reader import read_batch

_LEADER_ERRORS = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
)


SPAN_RECORDS_MIN = 2000
_LEADER_ONLY_MS = 1000.0
_NEWER_LEADER_TIMEOUT_MS = 30_000.0


class FetchAction(Enum):
    """The fetcher's next action, after it has handled one partition of a Fetch response."""

    NONE = "nothing: there are no records, or the response is outdated"
    RECORDS = "notify the consumer: a chunk was buffered"
    REFRESH_METADATA = "refresh the metadata: the leader has changed"
    RESET_POSITION = "reset the position, which is outside the log, or raise if auto.offset.reset is none"
    RAISE_ERROR = "raise the error in the consumer's poll"


@dataclass(slots=True, eq=False)
class Chunk:
    """Fetched records of one partition, as bytes. `spans` are slices of complete, readable batches, in order.

    A span ends as soon as it has at least `SPAN_RECORDS_MIN` records, so that the records of a span fit in the CPU's
    cache while they are parsed.
    """

    topic: str
    partition: int
    spans: list[memoryview]
    from_offset: int
    next_offset: int
    high_watermark: int
    size_bytes: int
    node_id: int


@dataclass(frozen=True, slots=True)
class RequestedPartition:
    """One partition of a Fetch request."""

    topic: str
    partition: int
    fetch_offset: int
    leader_epoch: int
    max_bytes: int
    is_from_leader: bool = True
    allow_preferred_replica: bool = True


@dataclass(frozen=True, slots=True)
class _PreferredReplica:
    """The preferred read replica from a leader's Fetch response."""

    node_id: int
    leader_epoch: int
    until_ms: float


@dataclass(slots=True, eq=False)
class _PartitionState:
    position: int | None = None
    """Offset of the next record to return; None until it is known."""
    fetch_offset: int = -1
    chunks: deque[Chunk] = field(default_factory=deque)
    paused: bool = False
    high_watermark: int = -1
    log_start_offset: int = -1
    max_bytes: int = 0
    retry_at_ms: float = 0.0
    attempts: int = 0
    preferred: _PreferredReplica | None = None
    leader_only_until_ms: float = 0.0
    """After a failure of the preferred replica, only the leader is fetched from until this time."""
    end_offset: int | None = None
    """If set, no fetch starts at or after this offset."""
    position_epoch: int = -1
    """The leader epoch that the position comes from. A leader of an older epoch may not have this offset yet."""
    newer_leader_deadline_ms: float = 0.0


class FetchCore:
    """Holds the positions and prefetched chunks of the assigned partitions."""

    def __init__(
        self, *, partition_bytes_max: int, read_committed: bool = False, backoff_ms: Callable[[int], float]
    ) -> None:
        self._partition_bytes_max = partition_bytes_max
        self._read_committed = read_committed
        self._backoff_ms = backoff_ms
        self.assignment_count = 0
        """The number of assignments so far. A position looked up before the latest assignment is discarded."""
        self._states: dict[TopicPartition, _PartitionState] = {}
        self._in_flight: set[int] = set()
        self._buffered_bytes: dict[int, int] = {}
        self._response_bytes: dict[int, int] = {}

    # -- assignment and positions ------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return list(self._states)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions.

        Partitions that stay assigned keep their position and prefetched chunks, and stay paused if they are paused.
        """
        wanted = dict.fromkeys(partitions)
        for topic_partition in [known for known in self._states if known not in wanted]:
            self._drop_chunks(self._states.pop(topic_partition))
        for topic_partition in wanted:
            if topic_partition not in self._states:
                self._states[topic_partition] = _PartitionState(max_bytes=self._partition_bytes_max)
                self.assignment_count += 1

    def partitions_without_position(self) -> list[TopicPartition]:
        """Return the partitions that need a position (committed offset or reset) before they can be fetched."""
        return [topic_partition for topic_partition, state in self._states.items() if state.position is None]

    def seek(self, topic_partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Set the position to `offset` and drop prefetched chunks.

        `leader_epoch` is the epoch of the leader that returned `offset` (-1 = unknown). Raises KeyError for a partition
        that is not assigned.
        """
        state = self._states[topic_partition]
        self._drop_chunks(state)
        state.position = state.fetch_offset = offset
        state.position_epoch, state.newer_leader_deadline_ms = leader_epoch, 0.0
        state.retry_at_ms, state.attempts = 0.0, 0

    def set_end(self, topic_partition: TopicPartition, end_offset: int | None) -> None:
        """Send no fetches that start at or after `end_offset`. None removes the limit. Raises KeyError."""
        self._states[topic_partition].end_offset = end_offset

    def forget_position(self, topic_partition: TopicPartition) -> None:
        """Clear the position, so that it is looked up again."""
        state = self._states[topic_partition]
        self._drop_chunks(state)
        state.position = state.preferred = None

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset of the next record for the consumer, or None if it is not known yet. Raises KeyError."""
        return self._states[topic_partition].position

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the high watermark from the last response, or None before the first response."""
        value = self._states[topic_partition].high_watermark
        return None if value < 0 else value

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the high watermarks of all partitions with a response."""
        return {each: state.high_watermark for each, state in self._states.items() if state.high_watermark >= 0}

    def pause(self, topic_partition: TopicPartition) -> None:
        """Return no records of the partition until `resume` is called. Prefetched chunks are kept."""
        self._states[topic_partition].paused = True

    def resume(self, topic_partition: TopicPartition) -> None:
        """Resume a paused partition."""
        self._states[topic_partition].paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return [topic_partition for topic_partition, state in self._states.items() if state.paused]

    # -- fetching ----------------------------------------------------------------------------------------------------

    def plan(
        self,
        now_ms: float,
        leader_of: Callable[[str, int], tuple[int, int] | None],
        is_ready: Callable[[int], bool],
        is_replica: Callable[[str, int, int], bool] = lambda topic, partition, node_id: True,
    ) -> tuple[dict[int, list[RequestedPartition]], set[str]]:
        """Return ({node: partitions to fetch from the node now}, topics whose metadata has to be refreshed).

        `leader_of` returns (node id, leader epoch). `is_ready` returns whether a fetch can be sent to the node now.
        `is_replica` returns whether a broker has an online replica. Each returned fetch counts as in flight until
        `fetch_done` is called.
        """
        plans: dict[int, list[RequestedPartition]] = {}
        outdated: set[str] = set()
        for (topic, partition), state in self._states.items():
            if state.position is None or state.paused or now_ms < state.retry_at_ms:
                continue
            if state.end_offset is not None and state.fetch_offset >= state.end_offset:
                continue
            leader = leader_of(topic, partition)
            if leader is None:
                outdated.add(topic)
                continue
            node_id, leader_epoch = leader
            if 0 <= leader_epoch < state.position_epoch and self._await_newer_leader(state, now_ms):
                outdated.add(topic)
                continue
            preferred = state.preferred
            if preferred is not None:
                if now_ms >= preferred.until_ms or preferred.leader_epoch != leader_epoch:
                    preferred = state.preferred = None
                elif not is_replica(topic, partition, preferred.node_id):
                    self._return_to_leader(state, now_ms)
                    preferred = None
                    outdated.add(topic)
                else:
                    node_id = preferred.node_id
            if node_id not in self._in_flight and not self._is_full(node_id) and is_ready(node_id):
                requested = RequestedPartition(
                    topic,
                    partition,
                    state.fetch_offset,
                    leader_epoch,
                    state.max_bytes,
                    is_from_leader=preferred is None,
                    allow_preferred_replica=now_ms >= state.leader_only_until_ms,
                )
                plans.setdefault(node_id, []).append(requested)
        self._in_flight.update(plans)
        self._rotate(plans)
        return plans, outdated

    def fetch_done(self, node_id: int) -> None:
        """Mark the node's fetch as no longer in flight. This method does not process the partitions of the response."""
        self._in_flight.discard(node_id)

    def retry_at_ms(self, now_ms: float) -> float | None:
        """Return the earliest time at which a partition's backoff ends, or None if no partition is backing off."""
        waits = [state.retry_at_ms for state in self._states.values() if state.retry_at_ms > now_ms]
        return min(waits, default=None)

    def _await_newer_leader(self, state: _PartitionState, now_ms: float) -> bool:
        """Return whether to keep waiting for metadata with a newer leader epoch.

        The caller has found that the leader epoch of the partition's position is newer than the epoch in the metadata.

        The wait is limited, because the epoch of the position may belong to a deleted topic of the same name.
        """
        if not state.newer_leader_deadline_ms:
            state.newer_leader_deadline_ms = now_ms + _NEWER_LEADER_TIMEOUT_MS
        return now_ms < state.newer_leader_deadline_ms

    def _is_full(self, node_id: int) -> bool:
        return self._buffered_bytes.get(node_id, 0) > 0 and self._buffered_bytes[node_id] >= self._response_bytes.get(
            node_id, 0
        )

    def _rotate(self, plans: dict[int, list[RequestedPartition]]) -> None:
        """Move the first partition of each planned fetch to the end of the fetch order.

        With a fixed order, the first partitions could always fill fetch.max.bytes, so later partitions would starve.
        """
        for requested in plans.values():
            if len(requested) > 1:
                key = (requested[0].topic, requested[0].partition)
                self._states[key] = self._states.pop(key)

    # -- responses ---------------------------------------------------------------------------------------------------

    def receive(
        self,
        node_id: int,
        requested: RequestedPartition,
        records: memoryview | None,
        *,
        high_watermark: int,
        log_start_offset: int = -1,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> FetchAction:
        """Buffer a partition's records, and return what the fetcher must do next. Raises CorruptBatchError.

        `aborted` contains a (producer id, first offset) pair for each aborted transaction.
        """
        state = self._state_if_current(requested)
        if state is None:
            return FetchAction.NONE
        state.attempts = 0
        state.high_watermark = high_watermark
        state.log_start_offset = log_start_offset
        if not records:
            return FetchAction.NONE
        spans, next_offset = self._readable_spans(records, requested.fetch_offset, aborted)
        if next_offset <= requested.fetch_offset:
            self._grow_fetch_size(state, records)
            return FetchAction.NONE
        state.max_bytes = self._partition_bytes_max
        chunk = Chunk(
            requested.topic,
            requested.partition,
            spans,
            from_offset=requested.fetch_offset,
            next_offset=next_offset,
            high_watermark=high_watermark,
            size_bytes=len(records),
            node_id=node_id,
        )
        state.fetch_offset = next_offset
        state.chunks.append(chunk)
        self._buffered_bytes[node_id] = self._buffered_bytes.get(node_id, 0) + chunk.size_bytes
        return FetchAction.RECORDS

    def set_preferred_replica(self, requested: RequestedPartition, node_id: int, until_ms: float) -> None:
        """Until `until_ms`, fetch the partition from `node_id`, the preferred read replica that the leader returned."""
        state = self._state_if_current(requested)
        if state is not None:
            state.attempts = 0
            state.preferred = _PreferredReplica(node_id, requested.leader_epoch, until_ms)

    def drop_preferred_replica(self, node_id: int, now_ms: float) -> None:
        """Stop using `node_id` as preferred read replica because it is unreachable; fetch from the leaders instead."""
        for state in self._states.values():
            if state.preferred is not None and state.preferred.node_id == node_id:
                self._return_to_leader(state, now_ms)

    def _return_to_leader(self, state: _PartitionState, now_ms: float) -> None:
        state.preferred = None
        state.leader_only_until_ms = now_ms + _LEADER_ONLY_MS

    def record_response_size(self, node_id: int, size_bytes: int) -> None:
        """Store the size of the records in the node's last response.

        This size limits how much is prefetched from the node.
        """
        self._response_bytes[node_id] = size_bytes

    def handle_error(self, requested: RequestedPartition, code: ErrorCode, now_ms: float) -> FetchAction:
        """Handle a partition's error code, and return what the fetcher must do next."""
        state = self._state_if_current(requested)
        if state is None:
            return FetchAction.NONE
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and requested.is_from_leader:
            return FetchAction.RESET_POSITION
        self._retry_later(state, requested, now_ms)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:  # a follower may not have this offset yet
            return FetchAction.NONE
        if code in _LEADER_ERRORS:
            return FetchAction.REFRESH_METADATA
        return FetchAction.NONE if code.is_retriable else FetchAction.RAISE_ERROR

    def handle_disconnect(self, requested: RequestedPartition, now_ms: float) -> None:
        """Handle a connection that was lost before the response to a fetch arrived."""
        state = self._state_if_current(requested)
        if state is not None:
            self._retry_later(state, requested, now_ms)

    def _retry_later(self, state: _PartitionState, requested: RequestedPartition, now_ms: float) -> None:
        """Retry a failed fetch. The retry is always sent to the leader.

        If the failed fetch was also sent to the leader, wait for a backoff first.
        """
        if requested.is_from_leader:
            self._start_backoff(state, now_ms)
        else:
            self._return_to_leader(state, now_ms)

    def back_off(self, topic_partition: TopicPartition, now_ms: float) -> None:
        """Do not fetch the partition until a backoff has passed."""
        state = self._states.get(topic_partition)
        if state is not None:
            self._start_backoff(state, now_ms)

    def _start_backoff(self, state: _PartitionState, now_ms: float) -> None:
        state.retry_at_ms = now_ms + self._backoff_ms(state.attempts)
        state.attempts += 1

    def _state_if_current(self, requested: RequestedPartition) -> _PartitionState | None:
        state = self._states.get((requested.topic, requested.partition))
        if state is None or state.position is None or state.fetch_offset != requested.fetch_offset:
            return None
        return state

    def _grow_fetch_size(self, state: _PartitionState, records: memoryview) -> None:
        """Increase the partition's fetch size, because the first batch in `records` is larger than this size."""
        needed = read_header(records).size_bytes if len(records) >= 61 else 0
        state.max_bytes = min(max(state.max_bytes * 2, needed), 2**31 - 1)

    def _readable_spans(
        self, records: memoryview, from_offset: int, aborted: Sequence[tuple[int, int]]
    ) -> tuple[list[memoryview], int]:
        """Return (spans of the batches to read, offset after the last complete batch).

        The offset is `from_offset` if there is no complete batch. With isolation level read_committed, the spans omit
        the batches of the `aborted` transactions.
        """
        if self._read_committed and aborted:
            return _committed_spans(records, from_offset, aborted)
        spans: list[memoryview] = []
        start = end = count = 0
        next_offset = from_offset
        for position, header in iter_batches(records):
            end = position + header.size_bytes
            next_offset = header.next_offset
            count += header.records_count
            if count >= SPAN_RECORDS_MIN:
                spans.append(records[start:end])
                start, count = end, 0
        if end > start:
            spans.append(records[start:end])
        return spans, next_offset

    # -- prefetched chunks -------------------------------------------------------------------------------------------

    def next_chunk(self) -> Chunk | None:
        """Return the next chunk. Partitions with chunks are served round-robin.

        The caller then calls `advance_position`.
        """
        for topic_partition, state in self._states.items():
            if state.chunks and not state.paused:
                chunk = state.chunks.popleft()
                self._buffered_bytes[chunk.node_id] -= chunk.size_bytes
                self._states[topic_partition] = self._states.pop(topic_partition)
                return chunk
        return None

    def advance_position(self, topic: str, partition: int, next_offset: int) -> None:
        """Set the position to `next_offset`, after the consumer has received the records before this offset."""
        state = self._states.get((topic, partition))
        if state is not None:
            state.position = next_offset

    def _drop_chunks(self, state: _PartitionState) -> None:
        for chunk in state.chunks:
            self._buffered_bytes[chunk.node_id] -= chunk.size_bytes
        state.chunks.clear()


def _committed_spans(
    records: memoryview, from_offset: int, aborted: Sequence[tuple[int, int]]
) -> tuple[list[memoryview], int]:
    """Return slices of `records` without the batches of aborted transactions (KIP-98), and the next fetch offset.

    The next fetch offset is the offset after the last batch, or `from_offset` if `records` contains no batch. `aborted`
    lists (producer id, first offset) of each aborted transaction. The transaction ends at the producer's abort marker.
    """
    starts = sorted(aborted, key=lambda transaction: transaction[1])
    aborting: set[int] = set()
    spans: list[memoryview] = []
    span_start = span_end = 0
    next_offset = from_offset
    for position, header in iter_batches(records):
        while starts and starts[0][1] <= header.last_offset:
            aborting.add(starts.pop(0)[0])
        end = position + header.size_bytes
        next_offset = header.next_offset
        if header.is_control and _is_abort_marker(records, position, header):
            aborting.discard(header.producer_id)
        if header.is_transactional and not header.is_control and header.producer_id in aborting:
            if span_end > span_start:
                spans.append(records[span_start:span_end])
            span_start = end
        span_end = end
    if span_end > span_start:
        spans.append(records[span_start:span_end])
    return spans, next_offset


def _is_abort_marker(records: memoryview, position: int, header: BatchHeader) -> bool:
    keys = read_batch(records, position, header).keys
    try:
        return keys is not None and parse_control_key(keys[0]) == ControlType.ABORT
    except ValueError as error:
        raise CorruptBatchError(position, str(error)) from error
