"""The reader: fetched records as columns, by assignment or as a member of a consumer group.

A shell on one event loop: the fetcher reads ahead, the consumer group says what to read, and this hands out what
arrived as one `FetchedBatch` for each fetched run of a partition. `poll` parses in the loop's thread, `poll_blocking`
in the calling thread. Rebalances are carried out inside poll, in the thread that polls: callbacks may be plain
functions or coroutine functions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from headrace_broker.client import offsets as offset_api
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer_group import Change, ConsumerGroup, Rebalance
from headrace_broker.client.errors import ClientError, ClosedError, CorruptRecordsError
from headrace_broker.client.fetched import FetchedBatch, FetchedChunk
from headrace_broker.client.fetcher import Fetcher
from headrace_broker.client.group_offsets import GroupOffsets, at_positions
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.topic_names import TopicPartition

__all__ = ["FetchedBatch", "FetchedChunk", "OffsetAndMetadata", "Reader"]

logger = logging.getLogger(__name__)

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]


class Reader:
    """A consumer; open it with `open`, then `assign` or `subscribe`, `poll`, and `close`."""

    def __init__(self, cluster: Cluster, config: ClientConfig, *, owns_cluster: bool) -> None:
        self.cluster = cluster
        self._config = config
        self._owns_cluster = owns_cluster
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._news = asyncio.Event()
        self._offsets = GroupOffsets(cluster, config)
        self._fetcher = Fetcher(cluster, config, self._offsets.committed, self._news.set)
        self._core = self._fetcher.core
        self._group: ConsumerGroup | None = None
        self._callbacks: dict[Change, RebalanceCallback | None] = {}
        self._leftovers: dict[TopicPartition, FetchedChunk] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_poll_ms = cluster.now_ms()
        self._leaving: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_woken = False
        self._closed = False

    @classmethod
    async def open(cls, config: ClientConfig, *, cluster: Cluster | None = None) -> Reader:
        """Connect to the cluster (or share one). Raises NoBrokerError when no bootstrap server answers."""
        owns = cluster is None
        return cls(cluster or await Cluster.open(config), config, owns_cluster=owns)

    # -- what to read ------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group membership."""
        if self._group is not None:
            raise ClientError("assign: this reader is subscribed; one reader does either")
        wanted = list(partitions)
        self.cluster.track({topic for topic, _ in wanted})
        self._set_assignment(wanted)

    async def subscribe(
        self,
        topics: Sequence[str] | None = None,
        *,
        pattern: Callable[[str], bool] | None = None,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        discovery_interval_ms: float | None = None,
    ) -> None:
        """Join the group of group.id and read what it assigns, of these topics or of all whose name `pattern` accepts.

        `discovery_interval_ms` bounds how long a new topic, or new partitions, stay unseen (else metadata.max.age.ms).
        `on_lost` defaults to `on_revoked`. Raises ClientError without group.id.
        """
        group_id = self._config.group_id
        if not group_id:
            raise ClientError("subscribe: group.id is not configured")
        if (topics is None) == (pattern is None):
            raise ClientError("subscribe: give either topics or a pattern")
        if self._group is not None or self._core.assignment:
            raise ClientError("subscribe: this reader has an assignment or a subscription already")
        self._callbacks = {
            Change.ASSIGNED: on_assigned,
            Change.REVOKED: on_revoked,
            Change.LOST: on_lost or on_revoked,
        }
        if discovery_interval_ms is not None:
            self.cluster.refresh_at_least_every(discovery_interval_ms)
        self._group = ConsumerGroup(
            self.cluster, self._config, group_id, topics=topics, pattern=pattern, on_event=self._news.set
        )
        self._offsets.membership = self._group.membership
        self._last_poll_ms = self.cluster.now_ms()
        self._watch_polls()
        await self._group.start()

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return self._core.assignment

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these partitions until `resume`."""
        for topic_partition in partitions:
            self._core.pause(self._assigned(topic_partition))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """End the pause of these partitions."""
        for topic_partition in partitions:
            self._core.resume(self._assigned(topic_partition))
        self._news.set()
        self._fetcher.pump()

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions under pause."""
        return self._core.paused

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on reading a partition at `offset`."""
        self._leftovers.pop(self._assigned(topic_partition), None)
        self._fetcher.seek(topic_partition, offset)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on at the first record of these partitions (None = all assigned)."""
        await self._seek_to(partitions, offset_api.EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on behind the last record of these partitions (None = all assigned)."""
        await self._seek_to(partitions, offset_api.LATEST)

    async def position(self, topic_partition: TopicPartition) -> int:
        """Return the offset of the next record that poll hands out, finding it if need be. Raises ClientError."""
        self._assigned(topic_partition)
        held = self._leftovers.get(topic_partition)
        if held is not None:
            return held.position
        while self._core.position(topic_partition) is None:
            self._raise_error()
            await self._fetcher.find_position()
        position = self._core.position(topic_partition)
        assert position is not None
        return position

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions known so far: what `commit` without arguments commits."""
        found = {}
        for topic_partition in self._core.assignment:
            held = self._leftovers.get(topic_partition)
            position = held.position if held is not None else self._core.position(topic_partition)
            if position is not None:
                found[topic_partition] = position
        return found

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the high watermark that the last fetch told, None before the first."""
        return self._core.high_watermark(self._assigned(topic_partition))

    def _assigned(self, topic_partition: TopicPartition) -> TopicPartition:
        if topic_partition not in self._core.assignment:
            raise ClientError(f"{topic_partition[0]}-{topic_partition[1]} is not assigned to this reader")
        return topic_partition

    async def _seek_to(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        wanted = dict.fromkeys(self._core.assignment if partitions is None else partitions, timestamp)
        for topic_partition, listed in (await self._fetcher.list_offsets(wanted)).items():
            self.seek(topic_partition, listed.offset)

    # -- polling -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[FetchedBatch]:
        """Return what was fetched, waiting up to `timeout_ms` for something.

        At most `max_records` records; None = max.poll.records if that key was given, else whatever has arrived. Carries
        out rebalances. Raises ClientError: what is wrong with a partition or the group, then goes on with the rest.
        """
        limit = self._limit(max_records)
        deadline = self.cluster.now_ms() + timeout_ms
        while True:
            rebalance, chunks = await self._next(deadline, limit)
            if rebalance is not None:
                await self._carry_out(rebalance)
                continue
            waiting = self._waiting(chunks)
            batches = self._parse(waiting, limit)
            if batches or not waiting:
                return batches

    def poll_blocking(self, timeout_ms: float = 0, max_records: int | None = None) -> list[FetchedBatch]:
        """`poll` for another thread, which then does the parsing and runs the rebalance callbacks."""
        limit = self._limit(max_records)
        deadline = self.cluster.now_ms() + timeout_ms
        while True:
            rebalance, chunks = self.call(self._next, deadline, limit)
            if rebalance is not None:
                self._carry_out_blocking(rebalance)
                continue
            waiting = self._waiting(chunks)
            batches = self._parse(waiting, limit)
            if batches or not waiting:
                return batches

    async def poll_chunks(self, timeout_ms: float = 0) -> list[FetchedChunk]:
        """`poll` without parsing: what has arrived, for another thread to take the records from.

        The reader's positions are behind the chunks. Use either this or the other polls of a reader.
        """
        deadline = self.cluster.now_ms() + timeout_ms
        while True:
            rebalance, chunks = await self._next(deadline, None)
            if rebalance is None:
                return chunks
            await self._carry_out(rebalance)

    def keep_alive(self) -> None:
        """What was polled is still being worked on: the time until the next poll counts from now."""
        self._last_poll_ms = self.cluster.now_ms()

    @property
    def records_max(self) -> int | None:
        """max.poll.records if that key was given."""
        return self._config.max_poll_records if "max.poll.records" in self._config.explicit else None

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Run one of this reader's methods in its loop's thread, from another thread, and return what it returns."""
        assert threading.get_ident() != self._loop_thread, "this would block the reader's own loop"

        async def run() -> Any:
            result = method(*arguments)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def wake_up(self) -> None:
        """Have a poll that waits, or the next one, return at once; from any thread."""
        self._loop.call_soon_threadsafe(self._wake_up)

    def _wake_up(self) -> None:
        self._is_woken = True
        self._news.set()

    def _limit(self, max_records: int | None) -> int | None:
        return self.records_max if max_records is None else max_records

    async def _next(self, deadline_ms: float, limit: int | None) -> tuple[Rebalance | None, list[FetchedChunk]]:
        """Wait until there is a rebalance to carry out, records to parse, an error to raise, or the time is over."""
        await self._polled()
        while True:
            self._raise_error()
            if self._group is not None and self._group.rebalances:
                return self._group.rebalances.popleft(), []
            chunks = self._take_chunks(limit)
            left = deadline_ms - self.cluster.now_ms()
            if chunks or self._ready_leftovers() or left <= 0 or self._is_woken:
                self._is_woken = False
                return None, chunks
            self._news.clear()
            try:
                async with asyncio.timeout(left / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass  # the loop looks once more, then returns

    def _take_chunks(self, limit: int | None) -> list[FetchedChunk]:
        """Take what was read ahead: all of it, or with a limit one chunk, when nothing is left of the one before."""
        chunks: list[FetchedChunk] = []
        if limit is not None and self._ready_leftovers():
            return chunks
        while (chunk := self._core.take()) is not None:
            self._core.taken(chunk.topic, chunk.partition, chunk.next_offset)
            chunks.append(FetchedChunk(chunk, verify_crc=self._config.check_crcs, on_corrupt=self._go_back))
            if limit is not None:
                break
        if chunks:
            self._fetcher.pump()
        return chunks

    def _ready_leftovers(self) -> list[TopicPartition]:
        if not self._leftovers:
            return []
        paused = self._core.paused
        return [topic_partition for topic_partition in self._leftovers if topic_partition not in paused]

    def _go_back(self, topic_partition: TopicPartition, offset: int) -> None:
        self._loop.call_soon_threadsafe(self._fetcher.go_back, topic_partition, offset)

    def _waiting(self, chunks: list[FetchedChunk]) -> deque[FetchedChunk]:
        """What is left from before, then the chunks."""
        return deque([*(self._leftovers.pop(item) for item in self._ready_leftovers()), *chunks])

    def _parse(self, waiting: deque[FetchedChunk], limit: int | None) -> list[FetchedBatch]:
        """Return what the chunks hold, up to the limit; keep the rest.

        Raises CorruptRecordsError, or leaves it for the next poll when there are records to return.
        """
        batches: list[FetchedBatch] = []
        try:
            while waiting and (limit is None or limit > 0):
                batch = waiting[0].take(limit)
                if batch is None:
                    waiting.popleft()
                    continue
                batches.append(batch)
                limit = None if limit is None else limit - len(batch)
        except CorruptRecordsError as error:
            waiting.popleft()
            if not batches:
                raise
            self._fetcher.errors.append(error)
        finally:
            self._leftovers |= {(chunk.topic, chunk.partition): chunk for chunk in waiting}
        return batches

    def _raise_error(self) -> None:
        if self._closed:
            raise ClosedError("the reader is closed")
        if self._fetcher.errors:
            raise self._fetcher.errors.popleft()
        if self._group is not None and self._group.error is not None:
            raise self._group.error

    async def _polled(self) -> None:
        """Note that the reader is alive; commit if it is time; join again after having been away for too long."""
        now_ms = self._last_poll_ms = self.cluster.now_ms()
        if self._leaving is not None and self._group is not None:
            await self._leaving
            self._leaving = None
            self._group.membership.start()
            self._watch_polls()
        if self._offsets.is_due(now_ms):
            self._spawn(self._offsets.commit_by_itself(self.positions()))

    def _watch_polls(self) -> None:
        """Leave the group when poll is not called for max.poll.interval.ms, so that others get the partitions."""
        idle_ms = self.cluster.now_ms() - self._last_poll_ms
        if idle_ms >= self._config.max_poll_interval_ms and self._group is not None:
            logger.warning(
                "group %s: poll was not called for %.0f ms (max.poll.interval.ms=%d): leaving the group",
                self._config.group_id,
                idle_ms,
                self._config.max_poll_interval_ms,
            )
            self._group.rebalances.clear()
            self._leaving = self._loop.create_task(self._group.membership.leave("poll was not called in time"))
            return
        left = self._config.max_poll_interval_ms - idle_ms
        self._idle_timer = self._loop.call_later(left / 1000, self._watch_polls)

    # -- rebalances --------------------------------------------------------------------------------------------------

    async def _carry_out(self, rebalance: Rebalance) -> None:
        await self._begin(rebalance)
        try:
            callback = self._callbacks.get(rebalance.change)
            if callback is not None:
                result = callback(rebalance.partitions)
                if result is not None:
                    await result
        finally:
            self._end(rebalance)

    def _carry_out_blocking(self, rebalance: Rebalance) -> None:
        self.call(self._begin, rebalance)
        try:
            callback = self._callbacks.get(rebalance.change)
            if callback is not None:
                result = callback(rebalance.partitions)
                if result is not None:
                    self.call(lambda: result)
        finally:
            self.call(self._end, rebalance)

    async def _begin(self, rebalance: Rebalance) -> None:
        if rebalance.change is Change.ASSIGNED:
            self._set_assignment([*self._core.assignment, *rebalance.partitions])
        elif rebalance.change is Change.REVOKED and self._offsets.commits_by_itself:
            await self._offsets.commit_by_itself(self.positions())

    def _end(self, rebalance: Rebalance) -> None:
        if rebalance.change is not Change.ASSIGNED:
            gone = set(rebalance.partitions)
            self._set_assignment([kept for kept in self._core.assignment if kept not in gone])
        if not rebalance.done.done():
            rebalance.done.set_result(None)

    def _set_assignment(self, partitions: list[TopicPartition]) -> None:
        self._core.assign(partitions)
        assigned = set(partitions)
        for topic_partition in [held for held in self._leftovers if held not in assigned]:
            del self._leftovers[topic_partition]
        self._fetcher.pump()

    # -- committed offsets -------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets (None = the positions) for group.id.

        Raises CommitFailedError when the group went on without this member, else BrokerError or TimedOutError.
        """
        await self._offsets.commit(at_positions(self.positions()) if offsets is None else offsets)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what group.id has committed for these partitions, None where nothing."""
        return await self._offsets.committed(partitions)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, offset_api.ListedOffset]:
        """Return the first offset at or after each timestamp, or at `offsets.EARLIEST` or `LATEST`."""
        return await self._fetcher.list_offsets(timestamps)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self, *, leave_group: bool = True, timeout_ms: float = 10_000) -> None:
        """Commit (with enable.auto.commit), leave the group, and let go of the connections.

        Commit and leave get `timeout_ms` each; a broker that cannot be reached does not hold the end up for longer.
        """
        if self._closed:
            return
        if self._offsets.commits_by_itself and self._core.assignment:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._offsets.commit_by_itself(self.positions())
            except TimeoutError:
                logger.warning("auto-commit: not done within %.0f ms while closing", timeout_ms)
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._fetcher.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._group is not None and leave_group:
            await self._group.leave("the reader was closed", timeout_ms)
        self._news.set()
        if self._owns_cluster:
            await self.cluster.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
