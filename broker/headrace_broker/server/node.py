"""One node: its data directories, its replica of the metadata quorum, its listeners and its roles.

A node is a broker, a controller, or both (`process.roles`). The order of the start is important for safety. The node
locks and checks the directories, binds the sockets, joins the quorum, and applies the committed metadata. After that, a
broker opens its logs. The broker then registers with the controller and reports the bound ports. Finally, the broker
serves clients.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import DiskStorage, Storage
from headrace_broker.metadata.cluster import bootstrap_records
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.protections import refusal_reason
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.server.broker import Broker
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.controller import ControllerPolicy, ControllerService
from headrace_broker.server.data_dirs import StartError, open_directories, random_uuid
from headrace_broker.server.kraft.metadata_image import CommittedImage
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.kraft.peers import Peers
from headrace_broker.server.kraft.quorum import Quorum
from headrace_broker.server.kraft.quorum_watch import CHECK_INTERVAL_MS, QuorumWatch
from headrace_broker.server.kraft.snapshot_files import check_bootstrap_file
from headrace_broker.server.kraft.snapshotter import SnapshotPolicy, Snapshotter
from headrace_broker.server.kraft.voter_discovery import with_voters
from headrace_broker.server.log_config_provider import controller_topic_configs
from headrace_broker.server.network.busy_poll import BusyPoll
from headrace_broker.server.network.connection import Connection, ConnectionLimits
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.controller_channel import ControllerChannel, NoControllerError
from headrace_broker.server.network.endpoints import Listener
from headrace_broker.server.network.file_descriptor_limit import file_descriptor_budget
from headrace_broker.server.network.purgatory import Purgatory
from headrace_broker.server.network.request_memory import RequestMemoryPool, request_memory_limit
from headrace_broker.server.network.routing import RequestRouter, load_routes
from headrace_broker.server.network.socket_server import SocketServer

if TYPE_CHECKING:
    from headrace_broker.server.metrics.endpoint import MetricsEndpoint
    from headrace_broker.server.metrics.meter import Meter

logger = logging.getLogger(__name__)

_IDLE_CHECK_MS = 10_000
_MAINTENANCE_MS = 1000
_COMMITTED_METADATA_TIMEOUT_MS = 5_000
_CLOCK_SKEW_WARN_MS = 60_000


def _controller_policy(config: BrokerConfig) -> ControllerPolicy:
    return ControllerPolicy(
        session_timeout_ms=config.broker_session_timeout_ms,
        auto_rebalance_leaders=config.auto_leader_rebalance_enable,
        rebalance_interval_s=config.leader_imbalance_check_interval_seconds,
        imbalance_percentage=config.leader_imbalance_per_broker_percentage,
        internal_replication_factor=config.offsets_topic_replication_factor,
    )


def _snapshot_policy(config: BrokerConfig) -> SnapshotPolicy:
    return SnapshotPolicy(
        max_bytes_between=config.metadata_log_max_record_bytes_between_snapshots,
        max_interval_ms=config.metadata_log_max_snapshot_interval_ms,
        retention_bytes=config.metadata_max_retention_bytes,
        retention_ms=config.metadata_max_retention_ms,
    )


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Environment:
    """The storage, clock, random numbers and network of a node: the real ones, unless a simulation replaces them."""

    storage: Storage = field(default_factory=DiskStorage)
    now_ms: Callable[[], int] = _wall_clock_ms
    rng: random.Random = field(default_factory=random.Random)
    new_id: Callable[[], bytes] = random_uuid
    listening: SocketServer | None = None
    processors: int | None = None


class Node:
    """One running node. `await Node.start(config)` starts it; `await node.stop()` stops it cleanly."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self.config = config
        self.node_id = config.node_id
        self.cluster_id = ""
        self.environment = environment
        self.now_ms = environment.now_ms
        self.new_id = environment.new_id
        self._loop = asyncio.get_running_loop()
        self.purgatory = Purgatory(self._loop)
        self.committed = CommittedImage()
        self.quorum: Quorum
        self.controller: ControllerService | None = None
        self.channel: ControllerChannel
        self.own_channel: ControllerChannel
        """The channel for this broker's own requests to the controller; `channel` is for the requests of clients.
        """
        budget = file_descriptor_budget()
        self.router = RequestRouter(
            self,
            load_routes(),
            connections_max=budget.connections_max,
            busy_poll=BusyPoll(self._loop, processors=environment.processors),
            request_memory=RequestMemoryPool(request_memory_limit(config.queued_max_request_bytes)),
        )
        self.broker: Broker | None = (
            Broker(self, budget.open_segments_max) if "broker" in config.process_roles else None
        )
        self._directories = [] if self.broker is None else list(self.broker.logs.directories)
        if config.metadata_dir not in (item.path for item in self._directories):
            self._directories.insert(0, LogDirectory(environment.storage, config.metadata_dir))
        self._limits = ConnectionLimits(request_bytes_max=config.socket_request_max_bytes)
        self._listening = environment.listening or SocketServer(
            config.socket_listen_backlog_size, config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes
        )
        self.advertised: tuple[Listener, ...] = ()
        self._meter: Meter | None = None
        self.metrics: MetricsEndpoint | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self.failed: asyncio.Future[str] = self._loop.create_future()
        """A future that completes when this node must stop and other nodes can take over. Its result is the reason.

        When the future completes, the process exits.
        """
        self.is_serving = False
        """Whether the start has completed."""
        self.watch: QuorumWatch
        self._snapshotter: Snapshotter
        self._has_joined = False
        self._has_opened_logs = False

    @classmethod
    async def start(
        cls, config: BrokerConfig, *, environment: Environment | None = None, cluster_id: str | None = None
    ) -> Node:
        """Start a node on its data directories and serve. Raises StartError."""
        node = cls(await with_voters(config), environment or Environment())
        await node.open(cluster_id)
        return node

    async def open(self, cluster_id: str | None = None) -> None:
        """Start this node; called by `start`. Raises StartError.

        Unformatted directories are formatted with `cluster_id`. If `cluster_id` is None, they are formatted with the
        cluster id of the formatted directories, or with a new id.
        """
        storage = self.environment.storage
        config = self.config
        must_be_formatted = None if set(config.voters) == {self.node_id} else config.metadata_dir
        self.cluster_id = open_directories(
            storage, self._directories, self.node_id, cluster_id, must_be_formatted=must_be_formatted
        )
        try:
            await self._serve_unless_failed()
        except BaseException as error:
            if self.metrics is not None:
                self.metrics.close()
            self._listening.close()
            self._cancel_timers()
            await self._release_directories()
            if isinstance(error, ApiError):  # a log that cannot be written
                raise StartError(error.message) from None
            raise

    async def _release_directories(self) -> None:
        """Release the directories after a failed start.

        If the logs were not opened yet, the directories keep the clean shutdown marker of the last stop.
        """
        is_untouched = not self._has_opened_logs
        if self._has_joined:
            self.quorum.leave()
        if self.controller is not None:
            self.controller.close()
        if self._has_joined and is_untouched:
            self.router.close()
            await self.quorum.close()
            is_untouched = self.quorum.log.is_closed_cleanly
        for directory in self._directories:
            if is_untouched:
                # if this fails, the directories have no clean shutdown marker, and the next start recovers the logs
                with suppress(OSError):
                    directory.undo_mark_in_use()
            directory.release()

    @property
    def image(self) -> MetadataImage:
        """The committed metadata image."""
        return self.committed.image

    @property
    def address(self) -> tuple[str, int]:
        """The host of the first listener, and the port that was bound."""
        first = self.advertised[0]
        return first.host, first.port

    # -- start -------------------------------------------------------------------------------------------------------

    async def _serve_unless_failed(self) -> None:
        serving = self._loop.create_task(self._serve())
        try:
            ends: list[asyncio.Future[Any]] = [serving, self.failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not serving.done():
                serving.cancel()
                await asyncio.wait((serving,))
        if self.failed.done():
            await asyncio.gather(serving, return_exceptions=True)
            raise StartError(self.failed.result())
        await serving
        self.is_serving = True

    def on_log_failure(self, reason: str) -> None:
        """Stop the node because a log cannot be written or synced.

        If the cluster has no other node, this node does not stop.
        """
        if not self._is_alone and not self.failed.done():
            self.failed.set_result(reason)

    def on_metadata_log_failure(self, reason: str) -> None:
        """Stop the node because the metadata log failed.

        If the cluster has no other node and this node has already started, this node does not stop.
        """
        if not (self._is_alone and self.is_serving) and not self.failed.done():
            self.failed.set_result(reason)

    @property
    def _is_alone(self) -> bool:
        return set(self.config.voters) == {self.node_id} and len(self.image.brokers) <= 1

    def _on_misconfiguration(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_result(reason)

    def _on_high_watermark_applied(self) -> None:
        self._check_protections()
        self._snapshotter.on_commit()

    def _check_protections(self) -> None:
        """Stop the node, even if no other runs, if the metadata contains protections that headrace does not support.

        Do not check the image before all committed batches were applied, because a later batch may remove a protection.
        """
        if self.image.protections and (self._has_opened_logs or self.quorum.raft.is_caught_up):
            self._on_misconfiguration(refusal_reason(self.image.protections, self.image.offset))

    async def _serve(self) -> None:
        self._bind()
        for directory in self._directories:
            directory.mark_in_use()
        self._join_quorum()
        self._has_joined = True
        await self._serve_metrics()
        await self._listening.serve(self._new_connection, self.config.controller_listeners)
        self.run_every(_MAINTENANCE_MS, self.router.close_stalled_connections)
        self.run_every(_MAINTENANCE_MS, self.quorum.log.resume_if_space_available)
        self.run_every(_IDLE_CHECK_MS, lambda: self.router.sweep(_IDLE_CHECK_MS))
        self.run_every(CHECK_INTERVAL_MS, self.watch.check)
        # if a snapshot contains all records, no commit after the start triggers the check
        self.run_every(_MAINTENANCE_MS, self._check_protections)
        if self.broker is None:
            self.committed.pop_removed_topics()  # only a broker uses them
            return
        await self.watch.wait_until_caught_up(self.config.initial_broker_registration_timeout_ms)
        self._check_protections()
        if self.failed.done():  # clients must not connect before this task is cancelled
            raise StartError(self.failed.result())
        self._has_opened_logs = True
        await self.broker.start(lambda: self._listening.serve(self._new_connection, self.config.listeners))

    def _bind(self) -> None:
        config = self.config
        bound = [self._listening.bind(listener) for listener in (*config.listeners, *config.controller_listeners)]
        ports = {listener.name: listener.port for listener in bound}
        self.advertised = tuple(
            item if item.port else Listener(item.name, item.host, ports[item.name])
            for item in config.advertised_listeners
        )

    def _new_connection(self, listener: str) -> Connection:
        if self._meter is not None:
            return self._meter.new_connection(listener, self._limits)
        return Connection(self.router, listener, self._limits)

    def _join_quorum(self) -> None:
        config = self.config
        directory = next(item for item in self._directories if item.path == config.metadata_dir)
        log = MetadataLog(
            self.environment.storage,
            directory,
            self.now_ms,
            segment_bytes=config.metadata_log_segment_bytes,
            segment_ms=config.metadata_log_segment_ms,
        )
        if log.log_end_offset == 0:  # otherwise the log already contains the file's records
            check_bootstrap_file(self.environment.storage, config.metadata_dir)
        raft_config = RaftConfig(
            node_id=self.node_id,
            voters=frozenset(config.voters),
            cluster_id=self.cluster_id,
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
            election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
            fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
        )
        self.quorum = Quorum(Raft(raft_config, log, log.read_state(), self.environment.rng), log)
        self.watch = QuorumWatch(self.quorum, config.voters, self.node_id, self.cluster_id, self._on_misconfiguration)
        self._snapshotter = Snapshotter(log, lambda: self.committed.image, _snapshot_policy(config), self.now_ms)
        self.quorum.on_commit = self.committed.apply
        self.quorum.on_failure = self.on_metadata_log_failure
        self.quorum.on_snapshot = self.committed.replace
        self.quorum.on_high_watermark_applied = self._on_high_watermark_applied
        if self.node_id in config.voters:
            self.controller = ControllerService(
                self.quorum,
                self.committed,
                cluster_id=self.cluster_id,
                topic_configs=controller_topic_configs(config.log_properties),
                policy=_controller_policy(config),
            )
            self.controller.on_active = self._bootstrap
        others = {voter: address for voter, address in config.voters.items() if voter != self.node_id}
        channel = functools.partial(
            ControllerChannel,
            self.node_id,
            others,
            lambda: self.quorum.raft.leader_id,
            self.dispatch if self.controller else None,
            self.watch.unavailable_reason,
        )
        self.channel = channel()
        self.own_channel = channel(request_timeout_ms=config.broker_session_timeout_ms // 2)
        self.quorum.on_leader_changed = self._leader_changed
        self.quorum.start(
            Peers(
                others,
                self.quorum.on_connection_refused,
                request_timeout_ms=config.controller_quorum_request_timeout_ms,
                setup_timeout_ms=config.controller_quorum_request_timeout_ms,
            )
        )

    def _leader_changed(self) -> None:
        self.channel.leader_changed()
        self.own_channel.leader_changed()

    async def _bootstrap(self) -> None:
        """Write the first records of a new cluster: metadata.version and this node's configured min.insync.replicas."""
        assert self.controller is not None
        min_insync_replicas = LogConfig.from_properties({}, self.config.log_properties).min_insync_replicas
        await self.controller.submit(
            lambda image: ControllerResult(None, bootstrap_records(image, min_insync_replicas))
        )

    async def wait_for_committed_metadata(self, topics: Collection[str] = ()) -> None:
        """Wait until this node has applied the committed metadata and has created the logs of `topics`.

        The controller has committed a metadata change, for example a new topic. The caller responds to the client after
        this method has returned. The client then finds the change on this node. The method also returns after a
        timeout, because the change is already committed.
        """
        if self.controller is None or not self.controller.is_active:
            try:
                async with asyncio.timeout(_COMMITTED_METADATA_TIMEOUT_MS / 1000):
                    await self.quorum.wait_for_offset(await self._committed_offset())
            except (NoControllerError, TimeoutError):
                logger.info(
                    "Node %d: responding to a client, although this node may not have applied the latest committed "
                    "metadata yet",
                    self.node_id,
                )
        if self.broker is not None:
            await self.broker.wait_until_logs_created(topics)

    async def _committed_offset(self) -> int:
        """Request the high watermark of the metadata log from the leader of the quorum."""
        partitions = [DescribeQuorumRequestPartitionData()]
        topics = [DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=partitions)]
        response = await self.channel.request(DescribeQuorumRequest(topics=topics), _COMMITTED_METADATA_TIMEOUT_MS)
        return response.topics[0].partitions[0].high_watermark if response.topics else -1

    def check_clock(self, offset: int, before_ms: int) -> None:
        """Compare this node's clock with the controller's clock. Raises StartError if they differ too much.

        The controller appended the record at `offset` between `before_ms` and now, both according to this node's clock.
        """
        written_ms = self.quorum.log.timestamp_of(offset)
        if written_ms is None:
            return
        ahead_ms = max(0, before_ms - written_ms) or -max(0, written_ms - self.now_ms())
        if abs(ahead_ms) < _CLOCK_SKEW_WARN_MS:
            return
        skew = (
            f"the clock of node {self.node_id} is {abs(ahead_ms) // 1000} s "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} the controller's"
        )
        if abs(ahead_ms) > self.config.log_defaults.message_timestamp_after_max_ms:
            raise StartError(
                f"{skew}, more than log.message.timestamp.after.max.ms: one node would reject records because of their "
                "timestamps, and another node would accept them; synchronize both clocks with NTP, then start this "
                "node again"
            )
        logger.warning(
            "%s, so record timestamps and retention are wrong by this difference; synchronize both clocks with NTP",
            skew,
        )

    # -- requests to the controller ----------------------------------------------------------------------------------

    async def dispatch(self, request: Request[Any], version: int) -> Response:
        """Handle a controller request from this node's own broker. Raises ApiError NOT_CONTROLLER."""
        route = self.router.controller_routes[request.__api_key__]
        assert route.handle is not None
        context = RequestContext(self, "", None, "")
        result = route.handle(context, request, version)
        response: Response = await result if asyncio.iscoroutine(result) else result
        return response

    def monotonic_ms(self) -> int:
        """Return the monotonic time that the quorum uses, in milliseconds."""
        return int(self._loop.time() * 1000)

    # -- timers ------------------------------------------------------------------------------------------------------

    def run_every(self, interval_ms: int, work: Callable[[], None]) -> None:
        """Run `work` periodically until the node stops.

        If `work` raises an exception, log it and continue with the next run.
        """

        def run() -> None:
            try:
                work()
            except Exception:
                logger.exception("Node: periodic task failed")
            self._timers[work] = self._loop.call_later(interval_ms / 1000, run)

        self._timers[work] = self._loop.call_later(interval_ms / 1000, run)

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.purgatory.close()

    async def _serve_metrics(self) -> None:
        """Collect metrics and serve them to Prometheus, if configured. Raises StartError."""
        if not self.config.metrics_listeners:
            return
        from headrace_broker.server.metrics.collector import Collector
        from headrace_broker.server.metrics.endpoint import MetricsEndpoint
        from headrace_broker.server.metrics.meter import Meter
        from headrace_broker.server.metrics.quorum_meter import QuorumMeter

        meter = self._meter = Meter(self.router)
        quorum_meter = QuorumMeter(self)
        if self.broker is not None:
            meter.instrument_broker(self.broker)
            self.broker.logs.on_flushed = quorum_meter.record_flush
        self.metrics = MetricsEndpoint(Collector(self, meter, quorum_meter).page)
        await self.metrics.serve(self.config.metrics_listeners)

    # -- stop --------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop cleanly: move leadership to other nodes, close connections, sync files, write clean shutdown markers."""
        if self.metrics is not None:
            self.metrics.close()
        if self.broker is not None:
            await self.broker.controlled_shutdown()
        self._listening.close()
        self._cancel_timers()
        if self.broker is not None:
            await self.broker.stop()
        self.quorum.resign()
        await asyncio.sleep(0)
        self.router.close()
        self.channel.close()
        self.own_channel.close()
        if self.controller is not None:
            self.controller.close()
        await self._snapshotter.close()
        await self.quorum.close()
        self._close(clean=self.quorum.log.is_closed_cleanly)
        logger.info("Node %d stopped", self.node_id)

    def _close(self, *, clean: bool) -> None:
        """Close the logs and release the directories. If `clean` is set, this was a clean shutdown."""
        if self.broker is not None:
            self.broker.close(clean=clean)
        for directory in self._directories:
            if self.broker is None or directory not in self.broker.logs.directories:
                directory.close(clean=clean, broker_epoch=-1 if self.broker is None else self.broker.lifecycle.epoch)
