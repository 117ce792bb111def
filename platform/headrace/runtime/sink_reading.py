"""The consumer of a sink task, on the event loop: group membership, prefetching, positions, commits.

Fetched data is passed to the task's thread with `hand_over`. A rebalance waits until the task's thread has processed
it. The task's thread calls the coroutines of this module through the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from headrace.data.java_regex import JavaPattern
from headrace.metrics import logs
from headrace.runtime.sink_offsets import TopicPartition
from headrace.runtime.task_plugins import split_list
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientError
from headrace_broker.client.reader import FetchedChunk, OffsetAndMetadata, Reader
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity

log = logging.getLogger(__name__)

POLL_TIMEOUT_MS = 1000
DISCOVERY_INTERVAL_MS = 4000  # how long a new topic stays unseen
LEAVE_TIMEOUT_S = 2.0
READ_AHEAD = 2  # polls whose records may wait for the task
RETRY_BACKOFF_MS = 100


class TaskThread(Protocol):
    """The interface of the task's thread for the consumer; all methods but `hand_over` run in that thread."""

    def hand_over(self, action: Callable[[], None]) -> None:
        """Queue an action for the task's thread; actions run in order."""

    def take_fetched(self, epoch: int, chunks: Sequence[FetchedChunk]) -> None:
        """Accept the result of a poll, then call `read_on` for more; ignore results of an earlier `epoch`."""

    def take_over(self, positions: Mapping[TopicPartition, int]) -> None:
        """Handle assigned partitions."""

    def give_back(self, partitions: Sequence[TopicPartition], *, lost: bool = False) -> None:
        """Handle revoked partitions; if they are `lost`, their offsets can no longer be committed."""


class SinkReading:
    """The consumer of one sink task. `epoch` counts seeks: data fetched before the last seek is ignored."""

    def __init__(self, thread: TaskThread, config: ClientConfig, connector: Mapping[str, str], task: int) -> None:
        self.epoch = 0
        self.records_max: int | None = None
        self._thread = thread
        self._config = config
        self._connector = connector
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._credit = asyncio.Semaphore(READ_AHEAD)
        self._pump: asyncio.Task[None] | None = None
        self._told_alive_s = 0.0
        self._closing = False
        self._cluster: Cluster | None = None
        self._reader: Reader | None = None

    async def open(self) -> None:
        """Connect and start to consume. Raises ClientError; the call can then be retried."""
        self._cluster = await Cluster.open(self._config)
        self._reader = await Reader.open(self._config, cluster=self._cluster)
        self.records_max = self._reader.records_max
        self._pump = self._loop.create_task(self._read_forever(self._reader))

    def read_on(self) -> None:
        """Allow another poll, because the thread has processed one; callable from any thread."""
        self._loop.call_soon_threadsafe(self._credit.release)

    def keep_alive(self) -> None:
        """Prevent the consumer from leaving the group while the task's thread still processes records."""
        now_s = time.monotonic()
        if now_s - self._told_alive_s >= 1:
            self._told_alive_s = now_s
            self._loop.call_soon_threadsafe(self._opened.keep_alive)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of the group. Raises ClientError."""
        await self._opened.commit({partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()})

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue to consume at these offsets."""
        self.epoch += 1
        assigned = set(self._opened.assignment)
        for partition, offset in positions.items():
            if partition in assigned:
                self._opened.seek(partition, offset)

    async def pause(self, pause: set[TopicPartition], resume: set[TopicPartition]) -> None:
        """Pause and resume consumption of these partitions."""
        assigned = set(self._opened.assignment)
        self._opened.pause(pause & assigned)
        self._opened.resume(resume & assigned)

    async def stop(self) -> None:
        """Stop polling; the task's thread then releases its partitions itself."""
        self._closing = True
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    async def close(self) -> None:
        """Leave the group and close the connections."""
        if self._reader is not None:
            await self._reader.close()
            await self._leave_for_good()
        if self._cluster is not None:
            await self._cluster.close()

    @property
    def _opened(self) -> Reader:
        assert self._reader is not None
        return self._reader

    def _subscription(self) -> dict[str, object]:
        if self._connector.get("topics.regex"):
            return {"pattern": JavaPattern(self._connector["topics.regex"]).matches}
        return {"topics": split_list(self._connector.get("topics"))}

    async def _read_forever(self, reader: Reader) -> None:
        logs.connector_context.set(logs.context(self._connector["name"], f"task-{self._task}"))
        try:
            await self._tell_of_missing_topics(reader.cluster)
            await reader.subscribe(
                **self._subscription(),  # type: ignore[arg-type]
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                on_lost=self._on_lost,
                discovery_interval_ms=DISCOVERY_INTERVAL_MS,
            )
            while True:
                chunks = await self._poll(reader)
                epoch = self.epoch  # a seek during the poll has made the reader forget what was fetched before
                await self._credit.acquire()
                self._hand_over_fetched(epoch, chunks)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the thread raises it: the task fails
            self._hand_over_error(error)

    async def _tell_of_missing_topics(self, cluster: Cluster) -> None:
        """A sink that waits for a misspelt topic looks as healthy as one that has nothing to do."""
        pattern = self._connector.get("topics.regex")
        names = None if pattern else split_list(self._connector.get("topics"))
        try:
            found = (await cluster.fetch_metadata(names)).topics
        except ClientError as error:  # subscribing meets it again, and tries again
            log.debug(
                "Task %s-%d: failed to check whether the topics exist: %s",
                self._connector.get("name"),
                self._task,
                error,
            )
            return
        if pattern:
            matches = JavaPattern(pattern).matches
            if not any(matches(topic.name or "") for topic in found):
                log.info(
                    "Task %s-%d: no topic matches topics.regex=%s yet; new topics that match it will be consumed",
                    self._connector.get("name"),
                    self._task,
                    pattern,
                )
            return
        missing = [topic.name or "" for topic in found if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        if missing:
            creates = self._config.allow_auto_create_topics
            how = (
                "subscribing creates them if auto.create.topics.enable is set on the brokers"
                if creates
                else "they will be consumed once they exist"
            )
            log.info(
                "Task %s-%d: topics %s do not exist yet; %s",
                self._connector.get("name"),
                self._task,
                ", ".join(missing),
                how,
            )

    def _hand_over_fetched(self, epoch: int, chunks: Sequence[FetchedChunk]) -> None:
        self._thread.hand_over(lambda: self._thread.take_fetched(epoch, chunks))

    def _hand_over_error(self, error: Exception) -> None:
        def fail() -> None:
            raise error

        self._thread.hand_over(fail)

    async def _poll(self, reader: Reader) -> list[FetchedChunk]:
        try:
            return await reader.poll_chunks(POLL_TIMEOUT_MS)
        except ClientError as error:
            if not error.retriable:
                raise
            log.warning(
                "Task %s-%d: failed to fetch records, retrying: %s", self._connector.get("name"), self._task, error
            )
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
            return []

    async def _on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        positions = {partition: await self._opened.position(partition) for partition in partitions}
        await self._in_thread(lambda: self._thread.take_over(positions))

    async def _on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        await self._in_thread(lambda: self._thread.give_back(list(partitions)))

    async def _on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        await self._in_thread(lambda: self._thread.give_back(list(partitions), lost=True))

    async def _in_thread(self, action: Callable[[], None]) -> None:
        """Run something in the task's thread and wait for its end."""
        if self._closing:
            return
        done = asyncio.Event()

        def run() -> None:
            try:
                action()
            finally:
                self._loop.call_soon_threadsafe(done.set)

        self._thread.hand_over(run)
        await done.wait()

    async def _leave_for_good(self) -> None:
        """Remove a static member from its group: it stays after a crash, not after a stop."""
        group_id, instance_id = self._config.group_id, self._config.group_instance_id
        if instance_id is None or not group_id or self._cluster is None:
            return
        leaver = MemberIdentity(member_id="", group_instance_id=instance_id, reason="the task was stopped")
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._cluster.request_coordinator(
                    group_id, LeaveGroupRequest(group_id=group_id, members=[leaver])
                )
        except (ClientError, TimeoutError) as error:
            log.info(
                "Task %s-%d: failed to leave group %s; the member expires with its session timeout: %s",
                self._connector.get("name"),
                self._task,
                group_id,
                error,
            )
