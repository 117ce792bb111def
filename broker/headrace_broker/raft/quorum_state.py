"""The `quorum-state` file: the epoch a voter has seen, its leader and the vote given (KRaft, data version 0)."""

from __future__ import annotations

import json
from dataclasses import dataclass

NO_ONE = -1
EPOCH_MAX = (1 << 31) - 1 - (1 << 16)
"""What is more can only be damage or malice: it would leave no room for elections."""
EPOCH_LEAP_MAX = 100
"""So much higher than the own epoch is what a request may say; a node that was away for longer asks the others."""
FILE_NAME = "quorum-state"


class QuorumStateError(ValueError):
    """The file's content cannot be understood."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What must be on disk before it is acted upon."""

    leader_epoch: int = 0
    leader_id: int = NO_ONE
    voted_id: int = NO_ONE
    voters: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        """The file's content, one line as Kafka writes it."""
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
        """Parse the file (data versions 0 and 1); raises QuorumStateError."""
        try:
            fields = json.loads(data)
            leader_epoch = int(fields["leaderEpoch"])
            if not 0 <= leader_epoch <= EPOCH_MAX:
                raise ValueError(f"leaderEpoch is {leader_epoch}, at most {EPOCH_MAX} leaves room for elections")
            return cls(
                leader_epoch=leader_epoch,
                leader_id=int(fields["leaderId"]),
                voted_id=int(fields["votedId"]),
                voters=tuple(int(item["voterId"]) for item in fields.get("currentVoters") or ()),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QuorumStateError(f"this voter's state cannot be read ({error})") from None
