"""The controller role of a node: active while this node leads the metadata quorum.

The controller changes metadata with write operations (`Decision`). A write operation is a function. The function reads
the latest metadata image, which includes uncommitted records. The function returns new records and a response. The
controller appends the records. When the records are committed, the controller sends the response.

When this node loses the leadership, this node discards the `Controller` object and the uncommitted state in the object.
The next `Controller` object starts from the committed metadata image.

A broker is fenced when its session expires without a heartbeat. A broker is fenced earlier if its process is dead. A
process is dead if its connection is closed and it refuses new connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace_broker.metadata.brokers import (
    fence_broker,
    heartbeat,
    register_broker,
    unregister_broker,
    validate_broker_epoch,
)
from headrace_broker.metadata.configs import Changes, alter_configs
from headrace_broker.metadata.controller import Controller
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.elections import elect_leaders
from headrace_broker.metadata.image import Endpoint, MetadataImage
from headrace_broker.metadata.isr import alter_partitions
from headrace_broker.metadata.leadership import TopicConfigs, elect_leader, imbalanced_partitions
from headrace_broker.metadata.liveness import BrokerLiveness
from headrace_broker.metadata.partition_changes import Election
from headrace_broker.metadata.reassignment import alter_reassignments, grow_internal_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace_broker.protocol.metadata_records import MetadataRecord
from headrace_broker.server.kraft.metadata_image import CommittedImage
from headrace_broker.server.kraft.quorum import Quorum
from headrace_broker.server.liveness.process_probe import refuses_connections

logger = logging.getLogger(__name__)

Response = TypeVar("Response")
Decision = Callable[[MetadataImage], ControllerResult[Response]]

_REBALANCE_RECORDS_MAX = 1000
_GROW_INTERVAL_S = 1.0
_LOOP_BLOCKED_MS = 1000
_PROBE_RETRY_S = 0.25


@dataclass(frozen=True, slots=True)
class ControllerPolicy:
    """The controller's configuration."""

    session_timeout_ms: int = 9000
    auto_rebalance_leaders: bool = True
    rebalance_interval_s: int = 300
    imbalance_percentage: int = 10
    internal_replication_factor: int = 3


class ControllerService:
    """Runs write operations and commits their records while this node is the active controller.

    All methods run on the event loop.
    """

    def __init__(
        self,
        quorum: Quorum,
        committed: CommittedImage,
        *,
        cluster_id: str,
        topic_configs: TopicConfigs,
        policy: ControllerPolicy,
        refuses: Callable[[str, int], Awaitable[bool]] = refuses_connections,
    ) -> None:
        self._quorum = quorum
        self._committed = committed
        self._cluster_id = cluster_id
        self._topic_configs = topic_configs
        self._policy = policy
        self._refuses_connections = refuses
        self._loop = asyncio.get_running_loop()
        self._controller: Controller | None = None
        self._last_append: asyncio.Future[None] | None = None
        self._liveness = BrokerLiveness(policy.session_timeout_ms)
        self._session_check_timer: asyncio.TimerHandle | None = None
        self._session_check_due_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_active: Callable[[], Awaitable[None]] | None = None
        quorum.on_leadership_change = self._on_leadership_change

    # -- write operations --------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this node is the active controller."""
        return self._controller is not None

    @property
    def latest_image(self) -> MetadataImage | None:
        """The latest metadata image, which includes uncommitted records.

        The value is None if this node is not the active controller.
        """
        return None if self._controller is None else self._controller.image

    async def submit(self, decision: Decision[Response]) -> Response:
        """Run the write operation `decision` on the latest metadata image. Return the response of the write operation.

        This method appends the records of the write operation and waits until the records are committed.

        Raises ApiError NOT_CONTROLLER.
        """
        controller = self._controller
        if controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        before = controller.image
        try:
            outcome = controller.run(decision, self._quorum.next_offset)
        except ApiError:
            await self._wait_until_committed()
            raise
        if outcome.records:
            try:
                self._last_append = self._quorum.append(outcome.records)
            except Exception:
                controller.revert(before)
                raise
            await asyncio.shield(self._last_append)
        else:
            await self._wait_until_committed()
        return outcome.response

    async def _wait_until_committed(self) -> None:
        """Wait until all records that this controller has appended so far are committed.

        A response, even an error, must not depend on records that may still be lost. Raises ApiError NOT_CONTROLLER if
        this node loses the leadership while it waits.
        """
        if self._last_append is not None and not self._last_append.done():
            await asyncio.shield(self._last_append)

    async def register(
        self, request: BrokerRegistrationRequest, *, is_local: bool = False
    ) -> BrokerRegistrationResponse:
        """Register a broker that started. `is_local` is true for this node's own broker. Raises ApiError."""
        broker_id = request.broker_id
        await self._check_previous_incarnation(broker_id, request.incarnation_id, is_local=is_local)
        response = await self.submit(
            lambda image: register_broker(
                image,
                request,
                cluster_id=self._cluster_id,
                next_offset=self._quorum.next_offset,
                is_alive=self._liveness.has_session(broker_id, self._now_ms()),
                topic_configs=self._topic_configs,
            )
        )
        self._liveness.on_registered(broker_id, self._now_ms())
        self._schedule_session_check()
        return response

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Handle a broker's heartbeat. Raises ApiError."""
        # a heartbeat of the broker's previous process must not extend the session of its current process
        if self._controller is not None:
            validate_broker_epoch(self._controller.image, request.broker_id, request.broker_epoch)
        self._liveness.on_heartbeat(request.broker_id, request.current_metadata_offset, self._now_ms())
        response = await self.submit(
            lambda image: heartbeat(image, request, self._liveness, self._topic_configs, self._quorum.next_offset)
        )
        self._schedule_session_check()
        return response

    async def _check_previous_incarnation(self, broker_id: int, incarnation_id: bytes, *, is_local: bool) -> None:
        """End the session of a broker's previous incarnation immediately if the process of that incarnation is dead.

        A broker that restarts quickly then does not have to wait until the old session expires. The previous process of
        another node is dead if its address refuses connections. The previous process of this node is dead if this
        node's own broker registers (`is_local`). If a registration with this node's id arrives over the network, it
        comes from a different process with the same id, and this method does not end the session.
        """
        known = None if self._controller is None else self._controller.image.brokers.get(broker_id)
        if known is None or known.incarnation_id == incarnation_id or not known.endpoints:
            return
        if not self._liveness.has_session(broker_id, self._now_ms()):
            return
        endpoint = known.endpoints[0]
        if broker_id == self._quorum.raft.config.node_id:
            is_dead = is_local
        else:
            is_dead = await self._refuses_connections(endpoint.host, endpoint.port)
        if is_dead:
            self._liveness.mark_dead(broker_id)

    async def unregister(self, broker_id: int) -> None:
        """Unregister a broker that is permanently down. Raises ApiError."""
        await self.submit(lambda image: unregister_broker(image, broker_id, self._topic_configs))
        self._liveness.remove(broker_id)

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Change the in-sync replicas of partitions. Raises ApiError."""
        return await self.submit(lambda image: alter_partitions(image, request, self._topic_configs))

    async def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Start and cancel partition reassignments. Raises ApiError."""
        return await self.submit(lambda image: alter_reassignments(image, request, self._topic_configs))

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Elect leaders at the request of an operator. Raises ApiError."""
        return await self.submit(lambda image: elect_leaders(image, request, self._topic_configs))

    async def alter_configs(
        self, resources: Sequence[tuple[int, str, Changes]], *, validate_only: bool
    ) -> list[ApiError | None]:
        """Alter configs; elections use the new values immediately. Raises ApiError."""
        return await self.submit(
            lambda image: alter_configs(image, resources, self._topic_configs, validate_only=validate_only)
        )

    # -- leadership --------------------------------------------------------------------------------------------------

    def _on_leadership_change(self, is_leader: bool) -> None:
        if is_leader:
            self._controller = Controller(self._committed.image, self._quorum.raft.epoch)
            self._last_append = None
            self._liveness = BrokerLiveness(self._policy.session_timeout_ms)
            for broker_id in self._committed.image.brokers:
                self._liveness.on_registered(broker_id, self._now_ms())
                if broker_id != self._quorum.raft.config.node_id:
                    self.suspect(broker_id)
            if self.on_active is not None:
                self._start_task(self.on_active())
            self._start_task(self._run_periodically(_GROW_INTERVAL_S, self.grow_internal_topics))
            if self._policy.auto_rebalance_leaders:
                self._start_task(self._run_periodically(self._policy.rebalance_interval_s, self.balance_leaders))
            logger.info(
                "Controller %d is active in epoch %d", self._quorum.raft.config.node_id, self._quorum.raft.epoch
            )
        else:
            self._controller = None
            for task in self._tasks:
                task.cancel()
        self._schedule_session_check()

    # -- broker liveness ---------------------------------------------------------------------------------------------

    def suspect(self, broker_id: int) -> None:
        """Check whether a broker's process is alive, because its connection was closed or its state is unknown."""
        broker = None if self._controller is None else self._controller.image.brokers.get(broker_id)
        if broker is not None and not broker.fenced and broker.endpoints:
            self._start_task(self._probe(broker_id, broker.epoch, broker.endpoints[0]))

    async def _probe(self, broker_id: int, epoch: int, endpoint: Endpoint) -> None:
        """Probe a broker's process repeatedly. When the process is dead, fence the broker.

        Stop probing if the broker sends a heartbeat, is fenced or registers again.

        An accepted connection does not prove that the process is alive: the kernel also accepts connections for a
        process that is exiting. If a live broker is fenced by mistake, its next heartbeat unfences it.
        """
        since_ms = self._now_ms()
        while not await self._refuses_connections(endpoint.host, endpoint.port):
            await asyncio.sleep(_PROBE_RETRY_S)
            if not self._is_silent(broker_id, epoch, since_ms):
                return
        logger.warning(
            "Broker %d: fencing the broker, because it refuses connections at %s:%d",
            broker_id,
            endpoint.host,
            endpoint.port,
        )
        self._liveness.mark_dead(broker_id)
        await self._fence(broker_id, epoch)

    def _is_silent(self, broker_id: int, epoch: int, since_ms: int) -> bool:
        """Whether this broker incarnation is unfenced, has a session, and has sent no heartbeat since `since_ms`."""
        broker = None if self._controller is None else self._controller.image.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch or broker.fenced:
            return False
        liveness = self._liveness
        return liveness.has_session(broker_id, self._now_ms()) and not liveness.has_contacted_since(broker_id, since_ms)

    async def _fence(self, broker_id: int, epoch: int) -> None:
        def decide(image: MetadataImage) -> ControllerResult[None]:
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch or broker.fenced:
                return ControllerResult(None)
            return ControllerResult(None, fence_broker(image, broker, self._topic_configs))

        try:
            await self.submit(decide)
        except ApiError as error:
            logger.info("Broker %d: the controller cannot fence this broker: %s", broker_id, error)

    def _schedule_session_check(self) -> None:
        if self._session_check_timer is not None:
            self._session_check_timer.cancel()
            self._session_check_timer = None
        controller = self._controller
        if controller is None:
            return
        unfenced = [item.broker_id for item in controller.image.brokers.values() if not item.fenced]
        deadline_ms = self._liveness.next_deadline_ms(unfenced)
        if deadline_ms is not None:
            self._session_check_due_ms = max(deadline_ms, self._now_ms())
            self._session_check_timer = self._loop.call_later(
                max(1, deadline_ms - self._now_ms()) / 1000, self._check_sessions
            )

    def _check_sessions(self) -> None:
        self._session_check_timer = None
        controller = self._controller
        if controller is None:
            return
        late_ms = self._now_ms() - self._session_check_due_ms
        if late_ms > _LOOP_BLOCKED_MS:
            logger.warning(
                "Controller: the event loop was blocked for %d ms, extending all broker sessions by this duration",
                late_ms,
            )
            self._liveness.extend_sessions(late_ms)
        else:
            self._fence_expired(controller.image)
        self._schedule_session_check_later()

    def _fence_expired(self, image: MetadataImage) -> None:
        unfenced = [item.broker_id for item in image.brokers.values() if not item.fenced]
        for broker_id in self._liveness.stale_brokers(unfenced, self._now_ms()):
            timeout_ms = self._policy.session_timeout_ms
            logger.warning(
                "Broker %d: fencing the broker, because it sent no heartbeat for %d ms", broker_id, timeout_ms
            )
            self._start_task(self._fence(broker_id, image.brokers[broker_id].epoch))

    def _schedule_session_check_later(self) -> None:
        """Schedule the next check after a short delay, so that heartbeats that have arrived are processed first."""
        self._session_check_timer = self._loop.call_later(0.1, self._schedule_session_check)

    # -- periodic work of the active controller ----------------------------------------------------------------------

    async def balance_leaders(self) -> None:
        """Elect preferred leaders (auto.leader.rebalance.enable)."""

        def decide(image: MetadataImage) -> ControllerResult[int]:
            records: list[MetadataRecord] = []
            for topic, index in imbalanced_partitions(image, self._policy.imbalance_percentage)[
                :_REBALANCE_RECORDS_MAX
            ]:
                record = elect_leader(image, topic, index, self._topic_configs, Election.PREFERRED)
                if record is not None:
                    records.append(record)
            return ControllerResult(len(records), records)

        moved = await self.submit(decide)
        if moved:
            logger.info("Controller: elected the preferred leaders of %d partitions", moved)

    async def grow_internal_topics(self) -> None:
        """Add replicas to internal topics that were created while the cluster had too few brokers."""
        factor = self._policy.internal_replication_factor
        grown = await self.submit(lambda image: grow_internal_topics(image, factor, self._topic_configs))
        if grown:
            logger.info("Controller: adding replicas to %d partitions of internal topics", grown)

    async def _run_periodically(self, interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except ApiError as error:
                logger.debug("Controller: periodic task failed, running it again later: %s", error)
            except Exception:  # log it and continue: the task must run again while this controller is active
                logger.exception("Controller: periodic task failed")

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _start_task(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("Controller: background task failed", exc_info=task.exception())

    def close(self) -> None:
        """Cancel the session check and all background tasks."""
        if self._session_check_timer is not None:
            self._session_check_timer.cancel()
        for task in self._tasks:
            task.cancel()
