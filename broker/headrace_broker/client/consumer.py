"""The consumer: fetches records and returns them as columns.

Its partitions are assigned by the caller or, if it is a member of a consumer group, by the group.

It runs on one event loop. The fetcher prefetches records, the consumer group determines the assignment, and poll
returns one `FetchedBatch` for each run of consecutive records. `poll` parses records in the loop's thread, and
`poll_blocking` parses them in the calling thread. Both methods carry out rebalances, and call the rebalance callbacks
in the thread in which they parse records. Callbacks can be plain functions or coroutine functions.
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
from headrace_broker.client.committed_offsets import CommittedOffsets, offsets_of_positions
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer_group import Change, ConsumerGroup, Rebalance
from headrace_broker.client.errors import ClientError, ClosedError, CorruptRecordsError
from headrace_broker.client.fetched import FetchedBatch, FetchedChunk
from headrace_broker.client.fetcher import Fetcher
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.topic_names import TopicPartition

__all__ = ["FetchedBatch", "FetchedChunk", "OffsetAndMetadata", "Consumer"]

logger = logging.getLogger(__name__)

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]


class Consumer:
    """A Kafka consumer; open it with `open`, then `assign` or `subscribe`, `poll`, and `close`."""

    def __init__(self, cluster: Cluster, config: ClientConfig, *, owns_cluster: bool) -> None:
        self.cluster = cluster
        self._config = config
        self._owns_cluster = owns_cluster
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._update_event = asyncio.Event()
        self._offsets = CommittedOffsets(cluster, config)
        self._fetcher = Fetcher(cluster, config, self._offsets.committed, self._update_event.set)
        self._core = self._fetcher.core
        self._group: ConsumerGroup | None = None
        self._callbacks: dict[Change, RebalanceCallback | None] = {}
        self._leftovers: dict[TopicPartition, FetchedChunk] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._last_poll_ms = cluster.now_ms()
        self._leaving: asyncio.Task[bool] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_woken = False
        self._closed = False

    @classmethod
    async def open(cls, config: ClientConfig, *, cluster: Cluster | None = None) -> Consumer:
        """Connect to the cluster, or use `cluster` if set. Raises TimedOutError if no bootstrap server responds."""
        owns = cluster is None
        return cls(cluster or await Cluster.open(config), config, owns_cluster=owns)

    # -- assignment and positions ------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group membership."""
        if self._group is not None:
            raise ClientError("assign: this consumer is subscribed; use another consumer for a manual assignment")
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
        """Join the consumer group and subscribe to these topics, or to all topics whose names `pattern` accepts.

        New topics and partitions are discovered within `discovery_interval_ms` (default: metadata.max.age.ms).
        `on_lost` defaults to `on_revoked`. Raises ClientError if group.id is not configured.
        """
        group_id = self._config.group_id
        if not group_id:
            raise ClientError("subscribe: group.id is not configured")
        if (topics is None) == (pattern is None):
            raise ClientError("subscribe: pass either topics or a pattern")
        if self._group is not None or self._core.assignment:
            raise ClientError("subscribe: this consumer already has an assignment or a subscription")
        self._callbacks = {
            Change.ASSIGNED: on_assigned,
            Change.REVOKED: on_revoked,
            Change.LOST: on_lost or on_revoked,
        }
        if discovery_interval_ms is not None:
            self.cluster.refresh_at_least_every(discovery_interval_ms)
        self._group = ConsumerGroup(
            self.cluster, self._config, group_id, topics=topics, pattern=pattern, on_event=self._update_event.set
        )
        self._offsets.membership = self._group.membership
        self._last_poll_ms = self.cluster.now_ms()
        self._check_poll_interval()
        await self._group.start()

    @property
    def member_id(self) -> str:
        """The consumer's member id in its group, or an empty string while the consumer is not a member."""
        return "" if self._group is None else self._group.membership.generation.member_id

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._core.assignment

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pause these partitions. Poll returns no records of these partitions until `resume` is called."""
        for topic_partition in partitions:
            self._core.pause(self._check_assigned(topic_partition))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Resume these paused partitions."""
        for topic_partition in partitions:
            self._core.resume(self._check_assigned(topic_partition))
        self._update_event.set()
        self._fetcher.pump()

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return self._core.paused

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Set the position of a partition to `offset`."""
        self._leftovers.pop(self._check_assigned(topic_partition), None)
        self._fetcher.seek(topic_partition, offset)

    def set_end(self, topic_partition: TopicPartition, end_offset: int | None) -> None:
        """Stop fetching at `end_offset` (None = never). Poll may still return later records of the last fetch."""
        self._core.set_end(self._check_assigned(topic_partition), end_offset)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the positions of these partitions (None = all assigned) to their first record."""
        await self._seek_to(partitions, offset_api.EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the positions of these partitions (None = all assigned) to the end of the log."""
        await self._seek_to(partitions, offset_api.LATEST)

    async def position(self, topic_partition: TopicPartition) -> int:
        """Return the offset of the next record that poll returns; look it up if necessary. Raises ClientError."""
        self._check_assigned(topic_partition)
        leftover = self._leftovers.get(topic_partition)
        if leftover is not None:
            return leftover.position
        while self._core.position(topic_partition) is None:
            self._raise_error()
            await self._fetcher.wait_for_positions()
        position = self._core.position(topic_partition)
        assert position is not None
        return position

    def positions(self) -> dict[TopicPartition, int]:
        """Return the known positions. These are the positions that `commit` without arguments commits."""
        found = {}
        for topic_partition in self._core.assignment:
            leftover = self._leftovers.get(topic_partition)
            position = leftover.position if leftover is not None else self._core.position(topic_partition)
            if position is not None:
                found[topic_partition] = position
        return found

    def high_watermark(self, topic_partition: TopicPartition) -> int | None:
        """Return the high watermark from the last fetch, or None before the first fetch."""
        return self._core.high_watermark(self._check_assigned(topic_partition))

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the known high watermarks of the assigned partitions, from the last fetch of each partition."""
        return self._core.high_watermarks()

    def _check_assigned(self, topic_partition: TopicPartition) -> TopicPartition:
        if topic_partition not in self._core.assignment:
            raise ClientError(f"{topic_partition[0]}-{topic_partition[1]} is not assigned to this consumer")
        return topic_partition

    async def _seek_to(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        wanted = dict.fromkeys(self._core.assignment if partitions is None else partitions, timestamp)
        for topic_partition, listed in (await self._fetcher.list_offsets(wanted)).items():
            self.seek(topic_partition, listed.offset)

    # -- polling -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[FetchedBatch]:
        """Return fetched records. If no records are buffered, wait up to `timeout_ms`.

        Returns at most `max_records` records. If `max_records` is None, the limit is max.poll.records. If
        max.poll.records is not set, returns all prefetched records. Performs pending rebalances. Raises ClientError if
        the fetch of a partition or the group membership has failed. If the fetch of a partition has failed, the next
        poll continues with the other partitions.
        """
        limit = self._limit(max_records)
        deadline = self.cluster.now_ms() + timeout_ms
        while True:
            rebalance, chunks = await self._next(deadline, limit)
            if rebalance is not None:
                await self._carry_out(rebalance)
                continue
            waiting = self._pending_chunks(chunks)
            batches = self._parse(waiting, limit)
            if batches or not waiting:
                return batches

    def poll_blocking(self, timeout_ms: float = 0, max_records: int | None = None) -> list[FetchedBatch]:
        """Poll from another thread, which parses the records and runs the rebalance callbacks. See `poll`."""
        limit = self._limit(max_records)
        deadline = self.cluster.now_ms() + timeout_ms
        while True:
            rebalance, chunks = self.call(self._next, deadline, limit)
            if rebalance is not None:
                self._carry_out_blocking(rebalance)
                continue
            waiting = self._pending_chunks(chunks)
            batches = self._parse(waiting, limit)
            if batches or not waiting:
                return batches

    async def poll_chunks(self, timeout_ms: float = 0) -> list[FetchedChunk]:
        """Poll as `poll` does, but return unparsed chunks, which another thread can parse.

        This method sets the consumer's positions to the end of the chunks. Do not use both this method and another poll
        method of the same consumer.
        """
        deadline = self.cluster.now_ms() + timeout_ms
        while True:
            rebalance, chunks = await self._next(deadline, None)
            if rebalance is None:
                return chunks
            await self._carry_out(rebalance)

    async def take_part_in_rebalances(self) -> None:
        """Perform pending rebalances. Does not return records or restart the max.poll.interval.ms timer."""
        while self._group is not None and self._group.rebalances and not self._closed:
            await self._carry_out(self._group.rebalances.popleft())

    def keep_alive(self) -> None:
        """Restart the max.poll.interval.ms timer. Call this if processing the polled records takes a long time."""
        self._last_poll_ms = self.cluster.now_ms()

    @property
    def records_max(self) -> int | None:
        """max.poll.records if that key is set, else None."""
        return self._config.max_poll_records if "max.poll.records" in self._config.explicit else None

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Run a method of this consumer in the event loop's thread, and return the result.

        Call this from any thread except the event loop's thread.
        """
        assert threading.get_ident() != self._loop_thread, "call would block the consumer's event loop"

        async def run() -> Any:
            result = method(*arguments)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def wake_up(self) -> None:
        """Make the current or next poll return immediately. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._wake_up)

    def _wake_up(self) -> None:
        self._is_woken = True
        self._update_event.set()

    def _limit(self, max_records: int | None) -> int | None:
        return self.records_max if max_records is None else max_records

    async def _next(self, deadline_ms: float, limit: int | None) -> tuple[Rebalance | None, list[FetchedChunk]]:
        """Return a pending rebalance or the fetched chunks; wait for one of them until the deadline.

        If the poll has a record limit (`limit`), return at most one chunk. Raises a pending error. After `wake_up`,
        return without waiting.
        """
        await self._on_poll()
        while True:
            self._raise_error()
            if self._group is not None and self._group.rebalances:
                return self._group.rebalances.popleft(), []
            chunks = self._drain_chunks(limit)
            left = deadline_ms - self.cluster.now_ms()
            if chunks or self._ready_leftovers() or left <= 0 or self._is_woken:
                self._is_woken = False
                return None, chunks
            self._update_event.clear()
            try:
                async with asyncio.timeout(left / 1000):
                    await self._update_event.wait()
            except TimeoutError:
                pass  # the next iteration checks for records once more, and then returns

    def _drain_chunks(self, limit: int | None) -> list[FetchedChunk]:
        """Return all prefetched chunks, or at most one chunk if the poll has a record limit (`limit`).

        If the poll has a record limit, return no chunk while an earlier chunk has unread records.
        """
        chunks: list[FetchedChunk] = []
        if limit is not None and self._ready_leftovers():
            return chunks
        while (chunk := self._core.next_chunk()) is not None:
            self._core.advance_position(chunk.topic, chunk.partition, chunk.next_offset)
            chunks.append(FetchedChunk(chunk, verify_crc=self._config.check_crcs, on_corrupt=self._refetch))
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

    def _refetch(self, topic_partition: TopicPartition, offset: int) -> None:
        self._loop.call_soon_threadsafe(self._fetcher.refetch_after_backoff, topic_partition, offset)

    def _pending_chunks(self, chunks: list[FetchedChunk]) -> deque[FetchedChunk]:
        """Return the chunks left over from earlier polls, followed by `chunks`."""
        return deque([*(self._leftovers.pop(item) for item in self._ready_leftovers()), *chunks])

    def _parse(self, waiting: deque[FetchedChunk], limit: int | None) -> list[FetchedBatch]:
        """Return the records of the chunks, up to the limit, and keep the remaining chunks.

        Raises CorruptRecordsError if the first records are corrupt. If there are valid records before the corrupt
        records, this call returns the valid records, and the next poll raises the error.
        """
        batches: list[FetchedBatch] = []
        try:
            while waiting and (limit is None or limit > 0):
                batch = waiting[0].next_batch(limit)
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
            raise ClosedError("the consumer is closed")
        if self._fetcher.errors:
            raise self._fetcher.errors.popleft()
        if self._group is not None and self._group.error is not None:
            raise self._group.error

    async def _on_poll(self) -> None:
        """Restart the max.poll.interval.ms timer, and do the work that is due at the start of a poll.

        Rejoin the group if this member has left it, and start an auto-commit if auto.commit.interval.ms has passed.
        """
        now_ms = self._last_poll_ms = self.cluster.now_ms()
        if self._leaving is not None and self._group is not None:
            await self._leaving
            self._leaving = None
            self._group.membership.start()
            self._check_poll_interval()
        if self._offsets.restart_interval_if_due(now_ms):
            self._spawn(self._offsets.auto_commit(self.positions()))

    def _check_poll_interval(self) -> None:
        """Leave the group if poll is not called for max.poll.interval.ms. Other members then receive the partitions."""
        idle_ms = self.cluster.now_ms() - self._last_poll_ms
        if idle_ms >= self._config.max_poll_interval_ms and self._group is not None:
            logger.warning(
                "Group %s: poll was not called for %.0f ms (max.poll.interval.ms=%d); leaving the group",
                self._config.group_id,
                idle_ms,
                self._config.max_poll_interval_ms,
            )
            self._group.rebalances.clear()
            self._leaving = self._loop.create_task(
                self._group.membership.leave("poll was not called within max.poll.interval.ms")
            )
            return
        left = self._config.max_poll_interval_ms - idle_ms
        self._idle_timer = self._loop.call_later(left / 1000, self._check_poll_interval)

    # -- rebalances --------------------------------------------------------------------------------------------------

    async def _carry_out(self, rebalance: Rebalance) -> None:
        await self._start_rebalance(rebalance)
        try:
            callback = self._callbacks.get(rebalance.change)
            if callback is not None:
                result = callback(rebalance.partitions)
                if result is not None:
                    await result
        finally:
            self._finish_rebalance(rebalance)

    def _carry_out_blocking(self, rebalance: Rebalance) -> None:
        self.call(self._start_rebalance, rebalance)
        try:
            callback = self._callbacks.get(rebalance.change)
            if callback is not None:
                result = callback(rebalance.partitions)
                if result is not None:
                    self.call(lambda: result)
        finally:
            self.call(self._finish_rebalance, rebalance)

    async def _start_rebalance(self, rebalance: Rebalance) -> None:
        if rebalance.change is Change.ASSIGNED:
            self._set_assignment([*self._core.assignment, *rebalance.partitions])
        elif rebalance.change is Change.REVOKED and self._offsets.auto_commit_enabled:
            await self._offsets.auto_commit(self.positions())

    def _finish_rebalance(self, rebalance: Rebalance) -> None:
        if rebalance.change is not Change.ASSIGNED:
            removed = set(rebalance.partitions)
            self._set_assignment([item for item in self._core.assignment if item not in removed])
        if not rebalance.done.done():
            rebalance.done.set_result(None)

    def _set_assignment(self, partitions: list[TopicPartition]) -> None:
        self._core.assign(partitions)
        assigned = set(partitions)
        for topic_partition in [leftover for leftover in self._leftovers if leftover not in assigned]:
            del self._leftovers[topic_partition]
        self._fetcher.pump()

    # -- committed offsets -------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> None:
        """Commit these offsets (None = the current positions) for the consumer's group.

        Raises CommitFailedError if the group rebalanced without this member, otherwise BrokerError or TimedOutError.
        """
        await self._offsets.commit(offsets_of_positions(self.positions()) if offsets is None else offsets)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offset for each partition, or None if there is no committed offset."""
        return await self._offsets.committed(partitions)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, offset_api.ListedOffset]:
        """Return, for each partition, the offset of the first record at or after the timestamp.

        A timestamp can also be `offsets.EARLIEST` or `LATEST`.
        """
        return await self._fetcher.list_offsets(timestamps)

    # -- closing -----------------------------------------------------------------------------------------------------

    async def close(self, *, leave_group: bool = True, timeout_ms: float = 10_000) -> None:
        """Commit (with enable.auto.commit), leave the group, and close the connections.

        The commit and the LeaveGroup request may each take up to `timeout_ms`. After that, the close continues without
        waiting for them.
        """
        if self._closed:
            return
        if self._offsets.auto_commit_enabled and self._core.assignment:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._offsets.auto_commit(self.positions())
            except TimeoutError:
                logger.warning(
                    "Group %s: auto-commit did not complete within %.0f ms; closing the consumer",
                    self._config.group_id,
                    timeout_ms,
                )
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._fetcher.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._group is not None and leave_group:
            await self._group.leave("the consumer was closed", timeout_ms)
        self._update_event.set()
        if self._owns_cluster:
            await self.cluster.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
