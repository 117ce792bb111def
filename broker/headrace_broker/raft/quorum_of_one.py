"""A quorum with one voter: it elects itself at each start, and whatever it has on disk is committed.

The rules are the large quorum's: a new epoch for each leadership, the epoch on disk before anything is appended in
it, and a LeaderChange record as the first record of the epoch.  What is missing is only everybody else.
"""

from __future__ import annotations

from headrace_broker.protocol.control_records import LeaderChangeMessage, Voter, encode_control_value
from headrace_broker.raft.quorum_state import QuorumState


def elect_self(previous: QuorumState | None, node_id: int, last_epoch_in_log: int) -> QuorumState:
    """The state to persist before the first append: an epoch above every one seen, led by this node.

    Raises ValueError when the state belongs to a quorum with other voters.
    """
    if previous is not None and previous.voters and previous.voters != (node_id,):
        raise ValueError(
            f"quorum-state names voters {list(previous.voters)}, but this node is {node_id} and a quorum of its own"
        )
    seen = max(previous.leader_epoch if previous is not None else 0, last_epoch_in_log)
    return QuorumState(leader_epoch=seen + 1, leader_id=node_id, voted_id=node_id, voters=(node_id,))


def leader_change_value(state: QuorumState) -> bytes:
    """The value of the LeaderChange control record that opens the epoch."""
    voters = [Voter(voter_id=voter) for voter in state.voters]
    message = LeaderChangeMessage(version=0, leader_id=state.leader_id, voters=voters, granting_voters=voters)
    return encode_control_value(message)
