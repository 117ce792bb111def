"""Implements membership of a classic group (join, sync, heartbeat, leave), for consumers and Connect workers.

It runs `membership_core` on the event loop. The owner provides a protocol type and an object with six callbacks, and
encodes and decodes metadata and assignments. Each member has a separate connection, because a JoinGroup that waits in
the coordinator delays all later requests on its connection. Heartbeats continue while callbacks run, so that a slow
callback does not end the membership. No heartbeats are sent during JoinGroup and SyncGroup, because the coordinator
does not expire the member's session during these requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace_broker.client.cluster import Cluster
from headrace_broker.client.errors import BrokerError, ClientError
from headrace_broker.client.membership_core import Generation, MembershipCore, MemberState, NextStep
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest

logger = logging.getLogger(__name__)

_members = itertools.count(1)

_JOIN_TIMEOUT_EXTRA_MS = 5_000
"""The timeout of JoinGroup in addition to the rebalance timeout, because the coordinator may wait for that long."""


class GroupCallbacks(Protocol):
    """The callbacks of a membership's owner. Two callbacks never run concurrently."""

    def protocols(self, generation: Generation) -> Sequence[tuple[str, bytes]]:
        """Return the (protocol, metadata) pairs for JoinGroup, in order of preference.

        `generation` is the member's current generation.
        """

    async def on_join_prepare(self, generation: Generation) -> None:
        """Commit offsets and revoke partitions or tasks, as the protocol requires, before the member (re)joins."""

    async def compute_assignments(
        self, generation: Generation, members: Sequence[JoinGroupResponseMember]
    ) -> Mapping[str, bytes]:
        """Return the assignment of each member. Called only if this member is the group's leader."""

    async def on_join_complete(self, generation: Generation, assignment: bytes) -> None:
        """Apply the assignment of a new generation."""

    async def on_membership_lost(self) -> None:
        """Drop the assignment. The coordinator removed the member, and other members may own its partitions."""

    def on_failure(self, error: ClientError) -> None:
        """Report an error that cannot be retried and that has ended the membership."""


class GroupMembership:
    """One member of a group. Call `start` to join and `leave` to end the membership."""

    def __init__(
        self, cluster: Cluster, core: MembershipCore, callbacks: GroupCallbacks, rebalance_timeout_ms: int
    ) -> None:
        self._cluster = cluster
        self._core = core
        self._callbacks = callbacks
        self._purpose = f"member {next(_members)}"
        self._join_timeout_ms = max(rebalance_timeout_ms + _JOIN_TIMEOUT_EXTRA_MS, cluster.config.request_timeout_ms)
        self._rejoin = asyncio.Event()
        self._error: ClientError | TimeoutError | None = None
        self._task: asyncio.Task[None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None

    @property
    def generation(self) -> Generation:
        """The member's current generation."""
        return self._core.generation

    @property
    def is_stable(self) -> bool:
        """True while the member has an assignment and no rebalance is pending."""
        return self._core.state is MemberState.STABLE and not self._rejoin.is_set()

    @property
    def has_session(self) -> bool:
        """Whether the member has joined and its session has not expired.

        If the result is False, the coordinator may have removed the member. If the process was suspended for longer
        than the session timeout, the result is False as soon as the process continues.
        """
        return self._core.state is not MemberState.UNJOINED and not self._core.is_session_expired(
            self._cluster.now_ms()
        )

    @property
    def error(self) -> ClientError | TimeoutError | None:
        """The error of the last request to the coordinator, or None if the coordinator responded to this request."""
        return self._error

    def start(self) -> None:
        """Join the group in the background."""
        if self._task is None or self._task.done():
            self._rejoin.clear()
            self._task = asyncio.get_running_loop().create_task(self._run())

    def rejoin(self, reason: str) -> None:
        """Trigger a rebalance, because the member's metadata has changed."""
        self._core.reason = reason
        self._rejoin.set()

    def handle_commit_error(self, code: ErrorCode) -> None:
        """Rejoin after the coordinator rejected a commit because of an unknown member id or generation."""
        logger.info("Group %s: commit failed with %s; rejoining", self._core.group_id, code.name)
        if code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self._core.reset()
        self.rejoin(f"a commit failed with {code.name}")

    async def leave(self, reason: str, timeout_ms: float = 5_000) -> bool:
        """Leave the group. Return whether this member is no longer in the group, as far as the member knows.

        A static member sends no LeaveGroup: it stays a member until its session times out.

        A broker handles the requests of one connection in order, and the response to JoinGroup or SyncGroup may take
        minutes. During a rebalance, LeaveGroup is therefore sent on a new connection.
        """
        is_rebalancing = self._core.state in (MemberState.JOINING, MemberState.SYNCING)
        await self._stop(self._task)
        await self._stop(self._heartbeats)
        self._task = self._heartbeats = None
        if is_rebalancing:
            self._cluster.close_connections(self._purpose)
        has_left = not self._core.generation.member_id or await self._send_leave(reason, timeout_ms)
        self._cluster.close_connections(self._purpose)
        return has_left

    async def _send_leave(self, reason: str, timeout_ms: float) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await self._cluster.coordinator_connection(self._core.group_id, self._purpose)
                version = connection.version_for(LeaveGroupRequest)
                message = self._core.leave_request(reason, version)
                if message is not None:
                    await connection.request(message, version=version)
                return message is not None
        except (ClientError, TimeoutError) as error:
            logger.info("Group %s: LeaveGroup failed: %s", self._core.group_id, error)
            return False

    # -- background tasks --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while True:
                if self._core.state is MemberState.UNJOINED:
                    await self._callbacks.on_membership_lost()
                else:
                    await self._callbacks.on_join_prepare(self.generation)
                await self._stop(self._heartbeats)
                self._rejoin.clear()
                assignment = await self._join()
                self._heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())
                await self._callbacks.on_join_complete(self.generation, assignment)
                await self._rejoin.wait()
        except Exception as error:  # report errors of callbacks too, because they end the membership
            await self._stop(self._heartbeats)
            if not isinstance(error, ClientError):
                logger.exception(
                    "Group %s: unexpected error, ending the membership of this client", self._core.group_id
                )
                error = ClientError(f"group {self._core.group_id}: {error!r}")
            self._callbacks.on_failure(error)

    async def _join(self) -> bytes:
        """Send JoinGroup and SyncGroup until the member receives an assignment. Return the assignment's bytes.

        Raises ClientError for an error that is not retriable.
        """
        attempts = 0
        while True:
            try:
                step, assignment = await self._join_once()
            except ClientError as error:
                if not error.retriable:
                    raise
                self._on_error(error)
                step, assignment = NextStep.FIND_COORDINATOR, b""
            if step is NextStep.ASSIGNED:
                return assignment
            must_wait = step in (NextStep.JOIN_LATER, NextStep.FIND_COORDINATOR)
            if must_wait and self._core.on_no_response(self._cluster.now_ms()) is NextStep.JOIN_AS_NEW_MEMBER:
                await self._callbacks.on_membership_lost()
            if step is NextStep.FAIL:
                raise BrokerError(self._core.last_code, f"cannot join group {self._core.group_id}")
            if step is NextStep.JOIN_AS_NEW_MEMBER:
                await self._callbacks.on_membership_lost()
            elif step is NextStep.FIND_COORDINATOR:
                self._cluster.forget_coordinator(self._core.group_id)
            if step in (NextStep.JOIN_LATER, NextStep.FIND_COORDINATOR):
                await asyncio.sleep(self._cluster.retry_backoff_ms(attempts) / 1000)
                attempts += 1

    async def _join_once(self) -> tuple[NextStep, bytes]:
        core = self._core
        connection = await self._cluster.coordinator_connection(core.group_id, self._purpose)
        request = core.join_request(self._callbacks.protocols(core.generation))
        # From JoinGroup version 4 on, a new member receives its id before it joins. Without this step, a lost response
        # would leave an unused member in the group until its session expires.
        member = request.member_id or "a new member"
        logger.debug("Group %s: sending JoinGroup as %s: %s", core.group_id, member, core.reason or "the member starts")
        response = await connection.request(
            request, version=connection.version_for(JoinGroupRequest), timeout_ms=self._join_timeout_ms
        )
        self._on_response()
        step = core.on_join(response)
        logger.debug(
            "Group %s: JoinGroup response for member %s: %s, generation %d, leader %s; next step %s",
            core.group_id,
            response.member_id,
            ErrorCode.from_code(response.error_code).name,
            response.generation_id,
            response.leader,
            step.name,
        )
        if step not in (NextStep.LEAD, NextStep.FOLLOW):
            return step, b""
        assignments = await self._compute_assignments(response) if step is NextStep.LEAD else {}
        synced = await self._cluster.request_coordinator(
            core.group_id, core.sync_request(assignments), purpose=self._purpose, timeout_ms=self._join_timeout_ms
        )
        logger.debug(
            "Group %s: SyncGroup response for generation %d: %s, an assignment of %d bytes",
            core.group_id,
            core.generation.generation_id,
            ErrorCode.from_code(synced.error_code).name,
            len(synced.assignment),
        )
        return core.on_sync(synced, self._cluster.now_ms()), synced.assignment

    async def _compute_assignments(self, response: JoinGroupResponse) -> Mapping[str, bytes]:
        return await self._callbacks.compute_assignments(self.generation, response.members)

    async def _send_heartbeats(self) -> None:
        core = self._core
        failures = 0
        while True:
            due = max(core.heartbeat_due_ms() - self._cluster.now_ms(), 0)
            await asyncio.sleep((self._cluster.retry_backoff_ms(failures) if failures else due) / 1000)
            now_ms = self._cluster.now_ms()
            if core.is_session_expired(now_ms):
                core.expire_session()
                self.rejoin("the coordinator did not respond within the session timeout")
                return
            try:
                # The limit includes the time to find and connect to the coordinator: any broker may hang.
                async with asyncio.timeout(core.session_remaining_ms(now_ms) / 1000):
                    response = await self._cluster.request_coordinator(
                        core.group_id, core.heartbeat_request(now_ms), purpose=self._purpose
                    )
            except (ClientError, TimeoutError) as error:
                failures += 1
                self._on_error(error)
                self._cluster.forget_coordinator(core.group_id)
                continue
            self._on_response()
            step = core.on_heartbeat(response.error_code, self._cluster.now_ms())
            failures = failures + 1 if step is NextStep.FIND_COORDINATOR else 0
            if step is NextStep.FIND_COORDINATOR:
                self._cluster.forget_coordinator(core.group_id)
            elif step is NextStep.JOIN:
                logger.debug("Group %s: the heartbeat response reports a rebalance; rejoining", core.group_id)
                self._rejoin.set()
            elif step in (NextStep.JOIN_AS_NEW_MEMBER, NextStep.FAIL):
                core.reset()
                self._rejoin.set()
                return

    def _on_error(self, error: ClientError | TimeoutError) -> None:
        if self._error is None:
            reason = str(error) or "no response within the session timeout"
            logger.warning("Group %s: the coordinator does not respond, retrying: %s", self._core.group_id, reason)
        self._error = error

    def _on_response(self) -> None:
        if self._error is not None:
            logger.info("Group %s: the coordinator responds again", self._core.group_id)
        self._error = None

    async def _stop(self, task: asyncio.Task[None] | None) -> None:
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
