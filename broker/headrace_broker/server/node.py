"""One node: its data directories, its part in the quorum, its listeners, and the roles it plays.

A node is a broker, a controller, or both (`process.roles`).  The order of a start is what makes it safe: directories
are locked and checked, sockets are bound, the quorum is joined, the committed metadata is caught up with, and only then
does a broker open its logs, register with the ports it really got, and serve.
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
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome
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
from headrace_broker.server.kraft.quorum_watch import LOOK_INTERVAL_MS, QuorumWatch
from headrace_broker.server.kraft.snapshotter import SnapshotPolicy, Snapshotter
from headrace_broker.server.network.connection import Connection, ConnectionLimits
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.controller_channel import ControllerChannel, NoControllerError
from headrace_broker.server.network.descriptors import descriptor_budget
from headrace_broker.server.network.endpoints import Listener
from headrace_broker.server.network.listening import Listening
from headrace_broker.server.network.receive_memory import ReceiveMemory, bytes_max
from headrace_broker.server.network.routing import RequestRouter, load_routes
from headrace_broker.server.network.waiting import Waiting
from headrace_broker.server.network.wakefulness import Wakefulness
from headrace_broker.server.topic_rules import topic_rules

if TYPE_CHECKING:
    from headrace_broker.server.metrics.endpoint import MetricsEndpoint
    from headrace_broker.server.metrics.meter import Meter

logger = logging.getLogger(__name__)

_SWEEP_MS = 10_000
_RELIEVE_MS = 1000
_SETTLE_MS = 5_000
_CLOCKS_APART_WARN_MS = 60_000


def _controller_policy(config: BrokerConfig) -> ControllerPolicy:
    return ControllerPolicy(
        session_timeout_ms=config.broker_session_timeout_ms,
        rebalances_leaders=config.auto_leader_rebalance_enable,
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


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class Surroundings:
    """What a node has of the world: the machine's own, unless a simulation lends it others."""

    storage: Storage = field(default_factory=DiskStorage)
    now_ms: Callable[[], int] = _wall_ms
    rng: random.Random = field(default_factory=random.Random)
    new_id: Callable[[], bytes] = random_uuid
    listening: Listening | None = None
    processors: int | None = None


class Node:
    """One running node.  `await Node.start(config)` serves; `await node.stop()` ends it cleanly."""

    def __init__(self, config: BrokerConfig, surroundings: Surroundings) -> None:
        self.config = config
        self.node_id = config.node_id
        self.cluster_id = ""
        self.surroundings = surroundings
        self.now_ms = surroundings.now_ms
        self.new_id = surroundings.new_id
        self._loop = asyncio.get_running_loop()
        self.waiting = Waiting(self._loop)
        self.committed = CommittedImage()
        self.quorum: Quorum
        self.controller: ControllerService | None = None
        self.channel: ControllerChannel
        self.own_channel: ControllerChannel
        """For what this broker itself has to tell the controller; `channel` is for what it was asked."""
        budget = descriptor_budget()
        self.router = RequestRouter(
            self,
            load_routes(),
            connections_max=budget.connections_max,
            wakefulness=Wakefulness(self._loop, processors=surroundings.processors),
            receive_memory=ReceiveMemory(bytes_max(config.queued_max_request_bytes)),
        )
        self.broker: Broker | None = (
            Broker(self, budget.open_segments_max) if "broker" in config.process_roles else None
        )
        self._directories = [] if self.broker is None else list(self.broker.logs.directories)
        if config.metadata_dir not in (item.path for item in self._directories):
            self._directories.insert(0, LogDirectory(surroundings.storage, config.metadata_dir))
        self._limits = ConnectionLimits(request_bytes_max=config.socket_request_max_bytes)
        self._listening = surroundings.listening or Listening(
            config.socket_listen_backlog_size, config.socket_send_buffer_bytes, config.socket_receive_buffer_bytes
        )
        self.advertised: tuple[Listener, ...] = ()
        self._meter: Meter | None = None
        self.metrics: MetricsEndpoint | None = None
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self.failed: asyncio.Future[str] = self._loop.create_future()
        """Done, with the reason, when this node cannot go on and others can take its place: end the process then."""
        self.is_serving = False
        """Whether the start is done."""
        self.watch: QuorumWatch
        self._snapshotter: Snapshotter
        self._has_joined = False
        self._opens_logs = False

    @classmethod
    async def start(
        cls, config: BrokerConfig, *, surroundings: Surroundings | None = None, cluster_id: str | None = None
    ) -> Node:
        """Start a node on its data directories and serve; raises StartError with one line to show."""
        node = cls(config, surroundings or Surroundings())
        await node.open(cluster_id)
        return node

    async def open(self, cluster_id: str | None = None) -> None:
        """What `start` does once the node is made."""
        storage = self.surroundings.storage
        config = self.config
        joins_by = None if set(config.voters) == {self.node_id} else config.metadata_dir
        self.cluster_id = open_directories(storage, self._directories, self.node_id, cluster_id, joins_by=joins_by)
        try:
            await self._serve_or_fail()
        except BaseException as error:
            if self.metrics is not None:
                self.metrics.close()
            self._listening.close()
            self._cancel_timers()
            await self._give_back()
            if isinstance(error, ApiError):  # a log that cannot be written
                raise StartError(error.message) from None
            raise

    async def _give_back(self) -> None:
        """Release the directories; closed as cleanly as they were, where the start came to nothing before the logs."""
        is_as_before = not self._opens_logs
        if self._has_joined:
            self.quorum.leave()
        if self.controller is not None:
            self.controller.close()
        if self._has_joined and is_as_before:
            self.router.close()
            await self.quorum.close()
            is_as_before = self.quorum.log.is_closed_cleanly
        for directory in self._directories:
            if is_as_before:
                with suppress(OSError):  # then the next start checks it
                    directory.undo_begin()
            directory.release()

    @property
    def image(self) -> MetadataImage:
        """The committed cluster image."""
        return self.committed.image

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) of the first listener, with the port really bound."""
        first = self.advertised[0]
        return first.host, first.port

    # -- start -------------------------------------------------------------------------------------------------------

    async def _serve_or_fail(self) -> None:
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

    def log_failed(self, reason: str) -> None:
        """A partition's log cannot be written or synced.  Alone, a node goes on with what is sound; others leave."""
        if not self._is_alone and not self.failed.done():
            self.failed.set_result(reason)

    def metadata_failed(self, reason: str) -> None:
        """The same of the metadata log, without which no start comes to its end."""
        if not (self._is_alone and self.is_serving) and not self.failed.done():
            self.failed.set_result(reason)

    @property
    def _is_alone(self) -> bool:
        return set(self.config.voters) == {self.node_id} and len(self.image.brokers) <= 1

    def _misconfigured(self, fault: str) -> None:
        if not self.failed.done():
            self.failed.set_result(fault)

    async def _serve(self) -> None:
        self._bind()
        for directory in self._directories:
            directory.begin()
        self._join_quorum()
        self._has_joined = True
        await self._serve_metrics()
        await self._listening.serve(self._new_connection, self.config.controller_listeners)
        self.every(_RELIEVE_MS, self.router.relieve_memory)
        self.every(_RELIEVE_MS, self.quorum.log.come_back)
        self.every(_SWEEP_MS, lambda: self.router.sweep(_SWEEP_MS))
        self.every(LOOK_INTERVAL_MS, self.watch.look)
        if self.broker is None:
            self.committed.take_removed_topics()  # which only a broker has a use for
            return
        await self.watch.caught_up(self.config.initial_broker_registration_timeout_ms)
        self._opens_logs = True
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
            return self._meter.connection(listener, self._limits)
        return Connection(self.router, listener, self._limits)

    def _join_quorum(self) -> None:
        config = self.config
        directory = next(item for item in self._directories if item.path == config.metadata_dir)
        log = MetadataLog(
            self.surroundings.storage,
            directory,
            self.now_ms,
            segment_bytes=config.metadata_log_segment_bytes,
            segment_ms=config.metadata_log_segment_ms,
        )
        raft_config = RaftConfig(
            node_id=self.node_id,
            voters=frozenset(config.voters),
            cluster_id=self.cluster_id,
            election_timeout_ms=config.controller_quorum_election_timeout_ms,
            election_backoff_max_ms=config.controller_quorum_election_backoff_max_ms,
            fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
        )
        self.quorum = Quorum(Raft(raft_config, log, log.read_state(), self.surroundings.rng), log)
        self.watch = QuorumWatch(self.quorum, config.voters, self.node_id, self.cluster_id, self._misconfigured)
        self._snapshotter = Snapshotter(log, lambda: self.committed.image, _snapshot_policy(config), self.now_ms)
        self.quorum.on_commit = self.committed.apply
        self.quorum.on_failure = self.metadata_failed
        self.quorum.on_snapshot = self.committed.replace
        self.quorum.after_commit = self._snapshotter.committed
        if self.node_id in config.voters:
            self.controller = ControllerService(
                self.quorum,
                self.committed,
                cluster_id=self.cluster_id,
                rules=topic_rules(config.log_properties),
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
            self.watch.why,
        )
        self.channel = channel()
        self.own_channel = channel(silence_ms=config.broker_session_timeout_ms // 2)
        self.quorum.on_leader_changed = self._leader_changed
        self.quorum.start(
            Peers(
                others,
                self.quorum.refused,
                request_timeout_ms=config.controller_quorum_request_timeout_ms,
                setup_timeout_ms=config.controller_quorum_request_timeout_ms,
            )
        )

    def _leader_changed(self) -> None:
        self.channel.leader_changed()
        self.own_channel.leader_changed()

    async def _bootstrap(self) -> None:
        """A new cluster begins with a version of the metadata, and with the min.insync.replicas of this node's file."""
        assert self.controller is not None
        least = LogConfig.from_properties({}, self.config.log_properties).min_insync_replicas
        await self.controller.submit(lambda image: Outcome(None, bootstrap_records(image, least)))

    async def settled(self, topics: Collection[str] = ()) -> None:
        """Wait until this node has seen what the controller has committed by now, and has these topics' logs.

        A client that was told of a topic finds it here, then.  A node that does not get there soon answers all the
        same: what the controller has done is done.
        """
        if self.controller is None or not self.controller.is_active:
            try:
                async with asyncio.timeout(_SETTLE_MS / 1000):
                    await self.quorum.reached(await self._committed_offset())
            except (NoControllerError, TimeoutError):
                logger.info("node %d answers before it has seen what the controller has committed", self.node_id)
        if self.broker is not None:
            await self.broker.logs_are_made(topics)

    async def _committed_offset(self) -> int:
        """Up to where the quorum's leader has committed."""
        partitions = [DescribeQuorumRequestPartitionData()]
        topics = [DescribeQuorumRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=partitions)]
        response = await self.channel.request(DescribeQuorumRequest(topics=topics), _SETTLE_MS)
        return response.topics[0].partitions[0].high_watermark if response.topics else -1

    def check_clock(self, offset: int, before_ms: int) -> None:
        """The record at `offset` was written by the controller between `before_ms` and now.  Raises StartError."""
        written_ms = self.quorum.log.timestamp_of(offset)
        if written_ms is None:
            return
        ahead_ms = max(0, before_ms - written_ms) or -max(0, written_ms - self.now_ms())
        if abs(ahead_ms) < _CLOCKS_APART_WARN_MS:
            return
        apart = (
            f"the clock of node {self.node_id} is {abs(ahead_ms) // 1000} s "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} the controller's"
        )
        if abs(ahead_ms) > self.config.log_defaults.message_timestamp_after_max_ms:
            raise StartError(
                f"{apart}, more than log.message.timestamp.after.max.ms: records that are new on one node would be "
                "refused by the other; have both clocks set by NTP, then start again"
            )
        logger.warning("%s: retention and timestamps differ by as much; have both clocks set by NTP", apart)

    # -- requests to the controller ----------------------------------------------------------------------------------

    async def dispatch(self, request: Request[Any], version: int) -> Response:
        """Answer a request to the controller that came from this node itself.  Raises ApiError NOT_CONTROLLER."""
        route = self.router.controller_routes[request.__api_key__]
        assert route.handle is not None
        context = RequestContext(self, "", None, "")
        answer = route.handle(context, request, version)
        response: Response = await answer if asyncio.iscoroutine(answer) else answer
        return response

    def monotonic_ms(self) -> int:
        """The clock of the quorum's times."""
        return int(self._loop.time() * 1000)

    # -- housekeeping ------------------------------------------------------------------------------------------------

    def every(self, interval_ms: int, work: Callable[[], None]) -> None:
        """Run `work` again and again until the node stops; a failure is logged and does not end it."""

        def run() -> None:
            try:
                work()
            except Exception:
                logger.exception("housekeeping failed")
            self._timers[work] = self._loop.call_later(interval_ms / 1000, run)

        self._timers[work] = self._loop.call_later(interval_ms / 1000, run)

    def _cancel_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.waiting.close()

    # -- end ---------------------------------------------------------------------------------------------------------

    async def _serve_metrics(self) -> None:
        """Answer scrapers, and have counted what they ask for.  Raises StartError."""
        if not self.config.metrics_listeners:
            return
        from headrace_broker.server.metrics.collecting import Collector
        from headrace_broker.server.metrics.endpoint import MetricsEndpoint
        from headrace_broker.server.metrics.meter import Meter
        from headrace_broker.server.metrics.quorum_meter import QuorumMeter

        meter = self._meter = Meter(self.router)
        quorum_meter = QuorumMeter(self)
        if self.broker is not None:
            meter.watch(self.broker)
            self.broker.logs.on_flushed = quorum_meter.flushed
        self.metrics = MetricsEndpoint(Collector(self, meter, quorum_meter).page)
        await self.metrics.serve(self.config.metrics_listeners)

    async def stop(self) -> None:
        """Stop cleanly: leaders moved, connections closed, everything on disk, the clean marker written."""
        if self.metrics is not None:
            self.metrics.close()
        if self.broker is not None:
            await self.broker.hand_over()
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
        logger.info("node %d stopped", self.node_id)

    def _close(self, *, clean: bool) -> None:
        """Give back the directories, now that nothing is written any more."""
        if self.broker is not None:
            self.broker.close(clean=clean)
        for directory in self._directories:
            if self.broker is None or directory not in self.broker.logs.directories:
                directory.close(clean=clean, broker_epoch=-1 if self.broker is None else self.broker.lifecycle.epoch)
