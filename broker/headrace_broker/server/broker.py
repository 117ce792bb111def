"""The broker's side of a node: logs, partitions, coordinators, and how they follow the committed image.

Serves only when it has read the metadata up to its own registration, and leads or follows only what the committed image
says.  A log that cannot be written takes the broker out of the cluster, whose other replicas go on; a node without
others serves what is sound.  Owned by the event loop.
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
from headrace_broker.log.admission import AppendOrigin
from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectoryError
from headrace_broker.log.log import AppendInfo, LogRead, PartitionLog
from headrace_broker.log.manager import LogManager
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
from headrace_broker.server.cleaning.cleaner_helper import helper_for
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.data_dirs import StartError, directory_id
from headrace_broker.server.membership.departures import Departures
from headrace_broker.server.membership.lifecycle import BrokerLifecycle
from headrace_broker.server.offsets_topic import OffsetsTopic
from headrace_broker.server.producer_id_block import ProducerIdBlock
from headrace_broker.server.replicas.fetch_session_table import FetchSessionTable
from headrace_broker.server.replicas.partitions import Partition, PartitionTable
from headrace_broker.server.replicas.replication import Replication
from headrace_broker.server.topic_rules import LogConfigs

if TYPE_CHECKING:
    from headrace_broker.server.node import Node

logger = logging.getLogger(__name__)

_MAINTAIN_MS = 1000
_HAND_OVER_TIMEOUT_MS = 30_000
_LOGS_AT_ONCE = 8
_FILE_WORK_MAX = 4
"""Threads that file work may take at a time: fewer than there are, because the quorum's syncs need one, too."""


class Broker:
    """The broker's side of a node: it holds partitions, leads some of them, and coordinates groups."""

    def __init__(self, node: Node, open_segments_max: int) -> None:
        config, surroundings = node.config, node.surroundings
        self.node = node
        self.config = config
        self.node_id = config.node_id
        self.now_ms = node.now_ms
        self.waiting = node.waiting
        self.router = node.router
        self._loop = asyncio.get_running_loop()
        self.logs = LogManager(
            surroundings.storage,
            config.log_dirs,
            background=self._background,
            next_random=surroundings.rng.randrange,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            open_segments_max=open_segments_max,
        )
        self.fetch_sessions = FetchSessionTable(config.fetch_session_slots, surroundings.rng, self.waiting)
        self.cleaner = LogCleaner(
            self.logs, surroundings.storage, config, helper_for(surroundings.storage), self.now_ms
        )
        self.departures = Departures()
        self.replication = Replication(self)
        self.partitions = PartitionTable(config.node_id, self._open_log, self._partition_changed)
        self.lifecycle: BrokerLifecycle
        self.producer_ids: ProducerIdBlock
        offsets_topic = OffsetsTopic(config.node_id, lambda: self.image, self.partitions, self.append)
        self.groups = GroupCoordinator(
            offsets_topic, _group_config(config), self.now_ms, lambda: str(UUID(bytes=node.new_id()))
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._file_work = asyncio.Semaphore(_FILE_WORK_MAX)
        self._groups_led: dict[int, int] = {}  # with the leader epoch they were loaded in
        self._logs_to_make: OrderedDict[str, dict[int, None]] = OrderedDict()  # by topic; topics take turns
        self._topics_without_logs: set[str] = set()
        self._making_logs: asyncio.Task[None] | None = None
        self._some_logs_made = asyncio.Event()
        self._log_configs = LogConfigs(config.log_properties, config.node_id)

    @property
    def image(self) -> MetadataImage:
        """The committed cluster image."""
        return self.node.committed.image

    # -- what handlers use ---------------------------------------------------------------------------------------

    def append(
        self, partition: Partition, records: memoryview, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Append one batch as leader, move the high watermark, wake who waits for it; raises ApiError."""
        log = partition.log
        try:
            info = log.append_as_leader(
                records, leader_epoch=partition.leader_epoch, now_ms=self.now_ms(), origin=origin
            )
        except ApiError:
            self.check_storage(log)
            raise
        if info.is_duplicate:
            return info
        if partition.replicas is not None:
            self.replication.appended(partition, info.base_offset, len(records))
        else:  # the only replica is in sync by definition: what is written is committed
            log.high_watermark = info.last_offset + 1
            self.committed(partition, len(records))
        return info

    def read(self, partition: Partition, replica: int, offset: int, max_bytes: int, *, min_one_batch: bool) -> LogRead:
        """Records for a follower (`replica` >= 0), or what is committed for a consumer; raises ApiError."""
        log = partition.log
        upper_bound_offset = log.log_end_offset if replica >= 0 else log.high_watermark
        return log.read(offset, max_bytes, upper_bound_offset=upper_bound_offset, min_one_batch=min_one_batch)

    def refused(self, api_key: ApiKey, code: ErrorCode, partition: Partition | None) -> None:
        """A part of a Produce or a Fetch is answered with an error; whoever counts errors takes this over."""

    def check_storage(self, log: PartitionLog) -> None:
        """Leave the cluster when the log is offline."""
        if log.offline_reason is not None:
            self.node.log_failed(log.offline_reason)

    def committed(self, partition: Partition, size_bytes: int) -> None:
        """The leader's high watermark has moved: all that waited for it are answered, coordinators too."""
        self.readable(partition, size_bytes)
        if partition.topic == GROUP_METADATA_TOPIC:
            self.groups.advance(partition.index, partition.log.high_watermark)

    def readable(self, partition: Partition, size_bytes: int) -> None:
        """There is more below the high watermark: consumers and producers that waited for it are answered."""
        if self.waiting.waiting_for(partition):
            self.waiting.advanced(partition, partition.log.high_watermark, size_bytes)
        if partition.sessions:
            self.fetch_sessions.committed(partition, size_bytes)

    def _partition_changed(self, partition: Partition, image: PartitionImage, is_new_epoch: bool) -> None:
        self.replication.follow(partition, image, is_new_epoch=is_new_epoch)

    def endpoint_of(self, broker_id: int, listener: str) -> Endpoint | None:
        """Where a broker is reached from this listener's network, or None."""
        broker = self.image.brokers.get(broker_id)
        return None if broker is None else broker.endpoint(listener)

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Open the logs, register, and serve; the metadata is caught up with.  Raises StartError."""
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
        self._refuse_to_begin_anew()
        endpoints = [Endpoint(item.name, item.host, item.port) for item in node.advertised]
        log_dirs = [directory_id(item.meta) for item in self.logs.directories]
        before_ms = self.now_ms()
        await self.lifecycle.register(endpoints, config.rack, log_dirs, self._previous_epoch())
        await node.quorum.reached(self.lifecycle.epoch + 1)  # so nothing is served that others lead by now (R11)
        node.check_clock(self.lifecycle.epoch, before_ms)
        self._put_unknown_logs_away()  # by the image from which on changes are followed: nothing lies between
        for topic in self.image.topics.values():
            for index in self.partitions.follow(topic, range(len(topic.partitions))):
                self.partitions.open(topic, index)
        self.replication.throttle(self.image, self.image.topics)
        node.committed.subscribe(self._follow)
        self._warn_of_min_insync_replicas()
        await self._lead_groups()
        self.groups.start()
        self.router.broker = self
        await serve()
        await self.lifecycle.unfenced()
        node.every(_MAINTAIN_MS, self._maintain)
        self.cleaner.start()
        node.every(max(1, config.replica_lag_time_max_ms // 2), self.replication.check_lag)

    def _warn_of_min_insync_replicas(self) -> None:
        ours = self.config.log_properties.get(MIN_INSYNC_REPLICAS)
        cluster = self.image.broker_configs().get(MIN_INSYNC_REPLICAS)
        if ours is not None and cluster not in (None, ours):
            logger.warning(
                "min.insync.replicas=%s of this node's file is not in force, the cluster has %s: kafka-configs --alter "
                "--entity-type brokers --entity-default changes it, or correct the file",
                ours,
                cluster,
            )

    async def _load_logs(self) -> None:
        """Raises LogDirectoryError."""
        loading = self.logs.loading(self._log_config_of, self.now_ms(), has_other_replicas=self._is_held_by_others)
        for count, _ in enumerate(loading, 1):
            if count % _LOGS_AT_ONCE == 0:
                await asyncio.sleep(0)  # the quorum goes on meanwhile

    def _previous_epoch(self) -> int:
        """The broker epoch of the last clean stop, -1 when the last stop was not clean, or something is lost since."""
        if self.logs.is_damaged:
            return -1
        directories = self.logs.directories
        epochs = {item.clean_broker_epoch if item.was_closed_cleanly else -1 for item in directories}
        return epochs.pop() if len(epochs) == 1 else -1

    def _is_held_by_others(self, topic: str, index: int) -> bool:
        known = self.image.topics.get(topic)
        if known is None or index >= len(known.partitions):
            return False
        return known.partitions[index].is_held_beside(self.node_id)

    def _others_have_more(self, topic: str, index: int) -> bool:
        """Whether this replica is not in sync in any case, so that what it has can be fetched."""
        return not self.logs.was_closed_cleanly and self._is_held_by_others(topic, index)

    def _refuse_to_begin_anew(self) -> None:
        """Raises StartError when there are partitions, and of the metadata that would know them nothing is left."""
        if self.logs.logs and not self.image.features:
            lost = f"{self.config.metadata_dir}/{CLUSTER_METADATA_TOPIC}-0"
            raise StartError(
                f"{lost} is empty, yet there are {len(self.logs.logs)} partitions: put back a copy of it, "
                "or move the partitions away to begin anew"
            )

    def _put_unknown_logs_away(self) -> None:
        """Finish the deletions that a crash interrupted; what the cluster never knew is kept under another name."""
        topics = self.image.topics
        removed = self.node.committed.take_removed_topics()
        names = {topic.name for topic in removed.values()}
        for (topic, index), log in list(self.logs.logs.items()):
            known = topics.get(topic)
            if log.topic_id in removed:
                logger.info("%s-%d belongs to a topic that was deleted and goes with it", topic, index)
                self.logs.delete(topic, index, self.now_ms())
            elif known is None or index >= len(known.partitions) or log.topic_id not in (None, known.topic_id):
                logger.warning("%s-%d belongs to no topic of this cluster and is set aside as stray", topic, index)
                self.logs.set_aside(topic, index)
            elif log.topic_id is None and topic in names and self._others_have_more(topic, index):
                logger.warning(
                    "%s-%d does not say whose it is, after a deletion, and is set aside as stray", topic, index
                )
                self.logs.set_aside(topic, index)
            elif self.node_id not in known.partitions[index].replicas:
                logger.info("%s-%d was moved to other brokers and is deleted", topic, index)
                self.logs.delete(topic, index, self.now_ms())

    # -- following the image -------------------------------------------------------------------------------------

    def _follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.departures.image_changed(image)
        for removed in delta.removed_topics.values():
            self._drop_topic(removed)
        self.groups.topics_deleted([topic.name for topic in delta.removed_topics.values()])
        self._follow_configs(delta, image)  # first: what partitions commit depends on them
        for name, indexes in delta.changed_topics.items():
            topic = image.topics[name]
            for partition in self.partitions.moved_away(topic, sorted(indexes)):
                self._drop_partition(partition)
            self._follow_partitions(topic, sorted(indexes))
        if image.brokers is not delta.base.brokers:
            self.replication.brokers_changed()

    def _follow_configs(self, delta: MetadataDelta, image: MetadataImage) -> None:
        changed = {name for kind, name in delta.changed_configs if kind == TOPIC_RESOURCE}
        if any(kind == BROKER_RESOURCE for kind, _ in delta.changed_configs):
            changed.update(self.partitions.by_name)
        self.replication.throttle(image, changed | {topic.name for topic in delta.removed_topics.values()})
        for name in changed & image.topics.keys():
            config = self._log_config_of(name)
            for partition in self.partitions.by_name.get(name, {}).values():
                partition.log.config = config
                self.replication.config_changed(partition)

    def _follow_partitions(self, topic: TopicImage, indexes: Iterable[int]) -> None:
        """Follow those that are here; of those that are not, the first logs are made at once, many more afterwards."""
        missing = self.partitions.follow(topic, indexes)
        if missing:
            self._logs_to_make.setdefault(topic.name, {}).update(dict.fromkeys(missing))
        if topic.name == GROUP_METADATA_TOPIC:
            self._leave_groups()
            self._start_task(self._lead_groups())
        if self._logs_to_make and self._making_logs is None:
            self._make_some_logs()
            self._making_logs = self._start_task(self._make_logs()) if self._logs_to_make else None

    async def _make_logs(self) -> None:
        try:
            while self._logs_to_make:
                await asyncio.sleep(0)  # making one takes a good part of a millisecond
                self._make_some_logs()
                self._tell_of_logs()
        finally:
            self._making_logs = None
            self._tell_of_logs()

    def _tell_of_logs(self) -> None:
        self._some_logs_made.set()
        self._some_logs_made.clear()

    def _make_some_logs(self) -> None:
        for _ in range(_LOGS_AT_ONCE):
            if not self._logs_to_make:
                return
            name, indexes = self._logs_to_make.popitem(last=False)
            index = next(iter(indexes))
            del indexes[index]
            if self._make_log(name, index) and indexes:
                self._logs_to_make[name] = indexes

    def _make_log(self, name: str, index: int) -> bool:
        """Hold a partition that is missing; where that fails, its topic is left alone, and tried again later."""
        topic = self.image.topics.get(name)
        if topic is None or index >= len(topic.partitions) or not self.partitions.follow(topic, (index,)):
            return True  # it was deleted, or moved, in the meantime
        try:
            self.partitions.open(topic, index)
        except ApiError as error:
            if name not in self._topics_without_logs:
                logger.error("partitions of %s cannot be served, trying again: %s", name, error.message)
                self._topics_without_logs.add(name)
            return False
        self._topics_without_logs.discard(name)
        if name == GROUP_METADATA_TOPIC:
            self._start_task(self._lead_groups())
        return True

    async def logs_are_made(self, topics: Collection[str]) -> None:
        """Wait until the logs of these topics are there, but for those that cannot be made; others' are not waited
        for."""
        while self._making_logs is not None and not self._logs_to_make.keys().isdisjoint(topics):
            await self._some_logs_made.wait()

    def _drop_topic(self, topic: TopicImage) -> None:
        for partition in self.partitions.forget(topic):
            self._drop_partition(partition)

    def _drop_partition(self, partition: Partition) -> None:
        """The topic is gone, or others have this replica's place."""
        self.replication.forget(partition)
        self.waiting.disturbed(partition)
        self.waiting.disturbed(partition.end)
        self.fetch_sessions.disturbed(partition)
        try:
            self.logs.delete(partition.topic, partition.index, self.now_ms())
        except ApiError as error:  # the next start finds it and sets it aside
            logger.error("%s", error.message)
        if partition.topic == GROUP_METADATA_TOPIC and self._groups_led.pop(partition.index, None) is not None:
            self.groups.unload(partition.index)

    def _leave_groups(self) -> None:
        """Coordinate no more what was loaded in a leader epoch that is over: another coordinator may have written."""
        for index, epoch in list(self._groups_led.items()):
            if not self._leads_groups(index, epoch):
                del self._groups_led[index]
                self.groups.unload(index)

    async def _lead_groups(self) -> None:
        """Load the partitions of `__consumer_offsets` that this node leads in a new epoch."""
        held = self.partitions.by_name.get(GROUP_METADATA_TOPIC, {})
        for index, epoch in [(index, partition.leader_epoch) for index, partition in held.items()]:
            if self._leads_groups(index, epoch) and index not in self._groups_led:
                self._groups_led[index] = epoch
                await self.groups.load(index)

    def _leads_groups(self, index: int, epoch: int) -> bool:
        partition = self.partitions.get(GROUP_METADATA_TOPIC, index)
        return partition is not None and partition.leader == self.node_id and partition.leader_epoch == epoch

    def _log_config_of(self, topic: str) -> LogConfig:
        """The topic's log config on this broker."""
        return self._log_configs.of(self.image, topic)

    def _open_log(self, topic: TopicImage, index: int) -> PartitionLog:
        return self.logs.get_or_create(
            topic.name, index, self._log_config_of(topic.name), self.now_ms(), topic_id=topic.topic_id
        )

    # -- housekeeping --------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        self._topics_without_logs &= self.image.topics.keys()
        for topic in [self.image.topics[name] for name in sorted(self._topics_without_logs)]:
            self._follow_partitions(topic, range(len(topic.partitions)))
        self.logs.maintain(self.now_ms())
        for directory in self.logs.directories:
            if directory.offline_reason is not None:
                self.node.log_failed(directory.offline_reason)

    def _background(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Run file work in a thread and call back on the loop; before the loop is free, at once."""

        async def run() -> None:
            try:
                async with self._file_work:
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
            logger.error("a background task failed", exc_info=task.exception())

    # -- end -----------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Have the controller move what this broker leads, while clients are still served."""
        quorum = self.node.quorum
        quorum.on_majority_gone = self.lifecycle.majority_gone
        alone = len(self.image.brokers) == 1
        if not alone and quorum.majority_is_gone:
            logger.info("stopping without the controller's consent: a majority of the quorum is gone")
        elif not alone and not await self.lifecycle.shut_down(_HAND_OVER_TIMEOUT_MS):
            logger.warning("the controller did not agree to the stop in time: stopping without it")
        self.lifecycle.close()

    async def stop(self) -> None:
        """Stop cleanly, all but `close`: everything is on disk."""
        await self.cleaner.close()
        self.replication.close()
        self.groups.close()
        await asyncio.sleep(0)  # the answers that closing the coordinator gave
        self.router.close()
        self.logs.flush_all(self.now_ms())
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self, *, clean: bool) -> None:
        """Close the logs; clean: with the marker, which holds for the metadata log in a directory of theirs, too."""
        self.replication.close()  # the image may have had something followed since
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
