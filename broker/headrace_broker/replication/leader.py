"""A leader's state of one partition: the fetch state of each follower, the ISR and the high watermark.

A record is committed when three kinds of replicas have it: the replicas in the ISR, the replicas proposed to join the
ISR, and the caught-up replicas that may join the ISR. The high watermark is the smallest log end offset of these
replicas. It does not advance while the ISR is smaller than min.insync.replicas (KIP-966).
`LeaderReplicas.compute_high_watermark` computes the high watermark, and the server advances it.

The leader proposes one ISR change at a time to the controller (KIP-497). A larger ISR takes effect when the leader
proposes it. A smaller ISR takes effect only when the metadata log contains it. So the leader never acknowledges a
record that the next leader may lack.
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
    """A follower's state as known to the leader.

    The state is unknown before the follower's first fetch, and each fetch updates it.
    """

    log_end_offset: int = -1
    log_start_offset: int = -1
    last_fetch_ms: int = NEVER_MS
    last_caught_up_ms: int = NEVER_MS
    leader_end_at_fetch: int = -1
    broker_epoch: int | None = None
    serves_consumers: bool = False
    """Whether consumers read from this follower (KIP-392).

    Such a follower receives a new high watermark without delay.
    """

    def mark_out_of_sync(self) -> None:
        """Reset the caught-up times of a follower that left the ISR.

        The follower must catch up before it may rejoin the ISR.
        """
        self.last_caught_up_ms = self.last_fetch_ms = NEVER_MS
        self.leader_end_at_fetch = -1

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_time_max_ms: int) -> bool:
        """Return whether the follower is at `leader_end_offset`, or was caught up within the last `lag_time_max_ms`."""
        return self.log_end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= lag_time_max_ms


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """An ISR that the leader proposes to the controller, as (replica, broker epoch) pairs."""

    isr: tuple[tuple[int, int], ...]
    leader_epoch: int
    partition_epoch: int


IsEligible = Callable[[int, int | None], bool]
"""A function of a broker id and the broker epoch in its fetches.

It returns whether the broker is unfenced, is not shutting down, and is still registered with this epoch.
"""


class LeaderReplicas:
    """The leader's state of one partition's replicas. A new object is created for each leader epoch."""

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
        self.pending_proposal: IsrProposal | None = None
        self._lag_time_max_ms = lag_time_max_ms
        self._apply_image(image, now_ms)

    def _apply_image(self, image: PartitionImage, now_ms: int) -> None:
        self.replicas = image.replicas
        self._set_isr(image.isr)
        self.partition_epoch = image.partition_epoch
        known = self.followers
        self.followers = {
            replica: known.get(replica) or FollowerState(last_caught_up_ms=now_ms if replica in image.isr else NEVER_MS)
            for replica in image.replicas
            if replica != self.node_id
        }

    def _set_isr(self, isr: tuple[int, ...]) -> None:
        for replica, follower in self.followers.items():
            if replica in self.isr and replica not in isr:
                follower.mark_out_of_sync()
        self.isr = isr
        self.maximal_isr = frozenset(isr)

    def on_image_changed(self, image: PartitionImage, now_ms: int) -> None:
        """Apply a change that the controller made to the partition within the same leader epoch."""
        if image.partition_epoch > self.partition_epoch:
            self._apply_image(image, now_ms)
            self.pending_proposal = None

    # -- fetches -----------------------------------------------------------------------------------------------------

    def update_fetch_state(
        self,
        replica: int,
        offset: int,
        *,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: int,
    ) -> None:
        """Update the state of the follower on broker `replica`. The follower fetches at `offset`.

        Raises ApiError if the partition has no replica on broker `replica`.
        """
        follower = self.followers.get(replica)
        if follower is None:
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {replica} is not a replica of the partition in partition epoch {self.partition_epoch}",
            )
        if broker_epoch != follower.broker_epoch and replica not in self.maximal_isr:
            follower.mark_out_of_sync()  # the caught-up times belong to an earlier incarnation of the broker
        if offset >= leader_end_offset:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, now_ms)
        elif offset >= follower.leader_end_at_fetch >= 0:
            follower.last_caught_up_ms = max(follower.last_caught_up_ms, follower.last_fetch_ms)
        follower.log_end_offset = offset
        follower.log_start_offset = log_start_offset
        follower.leader_end_at_fetch = max(follower.leader_end_at_fetch, leader_end_offset)
        follower.last_fetch_ms = now_ms
        follower.broker_epoch = broker_epoch

    def on_appended(self, base_offset: int, now_ms: int) -> None:
        """After an append at `base_offset`, update the caught-up time of followers that have all earlier records.

        A follower's fetch session omits unchanged partitions, so the last fetch of a caught-up follower may be long
        ago. The follower's lag starts with this append. Skip followers outside the ISR, because they may be dead.
        """
        for replica, follower in self.followers.items():
            if follower.log_end_offset == base_offset and replica in self.maximal_isr:
                follower.last_caught_up_ms = now_ms

    # -- high watermark ----------------------------------------------------------------------------------------------

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, capped at the replication factor."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.effective_min_isr

    def compute_high_watermark(self, log_end_offset: int, now_ms: int, is_eligible: IsEligible) -> int | None:
        """Return the offset to which the high watermark can advance.

        Return None if the ISR is smaller than min.insync.replicas. `is_eligible` returns whether a follower's broker
        may join the ISR.
        """
        if self.is_under_min_isr:
            return None
        high_watermark = log_end_offset
        for replica, follower in self.followers.items():
            if follower.log_end_offset < high_watermark and (
                replica in self.maximal_isr
                or (
                    follower.is_caught_up(log_end_offset, now_ms, self._lag_time_max_ms)
                    and is_eligible(replica, follower.broker_epoch)
                )
            ):
                high_watermark = follower.log_end_offset
        return high_watermark

    def low_watermark(self, log_start_offset: int, is_alive: Callable[[int], bool]) -> int:
        """Return the smallest log start offset of the live replicas. DeleteRecords waits for this low watermark.

        `log_start_offset` is the log start offset of the leader.
        """
        starts = [item.log_start_offset for replica, item in self.followers.items() if is_alive(replica)]
        return min([log_start_offset, *starts])

    # -- fetch from follower (KIP-392) -------------------------------------------------------------------------------

    def in_sync_followers_with_offset(self, offset: int) -> Iterator[tuple[int, FollowerState]]:
        """Yield the in-sync followers whose log contains `offset` or ends at `offset`."""
        for replica in self.isr:
            follower = self.followers.get(replica)
            if follower is not None and follower.log_start_offset <= offset <= follower.log_end_offset:
                yield replica, follower

    def serves_consumers(self, replica: int) -> bool:
        """Return whether the leader has redirected consumers to this follower."""
        follower = self.followers.get(replica)
        return follower is not None and follower.serves_consumers

    # -- ISR changes -------------------------------------------------------------------------------------------------

    def has_caught_up_follower_outside_isr(self, log_end_offset: int) -> bool:
        """Whether a follower outside the ISR has every record, so that it can join the ISR without another fetch."""
        return any(
            follower.log_end_offset >= log_end_offset
            for replica, follower in self.followers.items()
            if replica not in self.isr
        )

    def propose_isr_change(
        self, *, high_watermark: int, log_end_offset: int, now_ms: int, is_eligible: IsEligible, may_shrink: bool
    ) -> IsrProposal | None:
        """Return an ISR change to send to the controller, or None.

        `is_eligible` returns whether a follower's broker may join the ISR. With `may_shrink`, the change may remove
        lagging followers. The change is pending until the controller responds.
        """
        if self.pending_proposal is not None:
            return None
        new_isr = self._expanded_isr(high_watermark, is_eligible)
        if new_isr is None and may_shrink:
            new_isr = self._shrunk_isr(log_end_offset, now_ms)
        if new_isr is None:
            return None
        self.maximal_isr = frozenset(self.isr) | frozenset(new_isr)
        self.pending_proposal = IsrProposal(
            tuple((replica, self._broker_epoch_of(replica)) for replica in new_isr),
            self.leader_epoch,
            self.partition_epoch,
        )
        return self.pending_proposal

    def _broker_epoch_of(self, replica: int) -> int:
        follower = self.followers.get(replica)
        return UNKNOWN_EPOCH if follower is None or follower.broker_epoch is None else follower.broker_epoch

    def _expanded_isr(self, high_watermark: int, is_eligible: IsEligible) -> tuple[int, ...] | None:
        required_offset = max(high_watermark, self.epoch_start_offset)
        joining = [
            replica
            for replica, follower in self.followers.items()
            if replica not in self.isr
            and follower.log_end_offset >= required_offset
            and is_eligible(replica, follower.broker_epoch)
        ]
        return (*self.isr, *joining) if joining else None

    def _shrunk_isr(self, log_end_offset: int, now_ms: int) -> tuple[int, ...] | None:
        remaining = tuple(replica for replica in self.isr if self._is_in_sync(replica, log_end_offset, now_ms))
        return remaining if len(remaining) < len(self.isr) else None

    def _is_in_sync(self, replica: int, log_end_offset: int, now_ms: int) -> bool:
        if replica == self.node_id:
            return True
        follower = self.followers.get(replica)
        return follower is not None and follower.is_caught_up(log_end_offset, now_ms, self._lag_time_max_ms)

    def on_proposal_accepted(self, isr: Iterable[int], partition_epoch: int) -> None:
        """Apply `isr`, the ISR that the controller has accepted, unless `isr` lacks a replica of the current ISR.

        A smaller ISR takes effect only when the leader has read it, and all earlier changes, from the metadata log. One
        of these changes may increase min.insync.replicas. With the smaller ISR and the old min.insync.replicas, the
        leader could commit records that a removed replica lacks, although the controller keeps this replica as an
        eligible leader replica (KIP-966).
        """
        isr = tuple(isr)
        if partition_epoch >= self.partition_epoch and set(self.isr) <= set(isr):
            self._set_isr(isr)
            self.partition_epoch = partition_epoch
            self.pending_proposal = None

    def on_proposal_rejected(self, error: ErrorCode) -> bool:
        """Handle an error response of the controller; return whether to send the proposal again.

        Only some errors guarantee that the controller has not applied the proposal. After any other error, the proposal
        may have been applied. Until the metadata log shows the outcome, a record is committed only when all replicas of
        the current ISR and of the proposed ISR have it.
        """
        if error in _NOT_APPLIED:
            self.pending_proposal = None
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
