"""Membership of a group under the classic protocol: join, sync, heartbeats, leave; for consumers and Connect workers.

A shell around `membership_core`. The owner gives a protocol type and an object with six callbacks; bytes of metadata
and assignments stay the owner's affair. Each member has a connection of its own, because a parked JoinGroup holds up
whatever is behind it. Heartbeats run beside the callbacks, so that a slow one does not cost the membership; they stop
only while JoinGroup and SyncGroup are under way, when the coordinator takes a member for alive anyway.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace_broker.client.cluster import Cluster
from headrace_broker.client.errors import BrokerError, ClientError
from headrace_broker.client.membership_core import Generation, MembershipCore, State, Step
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest

logger = logging.getLogger(__name__)

_members = itertools.count(1)

_JOIN_TIMEOUT_EXTRA_MS = 5_000
"""The coordinator may use up the whole rebalance timeout before it answers a join."""


class GroupCallbacks(Protocol):
    """What the owner of a membership does at each turn. No callback runs beside another one."""

    def protocols(self, generation: Generation) -> Sequence[tuple[str, bytes]]:
        """Return (protocol, metadata) pairs, the preferred one first."""

    async def prepare(self, generation: Generation) -> None:
        """The member is about to (re)join: commit and give up what has to be given up."""

    async def assign(self, generation: Generation, members: Sequence[JoinGroupResponseMember]) -> Mapping[str, bytes]:
        """This member leads: return every member's assignment."""

    async def joined(self, generation: Generation, assignment: bytes) -> None:
        """The member is in a new generation, with this assignment."""

    async def lost(self) -> None:
        """The coordinator gave the member up: what it held may belong to others already."""

    def failed(self, error: ClientError) -> None:
        """The membership ended with an error that no retry mends."""


class GroupMembership:
    """One member; `start` it, and `leave` in the end."""

    def __init__(
        self, cluster: Cluster, core: MembershipCore, callbacks: GroupCallbacks, rebalance_timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._core = core
        self._callbacks = callbacks
        self._purpose = f"member {next(_members)}"
        self._join_timeout_ms = max(rebalance_timeout_ms + _JOIN_TIMEOUT_EXTRA_MS, cluster.config.request_timeout_ms)
        self._rejoin = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None

    @property
    def generation(self) -> Generation:
        """The generation the member is in."""
        return self._core.generation

    @property
    def is_stable(self) -> bool:
        """True while the member has an assignment that is valid as far as it knows."""
        return self._core.state is State.STABLE and not self._rejoin.is_set()

    def start(self) -> None:
        """Join the group in the background."""
        if self._task is None or self._task.done():
            self._rejoin.clear()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def rejoin(self, reason: str) -> None:
        """Have the group rebalance: the member's metadata or needs have changed."""
        self._core.reason = reason
        self._rejoin.set()

    def give_up(self, code: ErrorCode) -> None:
        """Another request was told that this member or its generation is unknown: join anew."""
        logger.info("group %s: %s; joining anew", self._core.group_id, code.name)
        if code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self._core.lose()
        self.rejoin(f"a commit was answered with {code.name}")

    async def leave(self, reason: str, timeout_ms: float = 5_000) -> None:
        """Stop, and tell the coordinator; a static member stays a member until its session times out."""
        await self._stop(self._task)
        await self._stop(self._heartbeats)
        self._task = self._heartbeats = None
        if self._core.generation.member_id:
            await self._send_leave(reason, timeout_ms)
        self._cluster.release(self._purpose)

    async def _send_leave(self, reason: str, timeout_ms: float) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._cluster.coordinator_connection(self._core.group_id, self._purpose)
                version = connection.version_for(LeaveGroupRequest)
                message = self._core.leave_request(reason, version)
                if message is not None:
                    await connection.request(message, version=version)
        except (ClientError, TimeoutError) as error:
            logger.info("group %s: leaving was not confirmed: %s", self._core.group_id, error)

    # -- the life of a member ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                if self._core.state is State.UNJOINED:
                    await self._callbacks.lost()
                else:
                    await self._callbacks.prepare(self.generation)
                await self._stop(self._heartbeats)
                self._rejoin.clear()
                assignment = await self._join()
                self._heartbeats = asyncio.get_running_loop().create_task(self._beat())
                await self._callbacks.joined(self.generation, assignment)
                await self._rejoin.wait()
        except Exception as error:  # a callback's own fault is told, too, instead of leaving a silent non-member
            await self._stop(self._heartbeats)
            if not isinstance(error, ClientError):
                logger.exception("group %s", self._core.group_id)
                error = ClientError(f"group {self._core.group_id}: {error!r}")
            self._callbacks.failed(error)

    async def _join(self) -> bytes:
        """Join and sync until there is an assignment; returns its bytes. Raises BrokerError when there is no way."""
        attempts = 0
        while True:
            try:
                step, assignment = await self._join_once()
            except ClientError as error:
                if not error.retriable:
                    raise
                logger.info("group %s: %s; trying again", self._core.group_id, error)
                step, assignment = Step.FIND_COORDINATOR, b""
            if step is Step.ASSIGNED:
                return assignment
            if step is Step.FAIL:
                raise BrokerError(self._core.last_code, f"group {self._core.group_id}")
            if step is Step.JOIN_ANEW:
                await self._callbacks.lost()
            elif step is Step.FIND_COORDINATOR:
                self._cluster.forget_coordinator(self._core.group_id)
            if step in (Step.JOIN_LATER, Step.FIND_COORDINATOR):
                await asyncio.sleep(self._cluster.retry_pause_ms(attempts) / 1000)
                attempts += 1

    async def _join_once(self) -> tuple[Step, bytes]:
        core = self._core
        connection = await self._cluster.coordinator_connection(core.group_id, self._purpose)
        request = core.join_request(self._callbacks.protocols(core.generation))
        # From version 4 on a new member is given its id before it is let in, so that a lost answer leaves no ghost.
        response = await connection.request(
            request, version=connection.version_for(JoinGroupRequest), timeout_ms=self._join_timeout_ms
        )
        step = core.on_join(response)
        if step not in (Step.LEAD, Step.FOLLOW):
            return step, b""
        assignments = await self._assignments(response) if step is Step.LEAD else {}
        synced = await self._cluster.request_coordinator(
            core.group_id, core.sync_request(assignments), purpose=self._purpose, timeout_ms=self._join_timeout_ms
        )
        return core.on_sync(synced, self._cluster.now_ms()), synced.assignment

    async def _assignments(self, response: JoinGroupResponse) -> Mapping[str, bytes]:
        return await self._callbacks.assign(self.generation, response.members)

    async def _beat(self) -> None:
        core = self._core
        failures = 0
        while True:
            due = max(core.heartbeat_due_ms() - self._cluster.now_ms(), 0)
            await asyncio.sleep((self._cluster.retry_pause_ms(failures) if failures else due) / 1000)
            now_ms = self._cluster.now_ms()
            if core.is_session_over(now_ms):
                core.lose()
                self.rejoin("the coordinator did not answer within the session timeout")
                return
            try:
                response = await self._cluster.request_coordinator(
                    core.group_id, core.heartbeat_request(now_ms), purpose=self._purpose
                )
            except ClientError as error:
                failures += 1
                logger.info("group %s: heartbeat: %s", core.group_id, error)
                self._cluster.forget_coordinator(core.group_id)
                continue
            step = core.on_heartbeat(response.error_code, self._cluster.now_ms())
            failures = failures + 1 if step is Step.FIND_COORDINATOR else 0
            if step is Step.FIND_COORDINATOR:
                self._cluster.forget_coordinator(core.group_id)
            elif step is Step.JOIN:
                self._rejoin.set()
            elif step in (Step.JOIN_ANEW, Step.FAIL):
                core.lose()
                self._rejoin.set()
                return

    async def _stop(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
