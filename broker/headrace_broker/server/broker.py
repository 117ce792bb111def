"""The broker role of a node: applies the committed metadata image to its logs, partitions and group coordinator.

The broker accepts requests only after it has applied the metadata up to its own registration. It leads or follows a
partition only if the committed image assigns that role to it. If the broker cannot write a log, it stops, and other
replicas become leaders. A broker that is the only node of its cluster does not stop, and continues to serve its other
logs. All methods run on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.service import GroupCoordinator
from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectoryError
from headrace_broker.log.log import AppendInfo, LogRead, PartitionLog
from headrace_broker.log.manager import LogManager
from headrace_broker.log.validator import AppendOrigin, RecordsCheck
from headrace_broker.metadata.cluster import MIN_INSYNC_REPLICAS
from headrace_broker.metadata.delta import MetadataDelta
from headrace_broker.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC
from headrace_broker.server.cleaning.cleaner import LogCleaner
from headrace_broker.server.cleaning.cleaning_executor import cleaning_executor_for
from headrace_broker.server.config import STRICT, BrokerConfig
from headrace_broker.server.data_dirs import StartError, directory_id
from headrace_broker.server.group_partition_loader import GroupPartitionLoader
from headrace_broker.server.liveness.broker_lifecycle import BrokerLifecycle
from headrace_broker.server.liveness.suspected_brokers import SuspectedBrokers
from headrace_broker.server.log_config_provider import LogConfigProvider
from headrace_broker.server.offsets_topic import OffsetsTopic
from headrace_broker.server.producer_id_block import ProducerIdBlock
from headrace_broker.server.record_validator import RecordValidator
from headrace_broker.server.replicas.fetch_session_table import FetchSessionTable
from headrace_broker.server.replicas.partitions import Partition, PartitionTable
from headrace_broker.server.replicas.replication import Replication

if TYPE_CHECKING:
    from headrace_broker.server.node import Node

logger = logging.getLogger(__name__)

_MAINTAIN_MS = 1000
_CONTROLLED_SHUTDOWN_TIMEOUT_MS = 30_000
_LOGS_AT_ONCE = 8
_FILE_TASKS_MAX = 4
"""The maximum number of file tasks that run at a time.

The executor has more threads, so one is free for the metadata log.
"""


class Broker:
    """The broker role of a node: leads and follows partitions and coordinates groups."""

    def __init__(self, node: Node, open_segments_max: int) -> None:
        config, environment = node.config, node.environment
        self.node = node
        self.config = config
        self.node_id = config.node_id
        self.now_ms = node.now_ms
        self.purgatory = node.purgatory
        self.router = node.router
        self._loop = asyncio.get_running_loop()
        self.logs = LogManager(
            environment.storage,
            config.log_dirs,
            background=self._background,
            next_random=environment.rng.randrange,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            open_segments_max=open_segments_max,
        )
        self.fetch_sessions = FetchSessionTable(config.fetch_session_slots, environment.rng, self.purgatory)
        self.cleaner = LogCleaner(
            self.logs, environment.storage, config, cleaning_executor_for(environment.storage), self.now_ms
        )
        self.record_validator = RecordValidator() if config.records_validation == STRICT else None
        self.suspected_brokers = SuspectedBrokers()
        self.replication = Replication(self)
        self.partitions = PartitionTable(config.node_id, self._open_log, self._on_partition_change)
        self.lifecycle: BrokerLifecycle
        self.producer_ids: ProducerIdBlock
        offsets_topic = OffsetsTopic(
            config.node_id,
            lambda: self.image,
            self.partitions,
            lambda partition, records, origin: self.append(partition, records, origin),  # `Meter` replaces `append`
        )
        self.groups = GroupCoordinator(
            offsets_topic, _group_config(config), self.now_ms, lambda: str(UUID(bytes=node.new_id()))
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._file_task_slots = asyncio.Semaphore(_FILE_TASKS_MAX)
        self._group_partitions = GroupPartitionLoader(config.node_id, self.partitions, self.groups, self._start_task)
        # by topic: the partitions whose log is missing; the topics are in round-robin order
        self._logs_to_create: OrderedDict[str, dict[int, None]] = OrderedDict()
        self._topics_with_failed_logs: set[str] = set()
        self._log_creation: asyncio.Task[None] | None = None
        self._logs_created = asyncio.Event()
        self._log_configs = LogConfigProvider(config.log_properties, config.node_id)

    @property
    def image(self) -> MetadataImage:
        """The committed metadata image."""
        return self.node.committed.image

    # -- used by request handlers --------------------------------------------------------------------------------

    def append(
        self,
        partition: Partition,
        records: memoryview,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        check: RecordsCheck | None = None,
    ) -> AppendInfo:
        """Append one batch as leader and complete the delayed requests that wait for records. Raises ApiError.

        `check` is the result of an earlier check of the records. If the partition has only one replica, this also
        advances the high watermark.
        """
        log = partition.log
        try:
            info = log.append_as_leader(
                records, leader_epoch=partition.leader_epoch, now_ms=self.now_ms(), origin=origin, check=check
            )
        except ApiError:
            self.check_storage(log)
            raise
        if info.is_duplicate:
            return info
        if partition.replicas is not None:
            self.replication.on_append(partition, info.base_offset, len(records))
        else:  # a partition with one replica commits a record when it appends the record
            log.advance_high_watermark(info.last_offset + 1)
            self.on_high_watermark_advanced(partition, len(records))
        return info

    def read(self, partition: Partition, replica: int, offset: int, max_bytes: int, *, min_one_batch: bool) -> LogRead:
        """Read records for a follower (`replica` >= 0) or a consumer.

        A follower may read up to the log end offset, a consumer up to the high watermark.

        Raises ApiError.
        """
        log = partition.log
        upper_bound_offset = log.log_end_offset if replica >= 0 else log.high_watermark
        return log.read(offset, max_bytes, upper_bound_offset=upper_bound_offset, min_one_batch=min_one_batch)

    def on_partition_error(self, api_key: ApiKey, code: ErrorCode, partition: Partition | None) -> None:
        """Do nothing. `Meter` replaces this method to count the errors of partitions in Produce and Fetch requests."""

    def check_storage(self, log: PartitionLog) -> None:
        """Stop the node if the log is offline, unless the node is the only one of its cluster."""
        if log.offline_reason is not None:
            self.node.on_log_failure(log.offline_reason)

    def on_high_watermark_advanced(self, partition: Partition, size_bytes: int) -> None:
        """Complete delayed requests and coordinator operations after a leader's high watermark advanced.

        `size_bytes` is the approximate size of the newly committed records.
        """
        self.complete_delayed_reads(partition, size_bytes)
        if partition.topic == GROUP_METADATA_TOPIC:
            self.groups.on_high_watermark_advanced(partition.index, partition.log.high_watermark)

    def complete_delayed_reads(self, partition: Partition, size_bytes: int) -> None:
        """Complete the delayed requests of consumers and producers that wait for the high watermark.

        `size_bytes` is the approximate size of the newly committed records.
        """
        if self.purgatory.is_watched(partition):
            self.purgatory.try_complete(partition, partition.log.high_watermark, size_bytes)
        if partition.sessions:
            self.fetch_sessions.on_high_watermark_advanced(partition, size_bytes)

    def _on_partition_change(self, partition: Partition, image: PartitionImage, is_new_epoch: bool) -> None:
        self.replication.on_partition_change(partition, image, is_new_epoch=is_new_epoch)

    def endpoint_of(self, broker_id: int, listener: str) -> Endpoint | None:
        """Return the broker's endpoint for this listener, or None."""
        broker = self.image.brokers.get(broker_id)
        return None if broker is None else broker.endpoint(listener)

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Open the logs, register the broker, and call `serve` to accept connections. Raises StartError.

        Before this call, the node must have applied all committed metadata.
        """
        node, config = self.node, self.config
        self.lifecycle = BrokerLifecycle(
            self.node_id,
            node.own_channel,
            lambda: self.image,
            cluster_id=node.cluster_id,
            incarnation_id=node.new_id(),
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            registration_timeout_ms=config.initial_broker_registration_timeout_ms,
            session_timeout_ms=config.broker_session_timeout_ms,
        )
        self.producer_ids = ProducerIdBlock(node.channel, self.node_id, lambda: self.lifecycle.epoch)
        try:
            await self._load_logs()
        except LogDirectoryError as error:
            raise StartError(str(error)) from None
        self._check_metadata_not_lost()
        endpoints = [Endpoint(item.name, item.host, item.port) for item in node.advertised]
        log_dirs = [directory_id(item.meta) for item in self.logs.directories]
        before_ms = self.now_ms()
        await self.lifecycle.register(endpoints, config.rack, log_dirs, self._previous_clean_epoch())
        # Apply the metadata up to this registration before serving, because other brokers may lead the partitions now
        # (rule R11 in docs/broker.md).
        await node.quorum.wait_for_offset(self.lifecycle.epoch + 1)
        node.check_clock(self.lifecycle.epoch, before_ms)
        # Do not await from here to `subscribe`, so that no image change is missed.
        self._delete_obsolete_logs()
        for topic in self.image.topics.values():
            for index in self.partitions.update(topic, range(len(topic.partitions))):
                self.partitions.open(topic, index)
        self.replication.update_throttles(self.image, self.image.topics)
        node.committed.subscribe(self._on_image_change)
        self._check_min_insync_replicas()
        await self._group_partitions.load()
        self.groups.start()
        self.router.broker = self
        await serve()
        await self.lifecycle.wait_until_unfenced()
        node.run_every(_MAINTAIN_MS, self._maintain)
        self.cleaner.start()
        node.run_every(max(1, config.replica_lag_time_max_ms // 2), self.replication.check_lag)

    def _check_min_insync_replicas(self) -> None:
        ours = self.config.log_properties.get(MIN_INSYNC_REPLICAS)
        cluster = self.image.broker_configs().get(MIN_INSYNC_REPLICAS)
        if ours is not None and cluster not in (None, ours):
            logger.warning(
                "min.insync.replicas=%s in the properties file is ignored, because the cluster-wide value is %s: use "
                "the value %s in the file too, or change the cluster-wide value with kafka-configs --alter "
                "--entity-type brokers --entity-default",
                ours,
                cluster,
                cluster,
            )

    async def _load_logs(self) -> None:
        """Load the logs. Raises LogDirectoryError."""
        loading = self.logs.iter_load(self._log_config_of, self.now_ms(), has_other_replicas=self._has_other_replicas)
        for count, _ in enumerate(loading, 1):
            if count % _LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)  # let the metadata quorum's callbacks run

    def _previous_clean_epoch(self) -> int:
        """Return the broker epoch of the last shutdown if the shutdown was clean and no log is corrupt, else -1."""
        if self.logs.is_corrupt:
            return -1
        directories = self.logs.directories
        epochs = {item.clean_broker_epoch if item.was_closed_cleanly else -1 for item in directories}
        return epochs.pop() if len(epochs) == 1 else -1

    def _has_other_replicas(self, topic: str, index: int) -> bool:
        known = self.image.topics.get(topic)
        if known is None or index >= len(known.partitions):
            return False
        return known.partitions[index].is_recoverable_from_other_replica(self.node_id)

    def _can_refetch_from_others(self, topic: str, index: int) -> bool:
        """Whether the last shutdown was unclean and other replicas have every committed record of this partition."""
        return not self.logs.was_closed_cleanly and self._has_other_replicas(topic, index)

    def _check_metadata_not_lost(self) -> None:
        """Raise StartError if there are partition logs but the metadata log is empty."""
        if self.logs.logs and not self.image.features:
            path = f"{self.config.metadata_dir}/{CLUSTER_METADATA_TOPIC}-0"
            raise StartError(
                f"the metadata log {path} is empty, but log.dirs contains {len(self.logs.logs)} partitions: restore "
                "the metadata log from a copy, or move the partition directories away to start with an empty cluster"
            )

    def _delete_obsolete_logs(self) -> None:
        """Delete the logs of deleted topics and of reassigned partitions; mark logs of unknown topics as stray."""
        topics = self.image.topics
        removed = self.node.committed.pop_removed_topics()
        names = {topic.name for topic in removed.values()}
        for (topic, index), log in list(self.logs.logs.items()):
            known = topics.get(topic)
            if log.topic_id in removed:
                logger.info("Partition %s-%d: deleting the log, because its topic was deleted", topic, index)
                self.logs.delete(topic, index, self.now_ms())
            elif known is None or index >= len(known.partitions) or log.topic_id not in (None, known.topic_id):
                logger.warning(
                    "Partition %s-%d: marking the log stray, because the partition is not in the metadata", topic, index
                )
                self.logs.mark_stray(topic, index)
            elif log.topic_id is None and topic in names and self._can_refetch_from_others(topic, index):
                logger.warning(
                    "Partition %s-%d: marking the log stray, because the log has no topic id and a topic of that name "
                    "was deleted",
                    topic,
                    index,
                )
                self.logs.mark_stray(topic, index)
            elif self.node_id not in known.partitions[index].replicas:
                logger.info(
                    "Partition %s-%d: deleting the log, because the partition was reassigned to other brokers",
                    topic,
                    index,
                )
                self.logs.delete(topic, index, self.now_ms())

    # -- following the image -------------------------------------------------------------------------------------

    def _on_image_change(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.suspected_brokers.on_image_change(image)
        for removed in delta.removed_topics.values():
            self._delete_topic(removed)
        self.groups.on_topics_deleted([topic.name for topic in delta.removed_topics.values()])
        # Update the configs first: the high watermarks of the partitions below depend on min.insync.replicas.
        self._update_configs(delta, image)
        for name, indexes in delta.changed_topics.items():
            topic = image.topics[name]
            for partition in self.partitions.remove_reassigned(topic, sorted(indexes)):
                self._delete_partition(partition)
            self._update_partitions(topic, sorted(indexes))
        if image.brokers is not delta.base.brokers:
            self.replication.on_brokers_change()

    def _update_configs(self, delta: MetadataDelta, image: MetadataImage) -> None:
        changed = {name for kind, name in delta.changed_configs if kind == TOPIC_RESOURCE}
        if any(kind == BROKER_RESOURCE for kind, _ in delta.changed_configs):
            changed.update(self.partitions.by_name)
        self.replication.update_throttles(image, changed | {topic.name for topic in delta.removed_topics.values()})
        for name in changed & image.topics.keys():
            config = self._log_config_of(name)
            for partition in self.partitions.by_name.get(name, {}).values():
                partition.log.config = config
                self.replication.on_config_change(partition)

    def _update_partitions(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        """Apply the image to these partitions.

        Create a few missing logs immediately, and start a task that creates the other missing logs.
        """
        missing = self.partitions.update(topic, indexes)
        if missing:
            self._logs_to_create.setdefault(topic.name, {}).update(dict.fromkeys(missing))
        if topic.name == GROUP_METADATA_TOPIC:
            self._group_partitions.on_leaders_change()
        if self._logs_to_create and self._log_creation is None:
            self._create_next_logs()
            self._log_creation = self._start_task(self._create_missing_logs()) if self._logs_to_create else None

    async def _create_missing_logs(self) -> None:
        try:
            while self._logs_to_create:
                await asyncio.sleep(0)  # creating a log takes up to a millisecond
                self._create_next_logs()
                self._notify_logs_created()
        finally:
            self._log_creation = None
            self._notify_logs_created()

    def _notify_logs_created(self) -> None:
        self._logs_created.set()
        self._logs_created.clear()

    def _create_next_logs(self) -> None:
        for _ in range(_LOGS_AT_ONCE):
            if not self._logs_to_create:
                return
            name, indexes = self._logs_to_create.popitem(last=False)
            index = next(iter(indexes))
            del indexes[index]
            if self._create_log(name, index) and indexes:
                self._logs_to_create[name] = indexes

    def _create_log(self, name: str, index: int) -> bool:
        """Create a partition's missing log. Returns False if the creation fails; `_maintain` then retries it."""
        topic = self.image.topics.get(name)
        if topic is None or index >= len(topic.partitions) or not self.partitions.update(topic, (index,)):
            return True  # the partition was deleted or reassigned in the meantime
        try:
            self.partitions.open(topic, index)
        except ApiError as error:
            if name not in self._topics_with_failed_logs:
                logger.error("Topic %s: cannot create a log, retrying: %s", name, error.message)
                self._topics_with_failed_logs.add(name)
            return False
        self._topics_with_failed_logs.discard(name)
        if name == GROUP_METADATA_TOPIC:
            self._group_partitions.start_loading()
        return True

    async def wait_until_logs_created(self, topics: Collection[str]) -> None:
        """Wait until the missing logs of these topics are created, except for logs whose creation fails."""
        while self._log_creation is not None and not self._logs_to_create.keys().isdisjoint(topics):
            await self._logs_created.wait()

    def _delete_topic(self, topic: TopicImage) -> None:
        for partition in self.partitions.remove_topic(topic):
            self._delete_partition(partition)

    def _delete_partition(self, partition: Partition) -> None:
        """Delete the log of a partition whose topic was deleted, or whose replica was moved to another broker."""
        self.replication.remove(partition)
        self.purgatory.force_complete(partition)
        self.purgatory.force_complete(partition.end_key)
        self.fetch_sessions.force_complete(partition)
        try:
            self.logs.delete(partition.topic, partition.index, self.now_ms())
        except ApiError as error:  # the next start finds the log and marks it stray
            logger.error(
                "Partition %s-%d: cannot delete the log, so the next start marks it stray: %s",
                partition.topic,
                partition.index,
                error.message,
            )
        if partition.topic == GROUP_METADATA_TOPIC:
            self._group_partitions.on_partition_removed(partition.index)

    def _log_config_of(self, topic: str) -> LogConfig:
        """Return the topic's log config on this broker."""
        return self._log_configs.get(self.image, topic)

    def _open_log(self, topic: TopicImage, index: int) -> PartitionLog:
        return self.logs.get_or_create(
            topic.name, index, self._log_config_of(topic.name), self.now_ms(), topic_id=topic.topic_id
        )

    # -- periodic and background work ----------------------------------------------------------------------------

    def _maintain(self) -> None:
        self._topics_with_failed_logs &= self.image.topics.keys()
        for topic in [self.image.topics[name] for name in sorted(self._topics_with_failed_logs)]:
            self._update_partitions(topic, range(len(topic.partitions)))
        self.logs.maintain(self.now_ms())
        for directory in self.logs.directories:
            if directory.offline_reason is not None:
                self.node.on_log_failure(directory.offline_reason)

    def _background(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Run the file operation `work` in a thread.

        Then call `done` on the event loop, with the OSError that `work` raised, or with None.
        """

        async def run() -> None:
            try:
                async with self._file_task_slots:
                    await self._loop.run_in_executor(None, work)
            except OSError as error:
                done(error)
            else:
                done(None)

        self._start_task(run())

    def _start_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("Broker: background task failed", exc_info=task.exception())

    # -- stop ----------------------------------------------------------------------------------------------------

    async def controlled_shutdown(self) -> None:
        """Ask the controller to move leadership to other brokers, while this broker still serves clients."""
        quorum = self.node.quorum
        quorum.on_majority_lost = self.lifecycle.on_majority_lost
        is_alone = len(self.image.brokers) == 1
        if not is_alone and quorum.is_majority_lost:
            logger.info(
                "Broker %d: skipping the controlled shutdown, because a majority of the metadata quorum's voters is "
                "down",
                self.node_id,
            )
        elif not is_alone and not await self.lifecycle.controlled_shutdown(_CONTROLLED_SHUTDOWN_TIMEOUT_MS):
            logger.warning(
                "Broker %d: the controller did not confirm the controlled shutdown in time, stopping anyway",
                self.node_id,
            )
        self.lifecycle.close()

    async def stop(self) -> None:
        """Stop all work and flush the logs; `close` completes the stop."""
        await self.cleaner.close()
        self.replication.close()
        self.groups.close()
        await asyncio.sleep(0)  # send the responses that `groups.close()` completed
        self.router.close()
        if self.record_validator is not None:
            self.record_validator.close()
        self.logs.flush_all(self.now_ms())
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self, *, clean: bool) -> None:
        """Close the logs.

        If `clean` is set, write a clean shutdown marker in each log directory. The marker also applies to a metadata
        log in that directory.
        """
        self.replication.close()  # close the fetchers again, because an image change since `stop` may have started one
        self.logs.close(clean=clean, broker_epoch=self.lifecycle.epoch, now_ms=self.now_ms())


def _group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offset_commit_timeout_ms=config.offsets_commit_timeout_ms,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        batch_size_bytes_max=config.log_defaults.max_message_bytes,
    )
