"""What to fetch from whom, and what to do with the answers: positions, prefetch, resets, aborted transactions.

Pure: the shell hands in answers (raw record bytes by reference, error codes) and asks for the next fetches.
Guarantees:
- The chunks of a partition come out in log order, each offset once, whatever was paused, sought or re-elected
  meanwhile: an answer to a fetch from a position that is not wanted any more is thrown away.
- At most one fetch of a node is in flight, and the next one leaves only while less than one answer of that node waits
  to be taken: one response is read ahead, no more is held in memory.
- Where the leader names a replica to read from (KIP-392), fetches go there until the time given is over, the leader is
  another one, or the replica fails: then they go to the leader, which may name one anew (after a failure not at once).
- A position moves over control batches, compaction gaps and a batch's unwanted beginning.

State belongs to one owner.
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
_AT_LEADER_MS = 1000.0
_NEWER_LEADER_MS = 30_000.0


class Answer(Enum):
    """What the shell has to do about one partition's part of an answer."""

    NOTHING = "no records, or an answer that came too late"
    RECORDS = "a chunk was added"
    REFRESH = "the leader is another one: refresh the metadata"
    RESET = "the position is outside the log: reset_needed() tells, or fail when there is no reset policy"
    ERROR = "tell the reader"


@dataclass(slots=True, eq=False)
class Chunk:
    """Fetched record bytes of one partition: `spans` of whole batches that the reader may see, in order.

    A span ends with the batch that makes it `SPAN_RECORDS_MIN` records: a piece of work that fits into a CPU's cache.
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
class FetchPartition:
    """One partition of a fetch, as it was asked."""

    topic: str
    partition: int
    fetch_offset: int
    leader_epoch: int
    max_bytes: int
    is_from_leader: bool = True
    may_be_sent_away: bool = True


@dataclass(frozen=True, slots=True)
class _Preferred:
    """The replica that a leader wants to be read from in its stead."""

    node_id: int
    leader_epoch: int
    until_ms: float


@dataclass(slots=True, eq=False)
class _State:
    position: int | None = None
    """Offset of the next record to hand out; None until it is known."""
    fetch_offset: int = -1
    chunks: deque[Chunk] = field(default_factory=deque)
    paused: bool = False
    high_watermark: int = -1
    log_start_offset: int = -1
    max_bytes: int = 0
    retry_at_ms: float = 0.0
    attempts: int = 0
    preferred: _Preferred | None = None
    at_leader_until_ms: float = 0.0
    """A replica failed: until then the leader is to answer itself."""
    position_epoch: int = -1
    """The leader epoch that the position is known from: who led before may not have come so far, and not know it."""
    newer_leader_by_ms: float = 0.0


class FetchCore:
    """Positions and read-ahead of the assigned partitions."""

    def __init__(
        self, *, partition_bytes_max: int, read_committed: bool = False, backoff_ms: Callable[[int], float]
    ) -> None:
        self._partition_bytes_max = partition_bytes_max
        self._read_committed = read_committed
        self._backoff_ms = backoff_ms
        self.assignments = 0
        """How often a partition was assigned: what was looked up for a position before counts for no later one."""
        self._states: dict[TopicPartition, _State] = {}
        self._in_flight: set[int] = set()
        self._waiting: dict[int, int] = {}
        self._response_bytes: dict[int, int] = {}

    # -- assignment and positions ------------------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read."""
        return list(self._states)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those that stay keep position, pause and read-ahead."""
        wanted = dict.fromkeys(partitions)
        for topic_partition in [known for known in self._states if known not in wanted]:
            self._drop_chunks(self._states.pop(topic_partition))
        for topic_partition in wanted:
            if topic_partition not in self._states:
                self._states[topic_partition] = _State(max_bytes=self._partition_bytes_max)
                self.assignments += 1

    def without_position(self) -> list[TopicPartition]:
        """Return the partitions that need a committed offset or a reset before they can be fetched."""
        return [topic_partition for topic_partition, state in self._states.items() if state.position is None]

    def seek(self, topic_partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Go on at `offset`, which a leader of `leader_epoch` has told (-1 = nobody knows); what was read ahead is
        thrown away. Raises KeyError for a partition not assigned.
        """
        state = self._states[topic_partition]
        self._drop_chunks(state)
        state.position = state.fetch_offset = offset
        state.position_epoch, state.newer_leader_by_ms = leader_epoch, 0.0
        state.retry_at_ms, state.attempts = 0.0, 0

    def forget_position(self, topic_partition: TopicPartition) -> None:
        """Have the position found anew."""
        state = self._states[topic_partition]
        self._drop_chunks(state)
        state.position = state.preferred = None

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset of the next record to hand out, None when not known yet. Raises KeyError."""
        return self._states[topic_partition].position

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the high watermark last seen, None when none was."""
        value = self._states[topic_partition].high_watermark
        return None if value < 0 else value

    def pause(self, topic_partition: TopicPartition) -> None:
        """Hand out nothing of the partition until `resume`; what was read ahead is kept."""
        self._states[topic_partition].paused = True

    def resume(self, topic_partition: TopicPartition) -> None:
        """End a pause."""
        self._states[topic_partition].paused = False

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions under pause."""
        return [topic_partition for topic_partition, state in self._states.items() if state.paused]

    # -- fetching ----------------------------------------------------------------------------------------------------

    def plan(
        self,
        now_ms: float,
        leader_of: Callable[[str, int], tuple[int, int] | None],
        is_ready: Callable[[int], bool],
        is_replica: Callable[[str, int, int], bool] = lambda topic, partition, node_id: True,
    ) -> tuple[dict[int, list[FetchPartition]], set[str]]:
        """Return ({node: partitions to fetch from it now}, topics whose metadata has to be refreshed).

        `leader_of` returns (node id, leader epoch), `is_replica` whether a broker is known as a live replica. Each plan
        counts as in flight until `fetch_done`.
        """
        plans: dict[int, list[FetchPartition]] = {}
        outdated: set[str] = set()
        for (topic, partition), state in self._states.items():
            if state.position is None or state.paused or now_ms < state.retry_at_ms:
                continue
            leader = leader_of(topic, partition)
            if leader is None:
                outdated.add(topic)
                continue
            node_id, leader_epoch = leader
            if 0 <= leader_epoch < state.position_epoch and self._waits_for_newer(state, now_ms):
                outdated.add(topic)
                continue
            preferred = state.preferred
            if preferred is not None:
                if now_ms >= preferred.until_ms or preferred.leader_epoch != leader_epoch:
                    preferred = state.preferred = None
                elif not is_replica(topic, partition, preferred.node_id):
                    self._leave_replica(state, now_ms)
                    preferred = None
                    outdated.add(topic)
                else:
                    node_id = preferred.node_id
            if node_id not in self._in_flight and not self._is_full(node_id) and is_ready(node_id):
                asked = FetchPartition(
                    topic,
                    partition,
                    state.fetch_offset,
                    leader_epoch,
                    state.max_bytes,
                    is_from_leader=preferred is None,
                    may_be_sent_away=now_ms >= state.at_leader_until_ms,
                )
                plans.setdefault(node_id, []).append(asked)
        self._in_flight.update(plans)
        self._take_turns(plans)
        return plans, outdated

    def fetch_done(self, node_id: int) -> None:
        """The node answered, or the connection broke; each partition's part is handed in beside this."""
        self._in_flight.discard(node_id)

    def retry_at_ms(self, now_ms: float) -> float | None:
        """Return when the next partition leaves its back-off, None when none is in one."""
        waits = [state.retry_at_ms for state in self._states.values() if state.retry_at_ms > now_ms]
        return min(waits, default=None)

    def _waits_for_newer(self, state: _State, now_ms: float) -> bool:
        """Whether to wait for metadata of the position's epoch: it may be that of a topic that is no more."""
        if not state.newer_leader_by_ms:
            state.newer_leader_by_ms = now_ms + _NEWER_LEADER_MS
        return now_ms < state.newer_leader_by_ms

    def _is_full(self, node_id: int) -> bool:
        return self._waiting.get(node_id, 0) > 0 and self._waiting[node_id] >= self._response_bytes.get(node_id, 0)

    def _take_turns(self, plans: dict[int, list[FetchPartition]]) -> None:
        """Put partitions that were asked for first behind the others, or fetch.max.bytes would starve the last ones."""
        for asked in plans.values():
            if len(asked) > 1:
                key = (asked[0].topic, asked[0].partition)
                self._states[key] = self._states.pop(key)

    # -- answers -----------------------------------------------------------------------------------------------------

    def receive(
        self,
        node_id: int,
        asked: FetchPartition,
        records: memoryview | None,
        *,
        high_watermark: int,
        log_start_offset: int = -1,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> Answer:
        """Take a partition's records; `aborted` = (producer id, first offset). Raises CorruptBatchError."""
        state = self._wanted(asked)
        if state is None:
            return Answer.NOTHING
        state.attempts = 0
        state.high_watermark = high_watermark
        state.log_start_offset = log_start_offset
        if not records:
            return Answer.NOTHING
        spans, next_offset = self._visible(records, asked.fetch_offset, aborted)
        if next_offset <= asked.fetch_offset:
            self._grow(state, records)
            return Answer.NOTHING
        state.max_bytes = self._partition_bytes_max
        chunk = Chunk(
            asked.topic,
            asked.partition,
            spans,
            from_offset=asked.fetch_offset,
            next_offset=next_offset,
            high_watermark=high_watermark,
            size_bytes=len(records),
            node_id=node_id,
        )
        state.fetch_offset = next_offset
        state.chunks.append(chunk)
        self._waiting[node_id] = self._waiting.get(node_id, 0) + chunk.size_bytes
        return Answer.RECORDS

    def prefer(self, asked: FetchPartition, node_id: int, until_ms: float) -> None:
        """The leader answered that this replica had better be read from."""
        state = self._wanted(asked)
        if state is not None:
            state.attempts = 0
            state.preferred = _Preferred(node_id, asked.leader_epoch, until_ms)

    def avoid(self, node_id: int, now_ms: float) -> None:
        """The broker is not there: what was to be read from it as a mere replica is read from leaders."""
        for state in self._states.values():
            if state.preferred is not None and state.preferred.node_id == node_id:
                self._leave_replica(state, now_ms)

    def _leave_replica(self, state: _State, now_ms: float) -> None:
        state.preferred = None
        state.at_leader_until_ms = now_ms + _AT_LEADER_MS

    def response_size(self, node_id: int, size_bytes: int) -> None:
        """Tell how many bytes of records the node's last answer held: the measure of one response ahead."""
        self._response_bytes[node_id] = size_bytes

    def refuse(self, asked: FetchPartition, code: ErrorCode, now_ms: float) -> Answer:
        """Take a partition's error."""
        state = self._wanted(asked)
        if state is None:
            return Answer.NOTHING
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and asked.is_from_leader:
            return Answer.RESET
        self._failed(state, asked, now_ms)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:  # a replica may lack what the leader has
            return Answer.NOTHING
        if code in _LEADER_ERRORS:
            return Answer.REFRESH
        return Answer.NOTHING if code.is_retriable else Answer.ERROR

    def lose(self, asked: FetchPartition, now_ms: float) -> None:
        """The connection broke before the answer."""
        state = self._wanted(asked)
        if state is not None:
            self._failed(state, asked, now_ms)

    def _failed(self, state: _State, asked: FetchPartition, now_ms: float) -> None:
        """Ask the same broker again after a pause, or the leader at once."""
        if asked.is_from_leader:
            self._pause(state, now_ms)
        else:
            self._leave_replica(state, now_ms)

    def back_off(self, topic_partition: TopicPartition, now_ms: float) -> None:
        """Leave a partition alone for a while: its position could not be found."""
        state = self._states.get(topic_partition)
        if state is not None:
            self._pause(state, now_ms)

    def _pause(self, state: _State, now_ms: float) -> None:
        state.retry_at_ms = now_ms + self._backoff_ms(state.attempts)
        state.attempts += 1

    def _wanted(self, asked: FetchPartition) -> _State | None:
        state = self._states.get((asked.topic, asked.partition))
        if state is None or state.position is None or state.fetch_offset != asked.fetch_offset:
            return None
        return state

    def _grow(self, state: _State, records: memoryview) -> None:
        """Nothing whole came: the first batch is larger than what was asked for, so ask for more."""
        needed = read_header(records).size_bytes if len(records) >= 61 else 0
        state.max_bytes = min(max(state.max_bytes * 2, needed), 2**31 - 1)

    def _visible(
        self, records: memoryview, from_offset: int, aborted: Sequence[tuple[int, int]]
    ) -> tuple[list[memoryview], int]:
        """Return (runs of batches to read, offset after the last whole batch)."""
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

    # -- handing out -------------------------------------------------------------------------------------------------

    def take(self) -> Chunk | None:
        """Return the next chunk, partitions in turn; the position moves on when `taken` is called."""
        for topic_partition, state in self._states.items():
            if state.chunks and not state.paused:
                chunk = state.chunks.popleft()
                self._waiting[chunk.node_id] -= chunk.size_bytes
                self._states[topic_partition] = self._states.pop(topic_partition)
                return chunk
        return None

    def taken(self, topic: str, partition: int, next_offset: int) -> None:
        """The reader has everything before `next_offset`."""
        state = self._states.get((topic, partition))
        if state is not None:
            state.position = next_offset

    def _drop_chunks(self, state: _State) -> None:
        for chunk in state.chunks:
            self._waiting[chunk.node_id] -= chunk.size_bytes
        state.chunks.clear()


def _committed_spans(
    records: memoryview, from_offset: int, aborted: Sequence[tuple[int, int]]
) -> tuple[list[memoryview], int]:
    """Leave out the batches of aborted transactions (KIP-98): each ends with its producer's abort marker."""
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
