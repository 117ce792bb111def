"""Says what keeps the quorum from working: in the log, to clients that wait, and as the reason why a node cannot start.

A lost majority heals by itself when voters come back, and both are told once.  A voter that does not know this node, or
belongs to another cluster, is a fault in a properties file: a node that has not started yet does not start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.quorum import Quorum
from headrace_broker.server.telling import Telling

logger = logging.getLogger(__name__)

LOOK_INTERVAL_MS = 2_000


class QuorumWatch:
    """Owner of what was told; lives on the event loop."""

    def __init__(
        self,
        quorum: Quorum,
        voters: Mapping[int, tuple[str, int]],
        node_id: int,
        cluster_id: str,
        on_fault: Callable[[str], None],
    ) -> None:
        self._quorum = quorum
        self._voters = voters
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._looks_without_leader = 0
        self._leaderless = Telling()
        self._told: set[tuple[int, ErrorCode]] = set()
        self._told_voters = frozenset(voters)
        self._caught_up = asyncio.Event()
        self._on_fault = on_fault  # why this node must not go on; only before it has caught up
        quorum.on_caught_up = self._on_caught_up
        quorum.on_refusal = self._on_refusal

    def why(self) -> str:
        """Why there is no active controller, in words for an operator."""
        raft = self._quorum.raft
        if raft.leader_id >= 0:
            return f"node {raft.leader_id} leads it, and not all that is committed has come from there yet"
        faults = {voter: fault for voter, fault in self._quorum.peers.faults.items() if voter in self._voters}
        if len(self._voters) - len(faults) < raft.config.majority:
            listed = ", ".join(f"{self._name(voter)} {fault}" for voter, fault in sorted(faults.items()))
            return f"a majority of controller.quorum.voters is not reachable: {listed}"
        return "the voters of controller.quorum.voters have elected no leader yet"

    def _name(self, voter: int) -> str:
        host, port = self._voters[voter]
        return f"{voter}@{host}:{port}"

    def look(self) -> None:
        """Tell of a quorum without a leader; call it every `LOOK_INTERVAL_MS`."""
        self._check_voters()
        if self._quorum.raft.leader_id >= 0:
            if self._leaderless.is_over():
                logger.warning("the metadata quorum has a leader again, node %d", self._quorum.raft.leader_id)
            self._looks_without_leader = 0
            return
        self._looks_without_leader += 1
        waited_s = self._looks_without_leader * LOOK_INTERVAL_MS / 1000
        if self._looks_without_leader > 1 and self._leaderless.is_due(waited_s):
            logger.error("the metadata quorum has no leader, nothing can be changed until it has one: %s", self.why())

    def _on_caught_up(self) -> None:
        if not self._caught_up.is_set():
            self._check_voters()
            self._caught_up.set()

    def _check_voters(self) -> None:
        """Voters that count differently may elect two leaders: one whose file is another does not start."""
        leader_id = self._quorum.raft.leader_id
        is_stranger = leader_id >= 0 and leader_id not in self._voters
        counted = frozenset((leader_id,)) if is_stranger else self._quorum.log.voters
        if not counted or counted == self._told_voters:
            return
        self._told_voters = counted
        if counted == self._voters.keys():
            return
        leader = f"is node {leader_id}" if is_stranger else f"counts {_listed(counted)}"
        fault = (
            f"controller.quorum.voters of node {self._node_id} names {_listed(self._voters)}, the metadata quorum's "
            f"leader {leader}: it must be the same in every node's file"
        )
        logger.error("%s", fault)
        if not self._caught_up.is_set() and (is_stranger or self._node_id in self._voters):
            self._on_fault(fault)

    def _on_refusal(self, node_id: int, code: ErrorCode) -> None:
        if (node_id, code) in self._told:
            return
        self._told.add((node_id, code))
        fault = self._refusal(node_id, code)
        logger.error("%s", fault)
        if not self.has_caught_up:
            self._on_fault(fault)

    def _refusal(self, node_id: int, code: ErrorCode) -> str:
        name = self._name(node_id)
        if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return (
                f"voter {name} belongs to another cluster than this node, whose directories are of cluster "
                f"{self._cluster_id}: correct controller.quorum.voters, or name empty directories in log.dirs"
            )
        voters = ",".join(map(self._name, sorted(self._voters)))
        if code is ErrorCode.INVALID_VOTER_KEY:
            return (
                f"at {name.partition('@')[2]} there is another node than voter {node_id}: controller.quorum.voters "
                f"must name each node with its own address, here it is {voters}"
            )
        return (
            f"voter {name} does not count node {self._node_id} among its voters: controller.quorum.voters must be the "
            f"same in every node's file, here it is {voters}"
        )

    @property
    def has_caught_up(self) -> bool:
        """Whether this node has had, once, all that was committed before it."""
        return self._caught_up.is_set()

    async def caught_up(self, timeout_ms: int) -> None:
        """Wait until what is committed is known here.  Raises StartError after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._caught_up.wait()
        except TimeoutError:
            raise StartError(
                f"the metadata quorum could not be joined within {timeout_ms} ms "
                f"(initial.broker.registration.timeout.ms): {self.why()}"
            ) from None


def _listed(voters: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(voters)))
