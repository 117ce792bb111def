"""The `quorum-state` file: a voter's current epoch, the leader of that epoch and the voter's vote (data version 0)."""

from __future__ import annotations

import json
from dataclasses import dataclass

NO_NODE = -1
EPOCH_MAX = (1 << 31) - 1 - (1 << 16)
"""The highest accepted epoch. Epochs have 32 bits; above this limit too few epochs remain for further elections."""
EPOCH_INCREASE_MAX = 100
"""The largest increase of a node's epoch by one request. Responses have no such limit: a node that missed more
elections learns the current epoch from the responses to its own requests."""
FILE_NAME = "quorum-state"


class QuorumStateError(ValueError):
    """The content of the quorum-state file is invalid."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The epoch, leader and vote of a node. They must be on disk before the node acts on them."""

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voters: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        """Return the content of the quorum-state file, one line in Kafka's format."""
        fields = {
            "clusterId": "",
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in self.voters],
            "data_version": 0,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> QuorumState:
        """Parse the content of a quorum-state file (data version 0 or 1). Raises QuorumStateError."""
        try:
            fields = json.loads(data)
            leader_epoch = int(fields["leaderEpoch"])
            if not 0 <= leader_epoch <= EPOCH_MAX:
                raise ValueError(f"leaderEpoch is {leader_epoch}, but it must be between 0 and {EPOCH_MAX}")
            return cls(
                leader_epoch=leader_epoch,
                leader_id=int(fields["leaderId"]),
                voted_id=int(fields["votedId"]),
                voters=tuple(int(item["voterId"]) for item in fields.get("currentVoters") or ()),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QuorumStateError(f"the quorum state is invalid ({error})") from None
