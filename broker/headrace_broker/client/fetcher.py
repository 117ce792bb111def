"""The consumer's fetcher: sends Fetch requests, buffers the responses, and looks up unknown positions.

The fetcher runs `fetch_core` in the event loop's thread. For each broker from which it reads, it keeps one fetch in
flight, over a separate connection. A partition without a position starts at its committed offset. If it has no
committed offset, auto.offset.reset determines the start. If a partition fails, its error is queued in `errors` and
raised by the next poll. Other partitions are still fetched.
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
from headrace_broker.client.fetch_core import FetchAction, FetchCore, RequestedPartition
from headrace_broker.client.offsets import ListedOffset, OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition as FetchRequestPartition
from headrace_broker.protocol.messages.fetch import FetchRequest, FetchResponse, FetchTopic, PartitionData
from headrace_broker.protocol.notation import ZERO_UUID
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.batch import CorruptBatchError

logger = logging.getLogger(__name__)

FetchCommitted = Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, OffsetAndMetadata | None]]]

_fetchers = itertools.count(1)

_FETCH_BY_NAME_VERSION_MAX = 12
FETCH_VERSION_MAX = 16


class Fetcher:
    """Prefetches records for one consumer. `on_update` is called when records have arrived or an error occurred."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, committed: FetchCommitted, on_update: Callable[[], None]
    ) -> None:
        self.core = FetchCore(
            partition_bytes_max=config.max_partition_fetch_bytes,
            read_committed=config.isolation_level == "read_committed",
            backoff_ms=cluster.retry_backoff_ms,
        )
        self.errors: deque[ClientError] = deque()
        self._cluster = cluster
        self._config = config
        self._committed = committed
        self._on_update = on_update
        self._purpose = f"fetch {next(_fetchers)}"
        self._loop = asyncio.get_running_loop()
        self._out_of_range: set[TopicPartition] = set()
        self._position_lookup: asyncio.Task[None] | None = None
        self._connecting: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        cluster.listeners.append(self._on_metadata)

    async def stop(self) -> None:
        """Stop fetching and close the connections."""
        self._stopped = True
        self._cluster.listeners.remove(self._on_metadata)
        if self._timer is not None:
            self._timer.cancel()
        if self._position_lookup is not None:
            self._position_lookup.cancel()
            await asyncio.gather(self._position_lookup, return_exceptions=True)
        self._cluster.close_connections(self._purpose)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Set the partition's position to `offset`, and fetch from there."""
        self.core.seek(topic_partition, offset)
        self._out_of_range.discard(topic_partition)
        self.pump()

    def refetch_after_backoff(self, topic_partition: TopicPartition, offset: int) -> None:
        """Fetch from this offset again after a backoff, because the records could not be parsed."""
        if topic_partition in self.core.assignment:
            self.core.seek(topic_partition, offset)
            self.core.back_off(topic_partition, self._cluster.now_ms())
            self.pump()

    async def wait_for_positions(self) -> None:
        """Wait for the lookup of the missing positions, if a lookup is running."""
        self.pump()
        if self._position_lookup is not None:
            await asyncio.wait([self._position_lookup])

    async def list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        """Return the offsets for these timestamps. The consumer's isolation level applies."""
        read_committed = self._config.isolation_level == "read_committed"
        return await offset_api.list_offsets(self._cluster, timestamps, read_committed=read_committed)

    # -- positions ---------------------------------------------------------------------------------------------------

    async def _look_up_positions(self) -> None:
        """Look up the missing positions of assigned partitions.

        The position is the committed offset. If the partition has no committed offset, auto.offset.reset determines the
        position.
        """
        attempts = 0
        while missing := self.core.partitions_without_position():
            assignments = self.core.assignment_count
            try:
                await self._apply_committed([item for item in missing if item not in self._out_of_range], assignments)
                await self._apply_resets(assignments)
                attempts = 0
            except ClientError as error:
                if not error.retriable:
                    self._report_error(error)
                    return
                logger.info("Consumer: cannot look up the positions of partitions, retrying: %s", error)
                await asyncio.sleep(self._cluster.retry_backoff_ms(attempts) / 1000)
                attempts += 1

    async def _apply_committed(self, partitions: list[TopicPartition], assignments: int) -> None:
        if not partitions or not self._config.group_id:
            return
        for topic_partition, committed in (await self._committed(partitions)).items():
            if committed is not None:
                self._set_position(topic_partition, committed.offset, committed.leader_epoch, assignments)

    async def _apply_resets(self, assignments: int) -> None:
        missing = self.core.partitions_without_position()
        if not missing or self.core.assignment_count != assignments:
            return  # a newly assigned partition may have a committed offset, which was not requested yet
        policy = self._config.auto_offset_reset
        if policy == "none":
            names = ", ".join(f"{topic}-{partition}" for topic, partition in missing)
            out_of_range = bool(self._out_of_range.intersection(missing))
            kind = OffsetOutOfRangeError if out_of_range else NoOffsetError
            problem = "the position is outside the log" if out_of_range else "no committed offset"
            raise kind(f"{names}: {problem}, and auto.offset.reset=none; seek to a position")
        timestamp = {"latest": offset_api.LATEST, "earliest": offset_api.EARLIEST}.get(policy)
        if timestamp is None:
            timestamp = int(time.time() * 1000) - (parse_duration_ms(policy.partition(":")[2]) or 0)
        listed = await self.list_offsets(dict.fromkeys(missing, timestamp))
        at_end = [item for item, found in listed.items() if found.offset < 0]  # no record at or after the timestamp
        listed |= await self.list_offsets(dict.fromkeys(at_end, offset_api.LATEST)) if at_end else {}
        for topic_partition, found in listed.items():
            self._set_position(topic_partition, found.offset, found.leader_epoch, assignments)

    def _set_position(self, topic_partition: TopicPartition, offset: int, leader_epoch: int, assignments: int) -> None:
        """Set a position that was looked up, unless a seek or a later assignment has made it outdated.

        `assignments` is the value of `core.assignment_count` at the start of the lookup. A later assignment requires a
        new lookup: while the partition was not assigned to this member, another member may have committed a newer
        offset.
        """
        if self.core.assignment_count != assignments or topic_partition not in self.core.assignment:
            return
        if self.core.position(topic_partition) is None:
            self.core.seek(topic_partition, offset, leader_epoch)
            self._out_of_range.discard(topic_partition)

    # -- fetching ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send all fetches that can be sent, and start the lookup of missing positions."""
        if self._stopped:
            return
        if self._position_lookup is None and self.core.partitions_without_position():
            self._position_lookup = self._loop.create_task(self._look_up_positions())
            self._position_lookup.add_done_callback(self._on_position_lookup_done)
        now_ms = self._cluster.now_ms()
        plans, outdated = self.core.plan(now_ms, self._leader_of, self._ensure_connected, self._cluster.view.is_replica)
        for node_id, requested in plans.items():
            self._send_fetch(node_id, requested)
        if outdated:
            self._cluster.request_refresh()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.core.retry_at_ms(now_ms)
        if due is not None:
            self._timer = self._loop.call_at(max(due, now_ms + 1) / 1000, self.pump)

    def _on_position_lookup_done(self, task: asyncio.Task[None]) -> None:
        self._position_lookup = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._report_error(ClientError(f"position lookup failed: {error!r}"))
        elif not self.errors:
            self.pump()

    def _leader_of(self, topic: str, partition: int) -> tuple[int, int] | None:
        leader = self._cluster.view.leader(topic, partition)
        return None if leader is None else (leader.leader_id, leader.leader_epoch)

    def _ensure_connected(self, node_id: int) -> bool:
        if self._cluster.ready_connection(node_id, self._purpose) is not None:
            return True
        if node_id not in self._connecting:
            self._connecting.add(node_id)
            self._cluster.connect_in_background(node_id, self._purpose, partial(self._on_connected, node_id))
        return False

    def _on_connected(self, node_id: int) -> None:
        self._connecting.discard(node_id)
        if self._cluster.ready_connection(node_id, self._purpose) is None:
            self.core.drop_preferred_replica(node_id, self._cluster.now_ms())
        self.pump()

    def _send_fetch(self, node_id: int, requested: list[RequestedPartition]) -> None:
        known = self._cluster.view.topics
        topics = {
            name: FetchTopic(topic=name, topic_id=known[name].topic_id) for name in {part.topic for part in requested}
        }
        has_ids = all(topic.topic_id != ZERO_UUID for topic in topics.values())
        for part in requested:
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
            rack_id=config.client_rack if all(part.allow_preferred_replica for part in requested) else "",
        )
        connection = self._cluster.ready_connection(node_id, self._purpose)
        fetch = _FetchInFlight(node_id, requested, {topic.topic_id: name for name, topic in topics.items()})
        try:
            if connection is None:
                raise ConnectionLostError(f"broker {node_id}: the connection is closed")
            at_most = FETCH_VERSION_MAX if has_ids else _FETCH_BY_NAME_VERSION_MAX
            version = connection.version_for(FetchRequest, at_most=at_most)
            connection.send(request, version, partial(self._on_response, fetch))
        except ClientError as error:
            self._on_response(fetch, None, error)

    def _on_response(self, fetch: _FetchInFlight, response: FetchResponse | None, error: ClientError | None) -> None:
        self.core.fetch_done(fetch.node_id)
        now_ms = self._cluster.now_ms()
        if response is None:
            if not self._stopped:  # otherwise this client has closed the connection
                logger.info("Fetch from broker %d failed, retrying: %s", fetch.node_id, error)
            for requested in fetch.requested.values():
                self.core.handle_disconnect(requested, now_ms)
            self._cluster.request_refresh()
        elif response.error_code != ErrorCode.NONE:
            for requested in fetch.requested.values():
                self._on_partition_error(requested, ErrorCode.from_code(response.error_code), now_ms)
        else:
            size_bytes = 0
            for topic in response.responses:
                name = topic.topic or fetch.names.get(topic.topic_id, "")
                for part in topic.partitions:
                    size_bytes += self._on_partition(fetch, name, part, now_ms)
            self.core.record_response_size(fetch.node_id, size_bytes)
        self.pump()

    def _on_partition(self, fetch: _FetchInFlight, topic: str, part: PartitionData, now_ms: float) -> int:
        """Handle one partition of a response; return the size of its records."""
        requested = fetch.requested.get((topic, part.partition_index))
        if requested is None:
            return 0
        if part.error_code != ErrorCode.NONE:
            self._on_partition_error(requested, ErrorCode.from_code(part.error_code), now_ms)
            return 0
        if part.preferred_read_replica >= 0:
            logger.info(
                "Partition %s-%d: fetching from the preferred read replica %d",
                topic,
                requested.partition,
                part.preferred_read_replica,
            )
            self.core.set_preferred_replica(
                requested, part.preferred_read_replica, now_ms + self._config.metadata_max_age_ms
            )
            return 0
        records = part.records
        view = memoryview(records) if records is not None and not isinstance(records, list) else None
        aborted = [(item.producer_id, item.first_offset) for item in part.aborted_transactions or ()]
        try:
            action = self.core.receive(
                fetch.node_id,
                requested,
                view,
                high_watermark=part.high_watermark,
                log_start_offset=part.log_start_offset,
                aborted=aborted,
            )
        except CorruptBatchError as error:
            self.core.handle_disconnect(requested, now_ms)
            self._report_error(
                CorruptRecordsError(f"{topic}-{requested.partition} from offset {requested.fetch_offset}: {error}")
            )
            return 0
        if action is FetchAction.RECORDS:
            self._on_update()
        return len(view) if view is not None else 0

    def _on_partition_error(self, requested: RequestedPartition, code: ErrorCode, now_ms: float) -> None:
        action = self.core.handle_error(requested, code, now_ms)
        subject = f"{requested.topic}-{requested.partition}"
        if action is FetchAction.REFRESH_METADATA:
            logger.info("Partition %s: fetch failed with %s, refreshing the metadata", subject, code.name)
            self._cluster.request_refresh()
        elif action is FetchAction.RESET_POSITION:
            logger.warning(
                "Partition %s: offset %d is out of range, resetting the position", subject, requested.fetch_offset
            )
            self._out_of_range.add((requested.topic, requested.partition))
            self.core.forget_position((requested.topic, requested.partition))
        elif action is FetchAction.RAISE_ERROR:
            self._report_error(BrokerError(code, f"fetch of {subject}"))

    def _report_error(self, error: ClientError) -> None:
        """Queue an error for the next poll to raise."""
        self.errors.append(error)
        self._on_update()

    def _on_metadata(self, view: object) -> None:
        self.pump()


class _FetchInFlight:
    """A Fetch request in flight: the requested partitions, and a mapping from topic ids to topic names."""

    __slots__ = ("names", "node_id", "requested")

    def __init__(self, node_id: int, requested: list[RequestedPartition], names: dict[bytes, str]) -> None:
        self.node_id = node_id
        self.requested = {(part.topic, part.partition): part for part in requested}
        self.names = names
