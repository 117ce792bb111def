"""The consumer of a sink task, on the event loop: group membership, prefetching, positions, commits.

The consumer passes each event to the task's thread with `send_event`. A rebalance waits until the task's thread has
handled the rebalance event. The task's thread calls the coroutines of this module through the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.data.java_regex import JavaPattern
from headrace.metrics import logs
from headrace.runtime.listed_ends import ListedEnds
from headrace.runtime.sink_offsets import TopicPartition
from headrace.runtime.task_plugins import split_list
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer, FetchedChunk, OffsetAndMetadata
from headrace_broker.client.errors import BrokerError, ClientError, CommitFailedError
from headrace_broker.client.membership_core import leave_request
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity

log = logging.getLogger(__name__)

POLL_TIMEOUT_MS = 1000
DISCOVERY_INTERVAL_MS = 4000  # the interval between checks for new topics
LEAVE_TIMEOUT_S = 2.0
POLLS_MAX = 3  # polls whose records may wait for the task, including the current poll
WAITING_BYTES_MAX = 4_194_304  # no poll is made while the records that wait for the task are larger
RETRY_BACKOFF_MS = 100
REBALANCE_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class Polled:
    """A poll has returned. `epoch` is the value of the consumer's `epoch` when the records were fetched."""

    epoch: int
    chunks: Sequence[FetchedChunk]


@dataclass(frozen=True, slots=True)
class Assigned:
    """Partitions are assigned. The consumer is at these positions."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Partitions are revoked. If they are lost, the group rejects commits of their offsets."""

    partitions: Sequence[TopicPartition]
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerFailed:
    """The consumer cannot continue."""

    error: Exception


ConsumerEvent = Polled | Assigned | Revoked | ConsumerFailed
SendEvent = Callable[[ConsumerEvent, Callable[[], None] | None], None]
"""Queues an event for the task's thread, which calls the second argument when it has handled the event."""


class WaitingPolls:
    """Limits the number and the size of the polls whose records wait to be put."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._changed = asyncio.Event()

    def add(self, chunks: Sequence[FetchedChunk]) -> None:
        """Add a poll."""
        self._sizes.append(sum(chunk.size_bytes for chunk in chunks))

    def remove(self, count: int) -> None:
        """Remove the oldest polls, because the task has put their records."""
        for _ in range(count):
            self._sizes.popleft()
        self._changed.set()

    async def wait_until_below_limits(self) -> None:
        """Wait until another poll is allowed."""
        while len(self._sizes) >= POLLS_MAX or sum(self._sizes) > WAITING_BYTES_MAX:
            self._changed.clear()
            await self._changed.wait()


class SinkConsumer:
    """The consumer of one sink task.

    `epoch` counts seeks. Records that were fetched before the last seek are outdated. `on_joined` receives the
    consumer's member id in its group. `dead_member` is the id of a member to remove from the group, or an empty string.
    """

    def __init__(
        self,
        send_event: SendEvent,
        config: ClientConfig,
        connector: Mapping[str, str],
        task: int,
        *,
        on_joined: Callable[[str], None],
        dead_member: str = "",
    ) -> None:
        self.epoch = 0
        self.is_task_idle = False  # the task's thread waits for an event or for the next retry of a put
        self._send_event = send_event
        self._config = config
        self._connector = connector
        self._task = task
        self._on_joined = on_joined
        self._dead_member = dead_member
        self._member_id = ""  # the last member id that `on_joined` has received
        self._loop = asyncio.get_running_loop()
        self._waiting = WaitingPolls()
        self._poll_loop: asyncio.Task[None] | None = None
        self._last_keep_alive_s = 0.0
        self._is_polling = False
        self._listed_ends = ListedEnds()
        self._closing = False
        self._close: asyncio.Task[None] | None = None
        self._cluster: Cluster | None = None
        self._consumer: Consumer | None = None

    async def open(self) -> None:
        """Connect and start to consume. Raises ClientError. After this error, the call can be retried."""
        self._cluster = await Cluster.open(self._config)
        try:
            self._consumer = await Consumer.open(self._config, cluster=self._cluster)
            if self._dead_member:
                await self._remove_member(
                    MemberIdentity(member_id=self._dead_member, reason="the task's process has ended")
                )
        except BaseException:  # also if the task is stopped meanwhile
            await self._close_clients()
            raise
        self._poll_loop = self._loop.create_task(self._poll_forever(self._consumer))

    def allow_polls(self, count: int) -> None:
        """Allow `count` more polls, because the task has put the records of `count` polls. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._waiting.remove, count)

    def keep_alive(self) -> None:
        """Prevent the consumer from leaving the group while the task's thread still processes records."""
        now_s = time.monotonic()
        if now_s - self._last_keep_alive_s >= 1:
            self._last_keep_alive_s = now_s
            self._loop.call_soon_threadsafe(self._opened.keep_alive)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets of the group. Raises ClientError, for example if the consumer is closed."""
        if self._close is not None:
            raise CommitFailedError(
                f"group {self._config.group_id}: the offsets were not committed, because the task has left the group"
            )
        await self._opened.commit({partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()})

    async def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the ends of the assigned partitions, as far as they are known.

        The high watermarks of the last fetch responses are the ends, if the consumer fetches the partitions. Otherwise,
        the leaders are asked from time to time.
        """
        if self._closing:
            return {}
        consumer = self._opened
        known: dict[TopicPartition, int] = {}
        # The records below the high watermark may belong to open transactions.
        if self._is_polling and self._config.isolation_level != "read_committed":
            known = consumer.high_watermarks()
            for paused in consumer.paused:
                known.pop(paused, None)
        unknown = set(consumer.assignment) - known.keys()
        return known | await self._listed_ends.get(unknown, consumer.list_offsets)

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue to consume at these offsets."""
        self.epoch += 1
        assigned = set(self._opened.assignment)
        for partition, offset in positions.items():
            if partition in assigned:
                self._opened.seek(partition, offset)

    async def pause(self, pause: frozenset[TopicPartition], resume: frozenset[TopicPartition]) -> None:
        """Pause and resume consumption of these partitions."""
        assigned = frozenset(self._opened.assignment)
        self._opened.pause(pause & assigned)
        self._opened.resume(resume & assigned)

    async def stop(self) -> None:
        """Stop polling. After that, the task's thread itself releases the partitions."""
        self._closing = True
        if self._poll_loop is not None:
            self._poll_loop.cancel()
            await asyncio.wait({self._poll_loop})

    async def close(self, *, removes_static_member: bool = True) -> None:
        """Stop polling, leave the group and close the connections. Later calls wait until the first has completed.

        A static member whose task another worker may run must not be removed: the member may be the other worker's.
        """
        if self._close is None:
            self._close = self._loop.create_task(self._close_once(removes_static_member))
        await asyncio.shield(self._close)

    async def _close_once(self, removes_static_member: bool) -> None:
        await self.stop()
        await self._close_clients(removes_static_member=removes_static_member)

    async def _close_clients(self, *, removes_static_member: bool = False) -> None:
        if self._consumer is not None:
            await self._consumer.close()
            if removes_static_member:
                await self._remove_static_member()
        if self._cluster is not None:
            await self._cluster.close()

    @property
    def _opened(self) -> Consumer:
        assert self._consumer is not None
        return self._consumer

    def _subscription(self) -> dict[str, object]:
        if self._connector.get("topics.regex"):
            return {"pattern": JavaPattern(self._connector["topics.regex"]).matches}
        return {"topics": split_list(self._connector.get("topics"))}

    async def _poll_forever(self, consumer: Consumer) -> None:
        logs.connector_context.set(logs.context(self._connector["name"], f"task-{self._task}"))
        try:
            await self._log_missing_topics(consumer.cluster)
            await consumer.subscribe(
                **self._subscription(),  # type: ignore[arg-type]
                on_assigned=self._on_assigned,
                on_revoked=self._on_revoked,
                on_lost=self._on_lost,
                discovery_interval_ms=DISCOVERY_INTERVAL_MS,
            )
            while True:
                await self._wait_until_poll_is_allowed(consumer)
                self._is_polling = True
                chunks = await self._poll(consumer)
                self._is_polling = False
                self._report_member(consumer)
                self._waiting.add(chunks)
                # If there was a seek during the poll, the consumer has discarded the records fetched before the seek.
                self._send_event(Polled(self.epoch, chunks), None)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the task fails with it
            self._send_event(ConsumerFailed(error), None)

    async def _wait_until_poll_is_allowed(self, consumer: Consumer) -> None:
        """Wait until the task has put earlier records. During the wait, the consumer takes part in rebalances.

        A task whose thread only waits, because it is paused or will retry a put, stays in the group. If a call of the
        task takes longer than max.poll.interval.ms, the task leaves the group, as in Kafka Connect.
        """
        while True:
            try:
                async with asyncio.timeout(REBALANCE_CHECK_S):
                    await self._waiting.wait_until_below_limits()
                return
            except TimeoutError:
                if self.is_task_idle:
                    consumer.keep_alive()
                await consumer.take_part_in_rebalances()

    async def _log_missing_topics(self, cluster: Cluster) -> None:
        """Log which topics do not exist. Otherwise, a sink with a misspelt topic would seem to be healthy and idle."""
        pattern = self._connector.get("topics.regex")
        names = None if pattern else split_list(self._connector.get("topics"))
        try:
            found = (await cluster.fetch_metadata(names)).topics
        except ClientError as error:  # the subscription fails with the same error, and is retried
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

    async def _poll(self, consumer: Consumer) -> list[FetchedChunk]:
        try:
            return await consumer.poll_chunks(POLL_TIMEOUT_MS)
        except ClientError as error:
            if not error.retriable:
                raise
            log.warning(
                "Task %s-%d: failed to fetch records, retrying: %s", self._connector.get("name"), self._task, error
            )
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
            return []

    def _report_member(self, consumer: Consumer) -> None:
        """Report a new member id.

        A static member is not reported, because the task's next process replaces it without a rebalance.
        """
        if self._config.group_instance_id is not None:
            return
        if (member_id := consumer.member_id) and member_id != self._member_id:
            self._member_id = member_id
            log.debug(
                "Task %s-%d: joined group %s as member %s",
                self._connector.get("name"),
                self._task,
                self._config.group_id,
                member_id,
            )
            self._on_joined(member_id)

    async def _on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        self._report_member(self._opened)
        positions = {partition: await self._opened.position(partition) for partition in partitions}
        await self._handled(Assigned(positions))

    async def _on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        await self._handled(Revoked(list(partitions)))

    async def _on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        await self._handled(Revoked(list(partitions), is_lost=True))

    async def _handled(self, event: ConsumerEvent) -> None:
        """Send an event, and wait until the task's thread has handled it."""
        if self._closing:
            return
        done = asyncio.Event()
        self._send_event(event, lambda: self._call_soon(done.set))
        await done.wait()

    def _call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(callback)

    async def _remove_static_member(self) -> None:
        """Remove a static member from its group when the task is stopped.

        After a crash, the member stays in the group.
        """
        if (instance_id := self._config.group_instance_id) is not None:
            await self._remove_member(
                MemberIdentity(member_id="", group_instance_id=instance_id, reason="the task was stopped")
            )

    async def _remove_member(self, member: MemberIdentity) -> None:
        group_id, cluster = self._config.group_id, self._cluster
        if not group_id or cluster is None:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                connection = await cluster.coordinator_connection(group_id)
                version = connection.version_for(LeaveGroupRequest)
                response = await connection.request(leave_request(group_id, member, version), version=version)
            codes = {response.error_code, *(each.error_code for each in response.members)}
            for code in codes - {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID}:
                raise BrokerError(code, f"group {group_id}", None)
        except (ClientError, TimeoutError) as error:
            log.info(
                "Task %s-%d: failed to remove member %s from group %s; the member expires with its session timeout: %s",
                self._connector.get("name"),
                self._task,
                member.group_instance_id or member.member_id,
                group_id,
                error,
            )
