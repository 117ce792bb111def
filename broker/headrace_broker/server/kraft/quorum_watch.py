"""Reports why the metadata quorum is unavailable: in the log, to waiting clients, and as the reason for a failed start.

If a majority of the voters is down, the quorum recovers when voters are restarted. This module logs that the quorum has
no leader, at growing intervals, and logs the recovery once. If another voter does not list this node as a voter, or
belongs to another cluster, one of the properties files is wrong. This module logs the error once, and a node that is
still starting fails to start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.quorum import Quorum
from headrace_broker.server.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

CHECK_INTERVAL_MS = 2_000


class QuorumWatch:
    """Checks the quorum periodically and reports each misconfiguration once. All methods run on the event loop."""

    def __init__(
        self,
        quorum: Quorum,
        voters: Mapping[int, tuple[str, int]],
        node_id: int,
        cluster_id: str,
        on_misconfiguration: Callable[[str], None],
    ) -> None:
        self._quorum = quorum
        self._voters = voters
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._checks_without_leader = 0
        self._leaderless_throttle = LogThrottle()
        self._reported: set[tuple[int, ErrorCode]] = set()
        self._reported_voters = frozenset(voters)
        self._caught_up = asyncio.Event()
        self._on_misconfiguration = on_misconfiguration  # called with the reason, before this node has caught up
        quorum.on_caught_up = self._on_caught_up
        quorum.on_misconfigured_voter = self._on_misconfigured_voter

    def unavailable_reason(self) -> str:
        """Return why there is no active controller, as a message for an operator."""
        raft = self._quorum.raft
        if raft.leader_id >= 0:
            return f"node {raft.leader_id} is the leader, and this node has not fetched all committed metadata yet"
        errors = {
            voter: error for voter, error in self._quorum.peers.connection_errors.items() if voter in self._voters
        }
        if len(self._voters) - len(errors) < raft.config.majority:
            listed = ", ".join(f"{self._name(voter)} {error}" for voter, error in sorted(errors.items()))
            return f"a majority of controller.quorum.voters is not reachable: {listed}"
        return "the voters of controller.quorum.voters have not elected a leader yet"

    def _name(self, voter: int) -> str:
        host, port = self._voters[voter]
        return f"{voter}@{host}:{port}"

    def check(self) -> None:
        """Log an error if the quorum has no leader. The caller calls this method every `CHECK_INTERVAL_MS`."""
        self._check_voters()
        if self._quorum.raft.leader_id >= 0:
            if self._leaderless_throttle.reset():
                logger.warning("Metadata quorum has a leader again: node %d", self._quorum.raft.leader_id)
            self._checks_without_leader = 0
            return
        self._checks_without_leader += 1
        waited_s = self._checks_without_leader * CHECK_INTERVAL_MS / 1000
        if self._checks_without_leader > 1 and self._leaderless_throttle.should_log(waited_s):
            logger.error(
                "Metadata quorum has no leader, so metadata cannot change until a leader is elected: %s",
                self.unavailable_reason(),
            )

    def _on_caught_up(self) -> None:
        if not self._caught_up.is_set():
            self._check_voters()
            self._caught_up.set()

    def _check_voters(self) -> None:
        """Check that this node and the leader have the same voters, because otherwise two leaders could be elected."""
        leader_id = self._quorum.raft.leader_id
        is_unknown_leader = leader_id >= 0 and leader_id not in self._voters
        actual = frozenset((leader_id,)) if is_unknown_leader else self._quorum.log.voters
        if not actual or actual == self._reported_voters:
            return
        self._reported_voters = actual
        if actual == self._voters.keys():
            return
        leader = f"is node {leader_id}" if is_unknown_leader else f"has {_listed(actual)}"
        reason = (
            f"controller.quorum.voters of node {self._node_id} has {_listed(self._voters)}, but the metadata quorum's "
            f"leader {leader}: configure the same voters on every node"
        )
        logger.error("Metadata quorum is misconfigured: %s", reason)
        if not self._caught_up.is_set() and (is_unknown_leader or self._node_id in self._voters):
            self._on_misconfiguration(reason)

    def _on_misconfigured_voter(self, node_id: int, code: ErrorCode) -> None:
        if (node_id, code) in self._reported:
            return
        self._reported.add((node_id, code))
        reason = self._describe_misconfiguration(node_id, code)
        logger.error("Metadata quorum is misconfigured: %s", reason)
        if not self.has_caught_up:
            self._on_misconfiguration(reason)

    def _describe_misconfiguration(self, node_id: int, code: ErrorCode) -> str:
        name = self._name(node_id)
        if code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            return (
                f"voter {name} does not belong to cluster {self._cluster_id}, the cluster of this node's directories: "
                "correct controller.quorum.voters, or configure empty directories in log.dirs"
            )
        voters = ",".join(map(self._name, sorted(self._voters)))
        if code is ErrorCode.INVALID_VOTER_KEY:
            return (
                f"the node at {name.partition('@')[2]} is not voter {node_id}: controller.quorum.voters "
                f"must list each node with its own address; the value on this node is {voters}"
            )
        return (
            f"voter {name} does not have node {self._node_id} in its controller.quorum.voters: configure the same "
            f"voters on every node; the value on this node is {voters}"
        )

    @property
    def has_caught_up(self) -> bool:
        """Whether this node has applied all metadata records that were committed when it joined the quorum."""
        return self._caught_up.is_set()

    async def wait_until_caught_up(self, timeout_ms: int) -> None:
        """Wait until this node has applied all committed metadata records. Raises StartError after `timeout_ms`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._caught_up.wait()
        except TimeoutError:
            raise StartError(
                f"the metadata quorum could not be joined within {timeout_ms} ms "
                f"(initial.broker.registration.timeout.ms): {self.unavailable_reason()}"
            ) from None


def _listed(voters: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(voters)))
