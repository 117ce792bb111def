"""The quorum's times, and who votes in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """`voters` are the ids of `controller.quorum.voters`; a node that is not among them observes."""

    node_id: int
    voters: frozenset[int]
    cluster_id: str = ""
    election_timeout_ms: int = 1000
    election_backoff_max_ms: int = 1000
    fetch_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    refused_backoff_ms: int = 100
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 8 * 1024 * 1024

    @property
    def is_voter(self) -> bool:
        return self.node_id in self.voters

    @property
    def majority(self) -> int:
        """How many voters decide."""
        return len(self.voters) // 2 + 1

    @property
    def check_quorum_timeout_ms(self) -> int:
        """How long a leader goes on without hearing from a majority."""
        return self.fetch_timeout_ms * 3 // 2
