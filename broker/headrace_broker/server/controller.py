"""The controller's side of a node: active while this node leads the quorum, and silent otherwise.

Decisions are made on the newest state, appended, and answered when they are committed.  When leadership is lost, what
was not committed is forgotten with the `Controller` that held it; the next one begins with the committed image.

Brokers are watched in two ways: a broker that is silent for its session is fenced, and one whose process is gone is
fenced as soon as its connection ends and another is refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace_broker.metadata.brokers import (
    checked_broker,
    fence_broker,
    heartbeat,
    register_broker,
    unregister_broker,
)
from headrace_broker.metadata.configs import Changes, alter_configs
from headrace_broker.metadata.controller import Controller
from headrace_broker.metadata.elections import elect_leaders
from headrace_broker.metadata.image import Endpoint, MetadataImage
from headrace_broker.metadata.isr import alter_partitions
from headrace_broker.metadata.leadership import TopicRules, elect, imbalanced
from headrace_broker.metadata.liveness import BrokerLiveness
from headrace_broker.metadata.outcome import Outcome
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
from headrace_broker.server.membership.probing import refuses_connections

logger = logging.getLogger(__name__)

Response = TypeVar("Response")
Decision = Callable[[MetadataImage], Outcome[Response]]

_REBALANCE_RECORDS_MAX = 1000
_GROW_INTERVAL_S = 1.0
_HELD_UP_MS = 1000
_LOOK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True)
class ControllerPolicy:
    """What the controller's configuration says."""

    session_timeout_ms: int = 9000
    rebalances_leaders: bool = True
    rebalance_interval_s: int = 300
    imbalance_percentage: int = 10
    internal_replication_factor: int = 3


class ControllerService:
    """Owner of the newest state while active; lives on the event loop."""

    def __init__(
        self,
        quorum: Quorum,
        committed: CommittedImage,
        *,
        cluster_id: str,
        rules: TopicRules,
        policy: ControllerPolicy,
        refuses: Callable[[str, int], Awaitable[bool]] = refuses_connections,
    ) -> None:
        self._quorum = quorum
        self._committed = committed
        self._cluster_id = cluster_id
        self._rules = rules
        self._policy = policy
        self._refuses = refuses
        self._loop = asyncio.get_running_loop()
        self._controller: Controller | None = None
        self._newest: asyncio.Future[None] | None = None
        self._liveness = BrokerLiveness(policy.session_timeout_ms)
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_active: Callable[[], Awaitable[None]] | None = None
        quorum.on_leadership = self._leadership

    # -- decisions ---------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether decisions can be submitted here."""
        return self._controller is not None

    @property
    def decided(self) -> MetadataImage | None:
        """The newest state while active: what is committed, and what is decided and not committed yet."""
        return None if self._controller is None else self._controller.image

    async def submit(self, decision: Decision[Response]) -> Response:
        """Decide on the newest state, append, and answer when committed.  Raises ApiError NOT_CONTROLLER."""
        controller = self._controller
        if controller is None:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        before = controller.image
        try:
            outcome = controller.decide(decision, self._quorum.next_offset)
        except ApiError:
            await self._is_committed()
            raise
        if outcome.records:
            try:
                self._newest = self._quorum.append(outcome.records)
            except Exception:
                controller.revert(before)
                raise
            await asyncio.shield(self._newest)
        else:
            await self._is_committed()
        return outcome.response

    async def _is_committed(self) -> None:
        """Wait until what the last decision knew is committed: an answer, a refusal too, may not tell of what may yet
        be forgotten.  Raises ApiError NOT_CONTROLLER."""
        if self._newest is not None and not self._newest.done():
            await asyncio.shield(self._newest)

    async def register(
        self, request: BrokerRegistrationRequest, *, is_from_here: bool = False
    ) -> BrokerRegistrationResponse:
        """Register a broker that started; `is_from_here`: it is this node's own.  Raises ApiError."""
        broker_id = request.broker_id
        await self._look_for_predecessor(broker_id, request.incarnation_id, is_from_here=is_from_here)
        response = await self.submit(
            lambda image: register_broker(
                image,
                request,
                cluster_id=self._cluster_id,
                next_offset=self._quorum.next_offset,
                is_alive=self._liveness.has_session(broker_id, self._now_ms()),
                rules=self._rules,
            )
        )
        self._liveness.registered(broker_id, self._now_ms())
        self._arm()
        return response

    async def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        """Take a broker's heartbeat.  Raises ApiError."""
        if self._controller is not None:  # who is another by that id keeps nobody alive
            checked_broker(self._controller.image, request.broker_id, request.broker_epoch)
        self._liveness.heard(request.broker_id, request.current_metadata_offset, self._now_ms())
        response = await self.submit(
            lambda image: heartbeat(image, request, self._liveness, self._rules, self._quorum.next_offset)
        )
        self._arm()
        return response

    async def _look_for_predecessor(self, broker_id: int, incarnation_id: bytes, *, is_from_here: bool) -> None:
        """A broker that comes back before its end was noticed need not wait for its former session to run out.

        This node's own broker is this process: its predecessor is gone, and who comes by the network with its id is
        another.
        """
        known = None if self._controller is None else self._controller.image.brokers.get(broker_id)
        if known is None or known.incarnation_id == incarnation_id or not known.endpoints:
            return
        if not self._liveness.has_session(broker_id, self._now_ms()):
            return
        where = known.endpoints[0]
        if broker_id == self._quorum.raft.config.node_id:
            is_gone = is_from_here
        else:
            is_gone = await self._refuses(where.host, where.port)
        if is_gone:
            self._liveness.dead(broker_id)

    async def unregister(self, broker_id: int) -> None:
        """Forget a broker that will not come back.  Raises ApiError."""
        await self.submit(lambda image: unregister_broker(image, broker_id, self._rules))
        self._liveness.forget(broker_id)

    async def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Change who counts as in sync.  Raises ApiError."""
        return await self.submit(lambda image: alter_partitions(image, request, self._rules))

    async def alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """Begin and cancel moves of partitions.  Raises ApiError."""
        return await self.submit(lambda image: alter_reassignments(image, request, self._rules))

    async def elect_leaders(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Hold elections that an operator asks for.  Raises ApiError."""
        return await self.submit(lambda image: elect_leaders(image, request, self._rules))

    async def alter_configs(
        self, resources: Sequence[tuple[int, str, Changes]], *, validate_only: bool
    ) -> list[ApiError | None]:
        """Alter configs; elections follow the new ones at once.  Raises ApiError."""
        return await self.submit(
            lambda image: alter_configs(image, resources, self._rules, validate_only=validate_only)
        )

    # -- leadership --------------------------------------------------------------------------------------------------

    def _leadership(self, leads: bool) -> None:
        if leads:
            self._controller = Controller(self._committed.image, self._quorum.raft.epoch)
            self._newest = None
            self._liveness = BrokerLiveness(self._policy.session_timeout_ms)
            for broker_id in self._committed.image.brokers:
                self._liveness.registered(broker_id, self._now_ms())
                if broker_id != self._quorum.raft.config.node_id:
                    self.suspect(broker_id)
            if self.on_active is not None:
                self._start(self.on_active())
            self._start(self._housekeep(_GROW_INTERVAL_S, self.grow_internal_topics))
            if self._policy.rebalances_leaders:
                self._start(self._housekeep(self._policy.rebalance_interval_s, self.balance_leaders))
            logger.info(
                "controller %d is active in epoch %d", self._quorum.raft.config.node_id, self._quorum.raft.epoch
            )
        else:
            self._controller = None
            for task in self._tasks:
                task.cancel()
        self._arm()

    # -- watching brokers --------------------------------------------------------------------------------------------

    def suspect(self, broker_id: int) -> None:
        """The broker's connection ended, or its state is unknown: see whether its process is there."""
        broker = None if self._controller is None else self._controller.image.brokers.get(broker_id)
        if broker is not None and not broker.fenced and broker.endpoints:
            self._start(self._probe(broker_id, broker.epoch, broker.endpoints[0]))

    async def _probe(self, broker_id: int, epoch: int, endpoint: Endpoint) -> None:
        """Look until it proves to be gone, or something else is known of it.

        A connection that is taken proves nothing: the kernel takes them for a process that is on its way out, too.  A
        false alarm does no harm: a broker that is alive heartbeats on, also when it was fenced by mistake.
        """
        since_ms = self._now_ms()
        while not await self._refuses(endpoint.host, endpoint.port):
            await asyncio.sleep(_LOOK_AGAIN_S)
            if not self._is_silent(broker_id, epoch, since_ms):
                return
        logger.warning("broker %d refuses connections at %s:%d: fencing it", broker_id, endpoint.host, endpoint.port)
        self._liveness.dead(broker_id)
        await self._fence(broker_id, epoch)

    def _is_silent(self, broker_id: int, epoch: int, since_ms: int) -> bool:
        """Whether that incarnation is taken to be alive without a word from it since then."""
        broker = None if self._controller is None else self._controller.image.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch or broker.fenced:
            return False
        liveness = self._liveness
        return liveness.has_session(broker_id, self._now_ms()) and not liveness.was_heard_after(broker_id, since_ms)

    async def _fence(self, broker_id: int, epoch: int) -> None:
        def decide(image: MetadataImage) -> Outcome[None]:
            broker = image.brokers.get(broker_id)
            if broker is None or broker.epoch != epoch or broker.fenced:
                return Outcome(None)
            return Outcome(None, fence_broker(image, broker, self._rules))

        try:
            await self.submit(decide)
        except ApiError as error:
            logger.info("broker %d is not fenced here: %s", broker_id, error)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        controller = self._controller
        if controller is None:
            return
        unfenced = [item.broker_id for item in controller.image.brokers.values() if not item.fenced]
        deadline_ms = self._liveness.next_deadline_ms(unfenced)
        if deadline_ms is not None:
            self._due_ms = max(deadline_ms, self._now_ms())
            self._timer = self._loop.call_later(max(1, deadline_ms - self._now_ms()) / 1000, self._fence_stale)

    def _fence_stale(self) -> None:
        self._timer = None
        controller = self._controller
        if controller is None:
            return
        late_ms = self._now_ms() - self._due_ms
        if late_ms > _HELD_UP_MS:
            logger.warning("this controller was held up for %d ms: no broker is fenced for its silence", late_ms)
            self._liveness.excuse(late_ms)
        else:
            self._fence_silent(controller.image)
        self._arm_later()

    def _fence_silent(self, image: MetadataImage) -> None:
        unfenced = [item.broker_id for item in image.brokers.values() if not item.fenced]
        for broker_id in self._liveness.stale(unfenced, self._now_ms()):
            timeout_ms = self._policy.session_timeout_ms
            logger.warning("broker %d was not heard of for %d ms: fencing it", broker_id, timeout_ms)
            self._start(self._fence(broker_id, image.brokers[broker_id].epoch))

    def _arm_later(self) -> None:
        """Look again when the fencing under way, or what waits to be heard, has had its time."""
        self._timer = self._loop.call_later(0.1, self._arm)

    # -- what the active controller does of its own accord -----------------------------------------------------------

    async def balance_leaders(self) -> None:
        """Give partitions back to their preferred replicas (auto.leader.rebalance.enable)."""

        def decide(image: MetadataImage) -> Outcome[int]:
            records: list[MetadataRecord] = []
            for topic, index in imbalanced(image, self._policy.imbalance_percentage)[:_REBALANCE_RECORDS_MAX]:
                record = elect(image, topic, index, self._rules, Election.PREFERRED)
                if record is not None:
                    records.append(record)
            return Outcome(len(records), records)

        moved = await self.submit(decide)
        if moved:
            logger.info("gave %d partitions back to their preferred leaders", moved)

    async def grow_internal_topics(self) -> None:
        """Bring internal topics that were made while few brokers were there to the replication factor they want."""
        factor = self._policy.internal_replication_factor
        grown = await self.submit(lambda image: grow_internal_topics(image, factor, self._rules))
        if grown:
            logger.info("%d partitions of internal topics get more replicas", grown)

    async def _housekeep(self, interval_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                await work()
            except ApiError as error:
                logger.debug("housekeeping of the controller waits: %s", error)
            except Exception:  # it would not be done again before there is another controller
                logger.exception("housekeeping of the controller")

    # -- housekeeping ------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("watching a broker failed", exc_info=task.exception())

    def close(self) -> None:
        """Watch nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
