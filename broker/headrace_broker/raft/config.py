"""Timeouts and voters of the metadata quorum."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """The configuration of one node of the metadata quorum: timeouts and voters.

    `voters` holds the node ids in `controller.quorum.voters`. A node that is not in this set is an observer.
    """

    node_id: int
    voters: frozenset[int]
    cluster_id: str = ""
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    connection_refused_backoff_ms: int = 100
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 8 * 1024 * 1024

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    @property
    def majority(self) -> int:
        """The number of voters that form a majority."""
        return len(self.voters) // 2 + 1

    @property
    def check_quorum_timeout_ms(self) -> int:
        """The time after which a leader resigns if it has received no fetches from a majority of the voters."""
        return self.fetch_timeout_ms * 3 // 2
