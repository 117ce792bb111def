"""Computes the new state of one partition (leader, ISR, ELR, reassignment) as a PartitionChangeRecord.

The caller sets the requested change (a new ISR, a new assignment or an election), and `PartitionChange.record` derives
the other fields. The new leader is elected as follows:
- The new leader comes from the ISR.
- If the ISR is empty, the new leader comes from the eligible leader replicas (ELR).
- If the ELR is empty too, the last known leader is elected.
- Any other live replica is elected only in an unclean election.

If a replica leaves the ISR and the ISR then has fewer than min.insync.replicas members, the replica joins the ELR. No
record is committed while the ISR is that small, so the replica has every acknowledged record (KIP-966). Rules: KIP-966,
KIP-455 (reassignment), KIP-841 (fenced brokers).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace_broker.metadata.image import PartitionImage
from headrace_broker.protocol.metadata_records import PartitionChangeRecord

NO_LEADER = -1
NO_LEADER_CHANGE = -2
RECOVERED = 0
RECOVERING = 1


class Election(Enum):
    """The election types.

    ONLINE keeps a live leader, PREFERRED elects the first replica, and UNCLEAN may elect any replica.
    """

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@dataclass(slots=True)
class PartitionChange:
    """A requested change of `partition`. A field that is None leaves the partition's value unchanged."""

    topic_id: bytes
    index: int
    partition: PartitionImage
    may_lead: Callable[[int], bool]
    """A function that returns whether a replica's broker can be elected leader."""
    min_insync_replicas: int
    default_directory: Callable[[int], bytes]
    """A function that returns the log directory for a new replica on a broker."""
    election: Election = Election.ONLINE
    isr: Sequence[int] | None = None
    replicas: Sequence[int] | None = None
    removing: Sequence[int] | None = None
    adding: Sequence[int] | None = None
    unclean_shutdowns: Collection[int] = ()
    """Replicas that may have lost unflushed records."""
    recovery_state: int | None = None
    _isr: list[int] = field(init=False, default_factory=list)
    _replicas: list[int] = field(init=False, default_factory=list)
    _removing: list[int] = field(init=False, default_factory=list)
    _adding: list[int] = field(init=False, default_factory=list)
    _elr: list[int] = field(init=False, default_factory=list)

    def record(self) -> PartitionChangeRecord | None:
        """Return the PartitionChangeRecord, or None if nothing changes."""
        old = self.partition
        self._isr = list(old.isr if self.isr is None else self.isr)
        self._replicas = list(old.replicas if self.replicas is None else self.replicas)
        self._removing = list(old.removing_replicas if self.removing is None else self.removing)
        self._adding = list(old.adding_replicas if self.adding is None else self.adding)
        self._complete_reassignment()
        self._elr = self._eligible_leaders()
        record = PartitionChangeRecord(topic_id=self.topic_id, partition_id=self.index)
        self._elect(record)
        if record.leader == NO_LEADER_CHANGE and not set(old.replicas) <= set(self._replicas):
            record.leader = old.leader  # a new leader epoch fences requests of the removed replica
        self._set_isr_and_elr(record)
        self._set_last_known_leader(record)
        self._set_assignment(record)
        if self.recovery_state is not None and self.recovery_state != old.leader_recovery_state:
            record.leader_recovery_state = self.recovery_state
        return None if _is_empty(record) else record

    def _complete_reassignment(self) -> None:
        """Complete the reassignment once every adding replica is in sync.

        If the reassignment lowers the replication factor, all remaining replicas must be in sync; otherwise completing
        it could shrink the ISR.
        """
        if not (self._removing or self._adding):
            return
        remaining = [replica for replica in self._replicas if replica not in self._removing]
        remaining_isr = [replica for replica in self._isr if replica not in self._removing]
        required = remaining if len(self._adding) < len(self._removing) else self._adding
        if not remaining_isr or not set(required) <= set(remaining_isr):
            return
        self._replicas, self._isr, self._removing, self._adding = remaining, remaining_isr, [], []

    def _eligible_leaders(self) -> list[int]:
        old = self.partition
        if len(self._isr) >= min(self.min_insync_replicas, len(self._replicas)):
            return []
        candidates = dict.fromkeys((*old.eligible_leader_replicas, *old.isr))
        return [
            replica
            for replica in candidates
            if replica not in self._isr and replica not in self.unclean_shutdowns and replica in self._replicas
        ]

    # -- elections ---------------------------------------------------------------------------------------------------

    def _elect(self, record: PartitionChangeRecord) -> None:
        old = self.partition
        leader, is_unclean = self._choose_leader()
        if leader == old.leader:
            return
        record.leader = leader
        if leader in self._elr:
            self._isr = [leader]
            self._elr.remove(leader)
        elif is_unclean:
            record.isr = [leader]
            if old.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING

    def _choose_leader(self) -> tuple[int, bool]:
        """Return (leader, whether the leader may lack acknowledged records)."""
        old = self.partition
        first = (self._replicas[0], old.leader) if self.election is Election.PREFERRED else (old.leader,)
        for replica in (*first, *self._replicas):
            if self._is_clean_candidate(replica):
                return replica, False
        if not self._isr and not self._elr and len(old.last_known_elr) == 1 and self.may_lead(old.last_known_elr[0]):
            return old.last_known_elr[0], True
        if self.election is Election.UNCLEAN:
            for replica in self._replicas:
                if self.may_lead(replica):
                    return replica, True
        return NO_LEADER, False

    def _is_clean_candidate(self, replica: int) -> bool:
        is_member = replica in self._isr or (not self._isr and replica in self._elr)
        return is_member and self.may_lead(replica)

    # -- the record --------------------------------------------------------------------------------------------------

    def _set_isr_and_elr(self, record: PartitionChangeRecord) -> None:
        old = self.partition
        if record.isr is not None:  # an unclean election clears the ELR
            self._elr = []
        if self._elr != list(old.eligible_leader_replicas):
            record.eligible_leader_replicas = self._elr
        if record.isr is None and self._isr != list(old.isr):
            record.isr = self._isr

    def _set_last_known_leader(self, record: PartitionChangeRecord) -> None:
        old = self.partition
        if record.leader == NO_LEADER and not old.last_known_elr:
            record.last_known_elr = [old.leader]
        elif record.leader >= 0 and old.last_known_elr:
            record.last_known_elr = []

    def _set_assignment(self, record: PartitionChangeRecord) -> None:
        old = self.partition
        if self._replicas != list(old.replicas):
            known = dict(zip(old.replicas, old.directories, strict=False))
            record.replicas = self._replicas
            record.directories = [known.get(replica) or self.default_directory(replica) for replica in self._replicas]
        if self._removing != list(old.removing_replicas):
            record.removing_replicas = self._removing
        if self._adding != list(old.adding_replicas):
            record.adding_replicas = self._adding


def _is_empty(record: PartitionChangeRecord) -> bool:
    lists = (
        record.isr,
        record.eligible_leader_replicas,
        record.last_known_elr,
        record.replicas,
        record.removing_replicas,
        record.adding_replicas,
        record.directories,
    )
    return (
        record.leader == NO_LEADER_CHANGE and record.leader_recovery_state == -1 and all(item is None for item in lists)
    )
