"""A worker's membership in its group: passes the client's group events to `GroupCore` and carries out its effects.

A rebalance never waits for plug-in code, except with the eager protocol: the worker then first stops all connectors and
tasks, which takes at most task.shutdown.graceful.timeout.ms.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from headrace.herder import group_core, group_protocol
from headrace.herder.assignment import Assignment
from headrace.herder.group_core import GroupCore, GroupEffect
from headrace.herder.herder import RebalanceMetrics
from headrace.herder.rebalance_times import RebalanceTimes
from headrace.metrics import log_text
from headrace.metrics.elapsed import ms_since
from headrace.stores.config_store import ConfigSnapshot, ConfigStore
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.errors import ClientError
from headrace_broker.client.membership import GroupMembership
from headrace_broker.client.membership_core import Generation, MembershipCore
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_groups import DescribedGroupMember, DescribeGroupsRequest
from headrace_broker.protocol.messages.join_group import JoinGroupResponseMember

log = logging.getLogger(__name__)

READ_ATTEMPTS_MAX = 5
RESTART_BACKOFF_S = 1.0
FIRST_HEARTBEAT_MS = 20
"""A worker that has stopped revoked tasks joins again, usually within milliseconds after the assignment."""
SESSION_EXPIRY_EXTRA_S = 2.0
"""How long the coordinator may need to remove a member after its session has expired."""
_ADDRESS_KEYS = "rest.advertised.host.name, rest.advertised.port"


class GroupListener(Protocol):
    """The calls of a `WorkerGroup` to its herder."""

    def run(self, assignment: Assignment) -> None:
        """Run exactly these connectors and tasks."""

    async def wait_until_stopped(self, assignment: Assignment) -> None:
        """Wait until these connectors and tasks have stopped."""

    def on_rebalance_completed(self) -> None:
        """Handle that an assignment is in effect."""


class WorkerGroup:
    """One worker of a group. `start` joins the group, and `stop` leaves it."""

    def __init__(
        self,
        cluster: Cluster,
        core: GroupCore,
        listener: GroupListener,
        configs: ConfigStore,
        *,
        group_id: str,
        session_timeout_ms: int,
        heartbeat_interval_ms: int,
        rebalance_timeout_ms: int,
        sync_timeout_ms: int,
        max_delay_ms: int,
    ) -> None:
        self.core = core
        self._cluster = cluster
        self._group_id = group_id
        self._session_timeout_s = session_timeout_ms / 1000
        self._listener = listener
        self._configs = configs
        self._sync_timeout_s = sync_timeout_ms / 1000
        self._read_backoff_s = max(max_delay_ms / 10_000, 0.1)
        self._stable = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed_reads = 0
        self._is_stopping = False
        self._failure: str | None = None
        self._has_checked_address = False
        self._rebalances = RebalanceTimes()
        membership = MembershipCore(
            group_id=group_id,
            protocol_type=group_protocol.PROTOCOL_TYPE,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            first_heartbeat_ms=FIRST_HEARTBEAT_MS,
        )
        self._membership = GroupMembership(cluster, membership, self, rebalance_timeout_ms)

    def start(self) -> None:
        """Join the group in the background."""
        self._membership.start()

    async def stop(self) -> bool:
        """Leave the group. Return whether this succeeded.

        Its other workers run this worker's connectors and tasks after the scheduled rebalance delay.
        """
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        return await self._membership.leave("the worker is shutting down")

    @property
    def error(self) -> str | None:
        """The reason why the worker is not a member of its group or the coordinator does not respond, or None."""
        if self._failure is not None:
            return self._failure
        error = self._membership.error
        return None if error is None else str(error) or "the group coordinator does not respond"

    @property
    def has_session(self) -> bool:
        """Whether this worker is a member of its group.

        If it is not, other workers may run its connectors and tasks.
        """
        return self._membership.has_session

    @property
    def is_stable(self) -> bool:
        """Whether the worker has an assignment, and no rebalance is in progress."""
        return self._stable.is_set() and self._membership.is_stable

    async def wait_until_stable(self) -> None:
        """Wait until no rebalance is in progress."""
        while not self.is_stable:
            self._stable.clear()
            await self._stable.wait()

    def rebalance_metrics(self) -> RebalanceMetrics:
        """Return the measurements of the worker's rebalances."""
        times = self._rebalances
        return RebalanceMetrics(
            leader_name=self.core.leader_url or "",
            protocol=self.core.version.name.lower(),
            epoch=self.core.generation,
            completed=times.completed,
            is_rebalancing=times.is_rebalancing,
            avg_ms=times.avg_ms,
            max_ms=times.max_ms,
            since_last_ms=times.since_last_ms(_now_ms()),
        )

    def on_snapshot(self, snapshot: ConfigSnapshot) -> None:
        """Handle a new state of the config topic."""
        self._spawn(self.core.on_snapshot(snapshot))

    # Callbacks of the membership

    def protocols(self, generation: Generation) -> Sequence[tuple[str, bytes]]:
        """Return the metadata of this worker for each protocol that it supports."""
        return group_protocol.protocols(self.core.metadata(), self.core.highest)

    async def on_join_prepare(self, generation: Generation) -> None:
        """Prepare for a rebalance."""
        self._stable.clear()
        self._rebalances.on_started(_now_ms())
        log.debug(
            "Group %s: a rebalance begins after generation %d; this worker runs %s",
            self._group_id,
            generation.generation_id,
            self.core.assignment,
        )
        await self._carry_out(self.core.on_join_prepare())

    async def compute_assignments(
        self, generation: Generation, members: Sequence[JoinGroupResponseMember]
    ) -> Mapping[str, bytes]:
        """As the leader of the group, return the assignment of each member."""
        metadata = {member.member_id: bytes(member.metadata) for member in members}
        log.debug(
            "Group %s: this worker is the leader of generation %d and assigns connectors and tasks to members %s",
            self._group_id,
            generation.generation_id,
            log_text.Listing(sorted(metadata)),
        )
        if self.core.is_behind(metadata):
            await self._read_configs()
        return self.core.compute_assignments(
            generation.generation_id, generation.protocol, generation.member_id, metadata, _now_ms()
        )

    async def on_join_complete(self, generation: Generation, assignment: bytes) -> None:
        """Apply an assignment."""
        self._failure = None
        if self._timer is not None:
            self._timer.cancel()
        effects = self.core.on_assignment(
            generation.generation_id, generation.protocol, assignment, generation.member_id
        )
        log.info(
            "Group %s: joined generation %d (%s) as %s; leader %s; %d connectors and %d tasks",
            self._group_id,
            generation.generation_id,
            generation.protocol,
            generation.member_id,
            self.core.leader_url,
            len(self.core.assignment.connectors),
            len(self.core.assignment.tasks),
        )
        self._rebalances.on_completed(_now_ms())
        log.debug(
            "Group %s: after generation %d, this worker runs %s",
            self._group_id,
            generation.generation_id,
            self.core.assignment,
        )
        await self._carry_out(effects)
        if self._membership.is_stable:
            self._stable.set()
            self._listener.on_rebalance_completed()
            if not self._has_checked_address:
                self._has_checked_address = True
                self._start_task(self._check_address())

    async def on_membership_lost(self) -> None:
        """Stop all connectors and tasks, because other workers will run them."""
        self._stable.clear()
        if held := self.core.assignment:
            log.warning(
                "Group %s: stopping %d connectors and %d tasks, because the worker is not a member of the group until "
                "the coordinator accepts it again",
                self._group_id,
                len(held.connectors),
                len(held.tasks),
            )
        await self._carry_out(self.core.on_membership_lost())

    def on_failure(self, error: ClientError) -> None:
        """Join again after an error that ended the membership."""
        failure = self._describe_failure(error)
        if failure != self._failure:
            log.error("%s", failure)
        self._failure = failure
        self._start_task(self._restart())

    def _describe_failure(self, error: ClientError) -> str:
        retries = "the worker stops its connectors and tasks, and tries to join again"
        if error.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            return (
                f"group.id={self._group_id}: the group has members of another kind, for example consumers, or workers "
                f"whose connect.protocol has no version in common with this worker's; {retries}. Set another "
                "group.id, or the same connect.protocol in all workers"
            )
        return f"Group {self._group_id}: the membership ended with an error; {retries}: {error}"

    async def _check_address(self) -> None:
        """Log an error if another worker of the group advertises the address of this worker.

        If this worker was killed and started again, the group contains its old member until the session expires.
        """
        same = await self._members_with_own_url()
        if not same:
            return
        await asyncio.sleep(self._session_timeout_s + SESSION_EXPIRY_EXTRA_S)
        same = {member: host for member, host in (await self._members_with_own_url()).items() if member in same}
        for member, host in same.items():
            log.error(
                "%s: another worker of group %s (member %s at %s) also advertises %s, so requests for one of these "
                "workers reach the other worker. Set an address that only this worker uses",
                _ADDRESS_KEYS,
                self._group_id,
                member,
                host,
                self.core.url,
            )

    async def _members_with_own_url(self) -> dict[str, str]:
        """Return the other members that advertise the URL of this worker, with their hosts."""
        own = self._membership.generation.member_id
        others = [member for member in await self._describe_members() if member.member_id != own]
        urls = [_url_of(bytes(member.member_metadata)) for member in others]
        return {
            member.member_id: member.client_host
            for member, url in zip(others, urls, strict=True)
            if url == self.core.url
        }

    async def _describe_members(self) -> Sequence[DescribedGroupMember]:
        """Return the members of the group when no rebalance is in progress."""
        while True:
            try:
                request = DescribeGroupsRequest(groups=[self._group_id])
                [group] = (await self._cluster.request_coordinator(self._group_id, request)).groups
            except ClientError as error:
                log.debug(
                    "Group %s: cannot describe the group to read its members, retrying: %s", self._group_id, error
                )
            else:
                if group.group_state == "Stable" and not group.error_code:
                    return group.members
            await asyncio.sleep(RESTART_BACKOFF_S)

    async def worker_ids(self) -> set[str]:
        """Return the ids (host and port) of the workers in the group."""
        urls = [_url_of(bytes(member.member_metadata)) for member in await self._describe_members()]
        return {urlsplit(url).netloc for url in urls if url is not None}

    async def is_foreign(self, worker_id: str) -> bool:
        """Whether a worker is not a member of the group.

        A worker that has lost its membership joins again within the session timeout, and is not foreign.
        """
        if worker_id in await self.worker_ids():
            return False
        await asyncio.sleep(self._session_timeout_s + SESSION_EXPIRY_EXTRA_S)
        return worker_id not in await self.worker_ids()

    async def _restart(self) -> None:
        await self.on_membership_lost()
        await self._membership.leave("the membership failed")
        await asyncio.sleep(RESTART_BACKOFF_S)
        self._membership.start()

    # Effects

    def _spawn(self, effects: Sequence[GroupEffect]) -> None:
        if effects:
            self._start_task(self._carry_out(effects))

    async def _carry_out(self, effects: Sequence[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case group_core.Run(assignment):
                    self._listener.run(assignment)
                case group_core.AwaitStop(assignment):
                    await self._listener.wait_until_stopped(assignment)
                case group_core.ReportStop(assignment):
                    log.debug("Group %s: rejoining after the stop of revoked %s", self._group_id, assignment)
                    self._start_task(self._report_stop(assignment))
                case group_core.ReadConfigs():
                    if not await self._read_configs():
                        self._start_task(self._leave_until_readable())
                        return
                case group_core.Rejoin(reason, 0):
                    log.debug("Group %s: rejoining: %s", self._group_id, reason)
                    self._stable.clear()
                    self._membership.rejoin(reason)
                case group_core.Rejoin(reason, delay_ms):
                    log.info(
                        "Group %s: rejoining in %d ms; until then, connectors and tasks of workers that left the group "
                        "may be unassigned",
                        self._group_id,
                        delay_ms,
                    )
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(delay_ms / 1000, self._membership.rejoin, reason)

    async def _report_stop(self, assignment: Assignment) -> None:
        await self._listener.wait_until_stopped(assignment)
        await self._carry_out(self.core.stopped(assignment))

    async def _read_configs(self) -> bool:
        started = time.monotonic()
        try:
            snapshot = await self._configs.refresh(self._sync_timeout_s)
        except (ClientError, TimeoutError) as error:
            log.warning(
                "Group %s: the config topic could not be read within worker.sync.timeout.ms=%.0f: %s",
                self._group_id,
                self._sync_timeout_s * 1000,
                error,
            )
            return False
        self._failed_reads = 0
        log.debug(
            "Group %s: read the config topic to offset %d in %d ms",
            self._group_id,
            snapshot.offset,
            ms_since(started),
        )
        self._spawn(self.core.on_snapshot(snapshot))
        return True

    async def _leave_until_readable(self) -> None:
        """Leave the group, so that its other members can rebalance. Rejoin it when the config topic can be read."""
        await self._membership.leave("the config topic cannot be read")
        while not await self._read_configs():
            self._failed_reads += 1
            if self._failed_reads == READ_ATTEMPTS_MAX:
                log.error(
                    "Group %s: stopping all connectors and tasks until the config topic can be read", self._group_id
                )
                await self.on_membership_lost()
            await asyncio.sleep(self._read_backoff_s)
        self._membership.start()

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        if self._is_stopping:
            task.cancel()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Group %s: an operation failed", self._group_id, exc_info=error)


def _url_of(metadata: bytes) -> str | None:
    """Return the URL that a member advertises, or None if its metadata cannot be read."""
    try:
        return group_protocol.decode_metadata(metadata).url
    except group_protocol.GroupProtocolError:
        return None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
