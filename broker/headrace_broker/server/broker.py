"""One node, put together: data directories, metadata, logs, listeners, coordinators, and their clean end.

The order of a start is what makes it safe: directories are locked and checked, the metadata log is replayed and led,
the logs are opened, the sockets are bound, the broker registers itself with the ports it really got, missing logs are
made, groups are loaded, and only then is anyone served.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.service import GroupCoordinator
from headrace_broker.log.admission import AppendOrigin
from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectory, LogDirectoryError
from headrace_broker.log.log import AppendInfo, PartitionLog
from headrace_broker.log.manager import LogManager
from headrace_broker.log.storage import DiskStorage, Storage
from headrace_broker.metadata.cluster import bootstrap_records, register_broker, unfence_broker
from headrace_broker.metadata.delta import MetadataDelta
from headrace_broker.metadata.image import TOPIC_RESOURCE, Endpoint, MetadataImage, TopicImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.topic_names import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC
from headrace_broker.protocol.errors import ApiError
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.connection import Connection, ConnectionLimits
from headrace_broker.server.data_dirs import StartError, directory_id, open_directories, random_uuid
from headrace_broker.server.descriptors import descriptor_budget
from headrace_broker.server.endpoints import Listener
from headrace_broker.server.listening import Listening
from headrace_broker.server.metadata_log import MetadataLog
from headrace_broker.server.metadata_service import MetadataService
from headrace_broker.server.offsets_topic import OffsetsTopic
from headrace_broker.server.partitions import Partition, PartitionTable, changed_topics
from headrace_broker.server.producer_id_block import ProducerIdBlock
from headrace_broker.server.receive_memory import ReceiveMemory, bytes_max
from headrace_broker.server.routing import RequestRouter, load_routes
from headrace_broker.server.waiting import Waiting
from headrace_broker.server.wakefulness import Wakefulness

logger = logging.getLogger(__name__)

_MAINTAIN_MS = 1000
_SWEEP_MS = 10_000
_LOGS_AT_ONCE = 8


class Broker:
    """One running node.  `await Broker.start(config)` serves; `await broker.stop()` ends it cleanly."""

    def __init__(self, config: BrokerConfig, storage: Storage) -> None:
        self.config = config
        self.node_id = config.node_id
        self.cluster_id = ""
        self.new_id = random_uuid
        self._storage = storage
        self._loop = asyncio.get_running_loop()
        self.waiting = Waiting(self._loop)
        budget = descriptor_budget()
        self.logs = LogManager(
            storage,
            config.log_dirs,
            background=self._background,
            next_random=random.randrange,
            retention_check_interval_ms=config.log_retention_check_interval_ms,
            producer_id_expiration_ms=config.producer_id_expiration_ms,
            open_segments_max=budget.open_segments_max,
        )
        self._directories = list(self.logs.directories)
        if config.metadata_log_dir is not None and config.metadata_log_dir not in config.log_dirs:
            self._directories.insert(0, LogDirectory(storage, config.metadata_log_dir))
        self.metadata: MetadataService
        self.partitions = PartitionTable(config.node_id, self._open_log)
        self.producer_ids: ProducerIdBlock
        offsets_topic = OffsetsTopic(config.node_id, lambda: self.metadata.image, self.partitions, self.append)
        self.groups = GroupCoordinator(offsets_topic, _group_config(config), self.now_ms)
        self.router = RequestRouter(
            self,
            load_routes(),
            connections_max=budget.connections_max,
            wakefulness=Wakefulness(self._loop),
            receive_memory=ReceiveMemory(bytes_max(config.queued_max_request_bytes)),
        )
        self._limits = ConnectionLimits(request_bytes_max=config.socket_request_max_bytes)
        self._listening = Listening(
            config.socket_listen_backlog_size, config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes
        )
        self._advertised: tuple[Listener, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self._groups_led: set[int] = set()
        self._topics_to_follow: dict[str, None] = {}
        self._topics_without_logs: set[str] = set()
        self._making_logs: asyncio.Task[None] | None = None
        self._log_configs: dict[tuple[tuple[str, str], ...], LogConfig] = {}

    @classmethod
    async def start(
        cls, config: BrokerConfig, *, storage: Storage | None = None, cluster_id: str | None = None
    ) -> Broker:
        """Start a node on its data directories and serve; raises StartError with one line to show."""
        storage = storage or DiskStorage()
        broker = cls(config, storage)
        broker.cluster_id = open_directories(storage, broker._directories, config.node_id, cluster_id)
        try:
            await broker._serve()
        except BaseException as error:
            broker._listening.close()
            broker._cancel_timers()
            for directory in broker._directories:
                directory.release()
            if isinstance(error, ApiError):  # a log that cannot be written
                raise StartError(error.message) from None
            raise
        return broker

    # -- what handlers use ---------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds."""
        return time.time_ns() // 1_000_000

    def append(
        self, partition: Partition, records: memoryview, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Append one batch as leader, move the high watermark, wake who waits for it; raises ApiError."""
        log = partition.log
        info = log.append_as_leader(
            records, leader_epoch=partition.leader_epoch, now_ms=time.time_ns() // 1_000_000, origin=origin
        )
        # The only replica is in sync by definition: what is written is committed.
        log.high_watermark = info.last_offset + 1
        if self.waiting.waiting_for(partition):
            self.waiting.advanced(partition, log.high_watermark, len(records))
        return info

    def endpoint_of(self, broker_id: int, listener: str) -> Endpoint | None:
        """Where a broker is reached from this listener's network, or None."""
        broker = self.metadata.image.brokers.get(broker_id)
        return None if broker is None else broker.endpoint(listener)

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the first listener, with the port really bound."""
        first = self._advertised[0]
        return first.host, first.port

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """What is advertised, with the ports really bound."""
        return self._advertised

    # -- start ---------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        log = MetadataLog(self._storage, self._metadata_directory(), self.node_id, self.now_ms)
        self.metadata = MetadataService(log)
        self.producer_ids = ProducerIdBlock(self.metadata, self.node_id)
        try:
            self.logs.load(self._log_config_of, self.now_ms())
        except LogDirectoryError as error:
            raise StartError(str(error)) from None
        self._put_unknown_logs_away()
        self._bind()
        self._register()
        for topic in self.metadata.image.topics.values():
            self.partitions.follow(topic)
        self.metadata.subscribe(self._follow)
        await self._lead_groups()
        self.groups.start()
        await self._listening.serve(self._new_connection)
        self._every(_MAINTAIN_MS, self._maintain)
        self._every(_SWEEP_MS, self._sweep)

    def _metadata_directory(self) -> LogDirectory:
        path = self.config.metadata_dir.rstrip("/") or "/"
        return next(directory for directory in self._directories if directory.path == path)

    def _put_unknown_logs_away(self) -> None:
        """Finish the deletions that a crash interrupted; what the cluster never knew is kept under another name."""
        topics = self.metadata.image.topics
        if self.logs.logs and not self.metadata.image.features:
            lost = f"{self._metadata_directory().path}/{CLUSTER_METADATA_TOPIC}-0"
            raise StartError(
                f"{lost} is empty, yet there are {len(self.logs.logs)} partitions: put back a copy of it, "
                "or move the partitions away to begin anew"
            )
        for (topic, index), log in list(self.logs.logs.items()):
            known = topics.get(topic)
            if log.topic_id in self.metadata.deleted_topic_ids:
                logger.info("%s-%d belongs to a topic that was deleted and goes with it", topic, index)
                self.logs.delete(topic, index, self.now_ms())
            elif known is None or index >= len(known.partitions) or log.topic_id not in (None, known.topic_id):
                logger.warning("%s-%d belongs to no topic of this cluster and is set aside as stray", topic, index)
                self.logs.set_aside(topic, index)

    def _bind(self) -> None:
        bound = [self._listening.bind(listener) for listener in self.config.listeners]
        ports = {listener.name: listener.port for listener in bound}
        self._advertised = tuple(
            item if item.port else Listener(item.name, item.host, ports[item.name])
            for item in self.config.advertised_listeners
        )

    def _register(self) -> None:
        service = self.metadata
        if not service.image.features:
            service.submit_now(lambda image: Outcome(None, bootstrap_records()))
        endpoints = [Endpoint(item.name, item.host, item.port) for item in self._advertised]
        log_dirs = [directory_id(item.meta) for item in self.logs.directories]
        next_offset = service.log.next_offset
        service.submit_now(
            lambda image: register_broker(
                image,
                self.node_id,
                next_offset=next_offset,
                incarnation_id=random_uuid(),
                endpoints=endpoints,
                rack=self.config.rack,
                log_dirs=log_dirs,
            )
        )
        service.submit_now(lambda image: unfence_broker(image.brokers[self.node_id]))

    def _new_connection(self, listener: str) -> Connection:
        return Connection(self.router, listener, self._limits)

    # -- following the image -------------------------------------------------------------------------------------

    def _follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for removed in delta.removed_topics.values():
            self._drop_topic(removed)
        self.groups.topics_deleted([topic.name for topic in delta.removed_topics.values()])
        self._follow_topics([topic.name for topic in changed_topics(delta, image)])
        for kind, name in delta.changed_configs:
            if kind == TOPIC_RESOURCE and name in image.topics:
                config = self._log_config_of(name)
                for partition in self.partitions.by_name.get(name, {}).values():
                    partition.log.config = config

    def _follow_topics(self, names: Iterable[str]) -> None:
        """Hold the partitions of these topics: the first logs are made at once, many more in the background."""
        self._topics_to_follow.update(dict.fromkeys(names))
        self._make_some_logs()
        if self._topics_to_follow and self._making_logs is None:
            self._making_logs = self._start_task(self._make_logs())

    async def _make_logs(self) -> None:
        try:
            while self._topics_to_follow:
                await asyncio.sleep(0)  # making one takes a good part of a millisecond
                self._make_some_logs()
        finally:
            self._making_logs = None

    def _make_some_logs(self) -> None:
        left = _LOGS_AT_ONCE
        for name in list(self._topics_to_follow):
            left -= self._hold_logs(name, left)
            if left <= 0:
                return
            del self._topics_to_follow[name]
            if name == GROUP_METADATA_TOPIC:
                self._start_task(self._lead_groups())

    def _hold_logs(self, name: str, logs_max: int) -> int:
        """Make logs that the topic lacks; what fails leaves it without them, and is tried again."""
        topic = self.metadata.image.topics.get(name)
        try:
            opened = self.partitions.follow(topic, logs_max) if topic is not None else 0
        except ApiError as error:
            if name not in self._topics_without_logs:
                logger.error("partitions of %s cannot be served, trying again: %s", name, error.message)
                self._topics_without_logs.add(name)
            return 0
        self._topics_without_logs.discard(name)
        return opened

    async def logs_are_made(self) -> None:
        """Wait until the logs of every topic are there, but for those that cannot be made."""
        if self._making_logs is not None:
            await asyncio.wait({self._making_logs})

    def _drop_topic(self, topic: TopicImage) -> None:
        for partition in self.partitions.forget(topic):
            self.waiting.disturbed(partition)
            try:
                self.logs.delete(topic.name, partition.index, self.now_ms())
            except ApiError as error:  # the next start finds it and sets it aside
                logger.error("%s", error.message)
        if topic.name == GROUP_METADATA_TOPIC:
            for index in self._groups_led:
                self.groups.unload(index)
            self._groups_led.clear()

    async def _lead_groups(self) -> None:
        """Load the partitions of `__consumer_offsets` that this node leads and has not loaded yet."""
        for index, partition in list(self.partitions.by_name.get(GROUP_METADATA_TOPIC, {}).items()):
            if partition.leader == self.node_id and index not in self._groups_led:
                self._groups_led.add(index)
                await self.groups.load(index)

    def _log_config_of(self, topic: str) -> LogConfig:
        """The topic's log config; topics with equal settings share one."""
        properties = self.metadata.image.topic_configs(topic)
        key = tuple(sorted(properties.items()))
        known = self._log_configs.get(key)
        if known is None:
            known = self._log_configs[key] = LogConfig.from_properties(properties, self.config.log_properties)
        return known

    def _open_log(self, topic: TopicImage, index: int) -> PartitionLog:
        return self.logs.get_or_create(
            topic.name, index, self._log_config_of(topic.name), self.now_ms(), topic_id=topic.topic_id
        )

    # -- housekeeping --------------------------------------------------------------------------------------------

    def _every(self, interval_ms: int, work: Callable[[], None]) -> None:
        """Run `work` again and again until the broker stops; a failure is logged and does not end it."""

        def run() -> None:
            try:
                work()
            except Exception:
                logger.exception("housekeeping failed")
            self._timers[work] = self._loop.call_later(interval_ms / 1000, run)

        self._timers[work] = self._loop.call_later(interval_ms / 1000, run)

    def _maintain(self) -> None:
        self.router.relieve_memory()
        self._follow_topics(self._topics_without_logs)
        self.logs.maintain(self.now_ms())

    def _sweep(self) -> None:
        self.router.sweep(_SWEEP_MS)

    def _background(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        """Run file work in a thread and call back on the loop; before the loop is free, at once."""

        async def run() -> None:
            try:
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

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.waiting.close()

    # -- end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop cleanly: no new connections, connections closed, everything on disk, the clean marker written."""
        self._listening.close()
        self._cancel_timers()
        self.groups.close()
        await asyncio.sleep(0)  # the answers that closing the coordinator gave
        self.router.close()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.metadata.log.close()
        broker = self.metadata.image.brokers[self.node_id]
        self.logs.close(clean=True, broker_epoch=broker.epoch, now_ms=self.now_ms())
        for directory in self._directories:
            if directory not in self.logs.directories:
                directory.close(clean=True, broker_epoch=broker.epoch)
        logger.info("broker %d stopped", self.node_id)


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
