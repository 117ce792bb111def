"""The fetching side of a reader: sends fetches, takes answers, finds positions; what arrives waits in the `core`.

A shell around `fetch_core`, in the loop's thread only. It keeps a fetch in flight for each broker that it reads from,
over a connection of its own, and gives a partition without a position the committed offset, else what auto.offset.reset
says. What goes wrong with a partition waits in `errors` for the next poll; the other partitions go on.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from headrace_broker.client import offsets as offset_api
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.config_values import parse_duration_ms
from headrace_broker.client.errors import (
    BrokerError,
    ClientError,
    ConnectionLostError,
    CorruptRecordsError,
    NoOffsetError,
    OffsetOutOfRangeError,
)
from headrace_broker.client.fetch_core import Answer, FetchCore, FetchPartition
from headrace_broker.client.offsets import ListedOffset, OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition as FetchRequestPartition
from headrace_broker.protocol.messages.fetch import FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace_broker.protocol.notation import ZERO_UUID
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.batch import CorruptBatchError

logger = logging.getLogger(__name__)

Committed = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata | None]]]

_fetchers = itertools.count(1)

_FETCH_BY_NAME_VERSION_MAX = 12
_FETCH_VERSION_MAX = 16


class Fetcher:
    """Keeps the read-ahead of one reader filled; `on_news` is called when something arrived or went wrong."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, committed: Committed, on_news: Callable[[], None]
    ) -> None:
        self.core = FetchCore(
            partition_bytes_max=config.max_partition_fetch_bytes,
            read_committed=config.isolation_level == "read_committed",
            backoff_ms=cluster.retry_pause_ms,
        )
        self.errors: deque[ClientError] = deque()
        self._cluster = cluster
        self._config = config
        self._committed = committed
        self._on_news = on_news
        self._purpose = f"fetch {next(_fetchers)}"
        self._loop = asyncio.get_running_loop()
        self._out_of_range: set[TopicPartition] = set()
        self._finding: asyncio.Task[None] | None = None
        self._connecting: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        cluster.listeners.append(self._on_metadata)

    async def stop(self) -> None:
        """Send nothing more."""
        self._stopped = True
        self._cluster.listeners.remove(self._on_metadata)
        if self._timer is not None:
            self._timer.cancel()
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        self._cluster.release(self._purpose)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on at that offset."""
        self.core.seek(topic_partition, offset)
        self._out_of_range.discard(topic_partition)
        self.pump()

    def go_back(self, topic_partition: TopicPartition, offset: int) -> None:
        """Fetch again, after a while, what could not be parsed."""
        if topic_partition in self.core.assignment:
            self.core.seek(topic_partition, offset)
            self.core.back_off(topic_partition, self._cluster.now_ms())
            self.pump()

    async def find_position(self) -> None:
        """Wait for one attempt at the positions that are missing."""
        self.pump()
        if self._finding is not None:
            await asyncio.wait([self._finding])

    async def list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """Return offsets for timestamps, by the reader's isolation level."""
        read_committed = self._config.isolation_level == "read_committed"
        return await offset_api.list_offsets(self._cluster, timestamps, read_committed=read_committed)

    # -- positions ---------------------------------------------------------------------------------------------------

    async def _find_positions(self) -> None:
        """Give every partition without one a position: the committed offset, else by auto.offset.reset."""
        attempts = 0
        while missing := self.core.without_position():
            assignments = self.core.assignments
            try:
                await self._apply_committed([item for item in missing if item not in self._out_of_range], assignments)
                await self._apply_resets(assignments)
                attempts = 0
            except ClientError as error:
                if not error.retriable:
                    self._tell(error)
                    return
                logger.info("finding positions: %s; trying again", error)
                await asyncio.sleep(self._cluster.retry_pause_ms(attempts) / 1000)
                attempts += 1

    async def _apply_committed(self, partitions: list[TopicPartition], assignments: int) -> None:
        if not partitions or not self._config.group_id:
            return
        for topic_partition, committed in (await self._committed(partitions)).items():
            if committed is not None:
                self._place(topic_partition, committed.offset, committed.leader_epoch, assignments)

    async def _apply_resets(self, assignments: int) -> None:
        missing = self.core.without_position()
        if not missing or self.core.assignments != assignments:  # nobody has asked what is committed for a new one yet
            return
        policy = self._config.auto_offset_reset
        if policy == "none":
            names = ", ".join(f"{topic}-{partition}" for topic, partition in missing)
            out_of_range = bool(self._out_of_range.intersection(missing))
            kind = OffsetOutOfRangeError if out_of_range else NoOffsetError
            what = "positions outside the log" if out_of_range else "no committed offset"
            raise kind(f"{names}: {what}, and auto.offset.reset=none: seek")
        timestamp = {"latest": offset_api.LATEST, "earliest": offset_api.EARLIEST}.get(policy)
        if timestamp is None:
            timestamp = int(time.time() * 1000) - (parse_duration_ms(policy.partition(":")[2]) or 0)
        listed = await self.list_offsets(dict.fromkeys(missing, timestamp))
        behind = [item for item, found in listed.items() if found.offset < 0]  # nothing as young as that: the end
        listed |= await self.list_offsets(dict.fromkeys(behind, offset_api.LATEST)) if behind else {}
        for topic_partition, found in listed.items():
            self._place(topic_partition, found.offset, found.leader_epoch, assignments)

    def _place(self, topic_partition: TopicPartition, offset: int, leader_epoch: int, assignments: int) -> None:
        """Set a position that was looked up, unless a seek or another assignment came first: what was committed before
        a partition came back may be old."""
        if self.core.assignments != assignments or topic_partition not in self.core.assignment:
            return
        if self.core.position(topic_partition) is None:
            self.core.seek(topic_partition, offset, leader_epoch)
            self._out_of_range.discard(topic_partition)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send every fetch that can be sent, and have missing positions found."""
        if self._stopped:
            return
        if self._finding is None and self.core.without_position():
            self._finding = self._loop.create_task(self._find_positions())
            self._finding.add_done_callback(self._found_positions)
        now_ms = self._cluster.now_ms()
        plans, outdated = self.core.plan(now_ms, self._leader_of, self._is_ready, self._cluster.view.is_replica)
        for node_id, asked in plans.items():
            self._send_fetch(node_id, asked)
        if outdated:
            self._cluster.request_refresh()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.core.retry_at_ms(now_ms)
        if due is not None:
            self._timer = self._loop.call_at(max(due, now_ms + 1) / 1000, self.pump)

    def _found_positions(self, task: asyncio.Task[None]) -> None:
        self._finding = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._tell(ClientError(f"finding positions: {error!r}"))
        elif not self.errors:
            self.pump()

    def _leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        leader = self._cluster.view.leader(topic, partition)
        return None if leader is None else (leader.leader_id, leader.leader_epoch)

    def _is_ready(self, node_id: int) -> bool:
        if self._cluster.ready_connection(node_id, self._purpose) is not None:
            return True
        if node_id not in self._connecting:
            self._connecting.add(node_id)
            self._cluster.connect_soon(node_id, self._purpose, partial(self._connected, node_id))
        return False

    def _connected(self, node_id: int) -> None:
        self._connecting.discard(node_id)
        if self._cluster.ready_connection(node_id, self._purpose) is None:
            self.core.avoid(node_id, self._cluster.now_ms())
        self.pump()

    def _send_fetch(self, node_id: int, asked: list[FetchPartition]) -> None:
        known = self._cluster.view.topics
        topics = {
            name: FetchTopic(topic=name, topic_id=known[name].topic_id) for name in {part.topic for part in asked}
        }
        has_ids = all(topic.topic_id != ZERO_UUID for topic in topics.values())
        for part in asked:
            topics[part.topic].partitions.append(
                FetchRequestPartition(
                    partition=part.partition,
                    current_leader_epoch=part.leader_epoch,
                    fetch_offset=part.fetch_offset,
                    partition_max_bytes=part.max_bytes,
                )
            )
        config = self._config
        request = FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=int(config.isolation_level == "read_committed"),
            session_epoch=-1,
            topics=list(topics.values()),
            rack_id=config.client_rack if all(part.may_be_sent_away for part in asked) else "",
        )
        connection = self._cluster.ready_connection(node_id, self._purpose)
        fetch = _Fetch(node_id, asked, {topic.topic_id: name for name, topic in topics.items()})
        try:
            if connection is None:
                raise ConnectionLostError(f"broker {node_id}: the connection was lost")
            at_most = _FETCH_VERSION_MAX if has_ids else _FETCH_BY_NAME_VERSION_MAX
            version = connection.version_for(FetchRequest, at_most=at_most)
            connection.send(request, version, partial(self._on_answer, fetch))
        except ClientError as error:
            self._on_answer(fetch, None, error)

    def _on_answer(self, fetch: _Fetch, response: FetchResponse | None, error: ClientError | None) -> None:
        self.core.fetch_done(fetch.node_id)
        now_ms = self._cluster.now_ms()
        if response is None:
            if not self._stopped:  # else it is this client that closed the connection
                logger.info("fetch from broker %d: %s", fetch.node_id, error)
            for asked in fetch.asked.values():
                self.core.lose(asked, now_ms)
            self._cluster.request_refresh()
        elif response.error_code != ErrorCode.NONE:
            for asked in fetch.asked.values():
                self._refused(asked, ErrorCode.of(response.error_code), now_ms)
        else:
            size_bytes = 0
            for topic in response.responses:
                name = topic.topic or fetch.names.get(topic.topic_id, "")
                for part in topic.partitions:
                    size_bytes += self._on_partition(fetch, name, part, now_ms)
            self.core.response_size(fetch.node_id, size_bytes)
        self.pump()

    def _on_partition(self, fetch: _Fetch, topic: str, part: PartitionData, now_ms: float) -> int:
        """Take one partition's part of an answer; returns the size of its records."""
        asked = fetch.asked.get((topic, part.partition_index))
        if asked is None:
            return 0
        if part.error_code != ErrorCode.NONE:
            self._refused(asked, ErrorCode.of(part.error_code), now_ms)
            return 0
        if part.preferred_read_replica >= 0:
            logger.info("%s-%d is read from replica %d", topic, asked.partition, part.preferred_read_replica)
            self.core.prefer(asked, part.preferred_read_replica, now_ms + self._config.metadata_max_age_ms)
            return 0
        records = part.records
        view = memoryview(records) if records is not None and not isinstance(records, list) else None
        aborted = [(item.producer_id, item.first_offset) for item in part.aborted_transactions or ()]
        try:
            answer = self.core.receive(
                fetch.node_id,
                asked,
                view,
                high_watermark=part.high_watermark,
                log_start_offset=part.log_start_offset,
                aborted=aborted,
            )
        except CorruptBatchError as error:
            self.core.lose(asked, now_ms)
            self._tell(CorruptRecordsError(f"{topic}-{asked.partition} from offset {asked.fetch_offset}: {error}"))
            return 0
        if answer is Answer.RECORDS:
            self._on_news()
        return len(view) if view is not None else 0

    def _refused(self, asked: FetchPartition, code: ErrorCode, now_ms: float) -> None:
        answer = self.core.refuse(asked, code, now_ms)
        subject = f"{asked.topic}-{asked.partition}"
        if answer is Answer.REFRESH:
            logger.info("fetch of %s: %s; refreshing metadata", subject, code.name)
            self._cluster.request_refresh()
        elif answer is Answer.RESET:
            logger.warning("%s: offset %d is outside the log", subject, asked.fetch_offset)
            self._out_of_range.add((asked.topic, asked.partition))
            self.core.forget_position((asked.topic, asked.partition))
        elif answer is Answer.ERROR:
            self._tell(BrokerError(code, f"fetch of {subject}"))

    def _tell(self, error: ClientError) -> None:
        """Have the next poll raise it."""
        self.errors.append(error)
        self._on_news()

    def _on_metadata(self, view: object) -> None:
        self.pump()


class _Fetch:
    """A Fetch request in flight: what was asked, and the names behind its topic ids."""

    __slots__ = ("asked", "names", "node_id")

    def __init__(self, node_id: int, asked: list[FetchPartition], names: dict[bytes, str]) -> None:
        self.node_id = node_id
        self.asked = {(part.topic, part.partition): part for part in asked}
        self.names = names
