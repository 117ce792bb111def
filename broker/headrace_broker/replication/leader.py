"""The leader's side of a partition: how far each follower is, who is in sync, and what that commits.

The high watermark is the smallest end of the logs that must have a record before it counts: those of the in-sync
replicas, of those proposed to become in sync, and of those that keep up and may join.  It never moves while fewer than
min.insync.replicas are in sync (KIP-966).  A change of the in-sync replicas is proposed to the controller, one at a
time (KIP-497): a larger set counts from the proposal on, a smaller one only when the metadata log tells of it, so that
nothing is acknowledged that the controller's next leader may lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace_broker.metadata.image import PartitionImage
from headrace_broker.protocol.errors import ApiError, ErrorCode

UNKNOWN_EPOCH = -1
NEVER_MS = -(2**62)


@dataclass(slots=True)
class FollowerState:
    """What a follower's fetches tell: all unknown until the first."""

    log_end_offset: int = -1
    log_start_offset: int = -1
    last_fetch_ms: int = NEVER_MS
    last_caught_up_ms: int = NEVER_MS
    leader_end_at_fetch: int = -1
    broker_epoch: int | None = None
    serves_consumers: bool = False
    """Whether consumers were sent there: it hears of a high watermark that moves at once."""

    def has_left(self) -> None:
        """It is out of sync: how well it kept up before says nothing of when it will be back."""
        self.last_caught_up_ms = self.last_fetch_ms = NEVER_MS
        self.leader_end_at_fetch = -1

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Whether it has everything now, or had everything there was a moment ago."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_time_max_ms


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A set of in-sync replicas for the controller to confirm, with the broker epoch of each."""

    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int


IsEligible = Callable[[int, int | None], bool]
"""(replica, broker epoch of its fetches) -> whether it is alive, not stopping, and the same incarnation."""


class LeaderReplicas:
    """State of one partition that this node leads; made anew for each leader epoch."""

    def __init__(
        self,
        node_id: int,
        image: PartitionImage,
        *,
        log_end_offset: int,
        min_insync_replicas: int,
        lag_time_max_ms: int,
        now_ms: int,
    ) -> None:
        self.node_id = node_id
        self.leader_epoch = image.leader_epoch
        self.epoch_start_offset = log_end_offset
        self.min_insync_replicas = min_insync_replicas
        self.followers: dict[int, FollowerState] = {}
        self.isr: tuple[int, ...] = ()
        self.proposal: IsrProposal | None = None
        self._lag_time_max_ms = lag_time_max_ms
        self._take(image, now_ms)

    def _take(self, image: PartitionImage, now_ms: int) -> None:
        self.replicas = image.replicas
        self._take_isr(image.isr)
        self.partition_epoch = image.partition_epoch
        known = self.followers
        self.followers = {
            replica: known.get(replica) or FollowerState(last_caught_up_ms=now_ms if replica in image.isr else NEVER_MS)
            for replica in image.replicas
            if replica != self.node_id
        }

    def _take_isr(self, isr: tuple[int, ...]) -> None:
        for replica, follower in self.followers.items():
            if replica in self.isr and replica not in isr:
                follower.has_left()
        self.isr = isr
        self.maximal_isr = frozenset(isr)

    def image_changed(self, image: PartitionImage, now_ms: int) -> None:
        """The controller decided something about the partition in the same leader epoch."""
        if image.partition_epoch > self.partition_epoch:
            self._take(image, now_ms)
            self.proposal = None

    # -- fetches -----------------------------------------------------------------------------------------------------

    def fetched(
        self,
        replica: int,
        offset: int,
        *,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: int,
    ) -> None:
        """A follower asks for what comes at `offset`: it has everything before.  Raises ApiError for a stranger."""
        follower = self.followers.get(replica)
        if follower is None:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {replica} is not a replica in partition epoch {self.partition_epoch}",
            )
        if broker_epoch != follower.broker_epoch and replica not in self.maximal_isr:
            follower.has_left()  # another process than the one that kept up
        if offset >= leader_end_offset:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, now_ms)
        elif offset >= follower.leader_end_at_fetch >= 0:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, follower.last_fetch_ms)
        follower.log_end_offset = offset
        follower.log_start_offset = log_start_offset
        follower.leader_end_at_fetch = max(follower.leader_end_at_fetch, leader_end_offset)
        follower.last_fetch_ms = now_ms
        follower.broker_epoch = broker_epoch

    def appended(self, base_offset: int, now_ms: int) -> None:
        """Records are there from `base_offset` on: who is in sync and had everything before begins to lag now.

        In a fetch session nobody asks again for what has no news, so the last fetch may lie far back.  Of who is not in
        sync that is not known: it may be gone.
        """
        for replica, follower in self.followers.items():
            if follower.log_end_offset == base_offset and replica in self.maximal_isr:
                follower.last_caught_up_ms = now_ms

    # -- what is committed -------------------------------------------------------------------------------------------

    @property
    def min_isr_in_force(self) -> int:
        """min.insync.replicas, but no more than there are replicas."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.min_isr_in_force

    def committed_offset(self, log_end_offset: int, now_ms: int, is_eligible: IsEligible) -> int | None:
        """How far the log is committed; None while too few replicas are in sync."""
        if self.is_under_min_isr:
            return None
        committed = log_end_offset
        for replica, follower in self.followers.items():
            if follower.log_end_offset < committed and (
                replica in self.maximal_isr
                or (
                    follower.is_caught_up(log_end_offset, now_ms, self._lag_time_max_ms)
                    and is_eligible(replica, follower.broker_epoch)
                )
            ):
                committed = follower.log_end_offset
        return committed

    def low_watermark(self, log_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """The smallest log start of the leader and its live followers: what DeleteRecords waits for."""
        starts = [item.log_start_offset for replica, item in self.followers.items() if is_alive(replica)]
        return min([log_start_offset, *starts])

    # -- who may be read from ----------------------------------------------------------------------------------------

    def readable_at(self, offset: int) -> Iterator[tuple[int, FollowerState]]:
        """The in-sync followers whose log holds the offset, or ends there."""
        for replica in self.isr:
            follower = self.followers.get(replica)
            if follower is not None and follower.log_start_offset <= offset <= follower.log_end_offset:
                yield replica, follower

    def serves_consumers(self, replica: int) -> bool:
        """Whether consumers were sent to this follower."""
        follower = self.followers.get(replica)
        return follower is not None and follower.serves_consumers

    # -- who is in sync ----------------------------------------------------------------------------------------------

    def lacks_nothing_but_membership(self, log_end_offset: int) -> bool:
        """Whether a follower has everything there is and is not in sync: it will not fetch before there is more."""
        return any(
            follower.log_end_offset >= log_end_offset
            for replica, follower in self.followers.items()
            if replica not in self.isr
        )

    def propose(
        self, *, high_watermark: int, log_end_offset: int, now_ms: int, is_eligible: IsEligible, may_shrink: bool
    ) -> IsrProposal | None:
        """A change of the in-sync replicas that is due, now under way until it is answered; None when none is."""
        if self.proposal is not None:
            return None
        wanted = self._expanded(high_watermark, is_eligible)
        if wanted is None and may_shrink:
            wanted = self._shrunk(log_end_offset, now_ms)
        if wanted is None:
            return None
        self.maximal_isr = frozenset(self.isr) | frozenset(wanted)
        self.proposal = IsrProposal(
            tuple((replica, self._broker_epoch_of(replica)) for replica in wanted),
            self.leader_epoch,
            self.partition_epoch,
        )
        return self.proposal

    def _broker_epoch_of(self, replica: int) -> int:
        follower = self.followers.get(replica)
        return UNKNOWN_EPOCH if follower is None or follower.broker_epoch is None else follower.broker_epoch

    def _expanded(self, high_watermark: int, is_eligible: IsEligible) -> tuple[int, ...] | None:
        needed = max(high_watermark, self.epoch_start_offset)
        joining = [
            replica
            for replica, follower in self.followers.items()
            if replica not in self.isr
            and follower.log_end_offset >= needed
            and is_eligible(replica, follower.broker_epoch)
        ]
        return (*self.isr, *joining) if joining else None

    def _shrunk(self, log_end_offset: int, now_ms: int) -> tuple[int, ...] | None:
        kept = tuple(replica for replica in self.isr if self._keeps_up(replica, log_end_offset, now_ms))
        return kept if len(kept) < len(self.isr) else None

    def _keeps_up(self, replica: int, log_end_offset: int, now_ms: int) -> bool:
        if replica == self.node_id:
            return True
        follower = self.followers.get(replica)
        return follower is not None and follower.is_caught_up(log_end_offset, now_ms, self._lag_time_max_ms)

    def proposal_confirmed(self, isr: Iterable[int], partition_epoch: int) -> None:
        """The controller made the proposal, or what it became, true.

        Whoever is to leave stays until the metadata log says so: with it, and not before, comes what was decided
        earlier, a larger min.insync.replicas for one, by which the controller holds who left to be eligible.
        """
        isr = tuple(isr)
        if partition_epoch >= self.partition_epoch and set(self.isr) <= set(isr):
            self._take_isr(isr)
            self.partition_epoch = partition_epoch
            self.proposal = None

    def proposal_refused(self, error: ErrorCode) -> bool:
        """The controller did not take the proposal; True when it is to be sent again.

        Only some answers say for sure that it was not applied.  After the others the larger set stays in force until
        the metadata log tells.
        """
        if error in _NOT_APPLIED:
            self.proposal = None
            self.maximal_isr = frozenset(self.isr)
            return False
        return error not in _WAIT_FOR_METADATA


_NOT_APPLIED = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))
_WAIT_FOR_METADATA = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
