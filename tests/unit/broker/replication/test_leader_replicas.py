"""Tests of the leader's side of a partition: high watermark, ISR and ISR proposals."""

from __future__ import annotations

import pytest

from headrace_broker.metadata.image import PartitionImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.replication.leader import LeaderReplicas

LAG_MS = 30_000


def leader(
    isr: tuple[int, ...] = (1, 2, 3), *, end: int = 0, min_insync: int = 2, replicas: tuple[int, ...] = (1, 2, 3)
) -> LeaderReplicas:
    image = PartitionImage(replicas=replicas, isr=isr, leader=1, leader_epoch=5, partition_epoch=7)
    return LeaderReplicas(
        1, image, log_end_offset=end, min_insync_replicas=min_insync, lag_time_max_ms=LAG_MS, now_ms=0
    )


def all_eligible(replica: int, broker_epoch: int | None) -> bool:
    return True


def none_eligible(replica: int, broker_epoch: int | None) -> bool:
    return False


def fetch(replicas: LeaderReplicas, replica: int, offset: int, *, end: int, now_ms: int = 0, epoch: int = 100) -> None:
    replicas.update_fetch_state(
        replica, offset, log_start_offset=0, broker_epoch=epoch, leader_end_offset=end, now_ms=now_ms
    )


def image_with_isr(isr: tuple[int, ...], partition_epoch: int) -> PartitionImage:
    return PartitionImage(replicas=(1, 2, 3), isr=isr, leader=1, leader_epoch=5, partition_epoch=partition_epoch)


def test_high_watermark_is_smallest_log_end_offset_of_isr() -> None:
    """Rule R1 in docs/broker.md: an acknowledged record is on every replica that may be elected next."""
    replicas = leader()
    fetch(replicas, 2, 10, end=10)
    assert replicas.compute_high_watermark(10, 0, all_eligible) == -1  # replica 3 has not fetched yet
    fetch(replicas, 3, 4, end=10)
    assert replicas.compute_high_watermark(10, 0, all_eligible) == 4
    fetch(replicas, 3, 10, end=10)
    assert replicas.compute_high_watermark(10, 0, all_eligible) == 10


def test_high_watermark_does_not_advance_while_the_isr_is_smaller_than_min_isr() -> None:
    """Rule R7 in docs/broker.md: a record is not committed before min.insync.replicas replicas have it."""
    replicas = leader(isr=(1,))
    assert replicas.is_under_min_isr
    assert replicas.compute_high_watermark(10, 0, none_eligible) is None


def test_effective_min_isr_is_capped_at_replication_factor() -> None:
    replicas = leader(isr=(1,), replicas=(1,), min_insync=2)
    assert not replicas.is_under_min_isr
    assert replicas.compute_high_watermark(10, 0, none_eligible) == 10


def test_high_watermark_waits_for_caught_up_follower_outside_isr() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 2, 10, end=10)
    fetch(replicas, 3, 10, end=10)
    fetch(replicas, 2, 12, end=12)
    assert replicas.compute_high_watermark(12, 0, all_eligible) == 10
    assert replicas.compute_high_watermark(12, 0, none_eligible) == 12
    assert replicas.compute_high_watermark(12, LAG_MS + 1, all_eligible) == 12  # replica 3 lags behind


def test_high_watermark_waits_for_a_follower_that_left_the_isr_only_after_it_has_caught_up_again() -> None:
    """Until it has caught up, the follower has many records to fetch, and producers must not wait for it.

    A caught-up follower may rejoin the ISR, so a record is committed only when this follower has it too.
    """
    replicas = leader()
    for replica in (2, 3):
        fetch(replicas, replica, 10, end=10, now_ms=1000)
    without = PartitionImage(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=8)
    replicas.on_image_changed(without, 1500)
    fetch(replicas, 2, 1000, end=1000, now_ms=2000)
    fetch(replicas, 3, 10, end=1000, now_ms=2000, epoch=200)
    assert replicas.compute_high_watermark(1000, 2000, all_eligible) == 1000
    fetch(replicas, 3, 900, end=1001, now_ms=2001, epoch=200)
    fetch(replicas, 2, 1001, end=1001, now_ms=2001)
    assert replicas.compute_high_watermark(1001, 2001, all_eligible) == 1001
    fetch(replicas, 3, 1001, end=1002, now_ms=2002, epoch=200)  # the log end offset at the previous fetch
    fetch(replicas, 2, 1002, end=1002, now_ms=2002)
    assert replicas.compute_high_watermark(1002, 2002, all_eligible) == 1001


def test_high_watermark_does_not_depend_on_a_restarted_follower_until_it_has_caught_up_again() -> None:
    """Replica 3 is not in the ISR. Before its broker restarted, replica 3 was caught up."""
    replicas = leader(isr=(1, 2))
    for replica in (2, 3):
        fetch(replicas, replica, 10, end=10, now_ms=1000)
    replicas.on_appended(10, 1100)
    fetch(replicas, 2, 1000, end=1000, now_ms=2000)
    fetch(replicas, 3, 10, end=1000, now_ms=3000, epoch=101)
    assert replicas.compute_high_watermark(1000, 3000, all_eligible) == 1000


def test_append_does_not_mark_follower_outside_isr_as_caught_up() -> None:
    replicas = leader()
    for replica in (2, 3):
        fetch(replicas, replica, 10, end=10, now_ms=1000)
    replicas.on_image_changed(image_with_isr((1, 2), 8), 1500)
    replicas.on_appended(10, 2000)
    fetch(replicas, 2, 1000, end=1000, now_ms=2000)
    fetch(replicas, 3, 10, end=1000, now_ms=3000)
    assert replicas.compute_high_watermark(1000, 3000, all_eligible) == 1000


def test_follower_that_was_removed_from_the_isr_is_no_longer_considered_caught_up() -> None:
    replicas = leader()
    fetch(replicas, 2, 10, end=10, now_ms=1000)
    fetch(replicas, 3, 10, end=10, now_ms=1000)
    replicas.on_image_changed(image_with_isr((1, 2), 8), 1000)
    assert replicas.followers[3].is_caught_up(10, 1001, LAG_MS)  # replica 3 has every record
    assert not replicas.followers[3].is_caught_up(11, 1001, LAG_MS)
    assert replicas.has_caught_up_follower_outside_isr(10)
    assert not replicas.has_caught_up_follower_outside_isr(11)


def test_lag_time_of_a_caught_up_follower_starts_at_the_next_append() -> None:
    """Before this append, no records were appended or fetched for a long time."""
    replicas = leader()
    fetch(replicas, 2, 10, end=10, now_ms=0)
    fetch(replicas, 3, 9, end=10, now_ms=0)
    replicas.on_appended(10, 5 * LAG_MS)
    assert replicas.followers[2].is_caught_up(11, 6 * LAG_MS, LAG_MS)
    assert not replicas.followers[2].is_caught_up(11, 6 * LAG_MS + 1, LAG_MS)
    assert not replicas.followers[3].is_caught_up(11, 5 * LAG_MS, LAG_MS)


def test_isr_expansion_takes_effect_immediately_but_isr_shrink_only_after_the_metadata_image_contains_it() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 2, 5, end=5)
    fetch(replicas, 3, 5, end=5)
    proposal = replicas.propose_isr_change(
        high_watermark=5, log_end_offset=5, now_ms=0, is_eligible=all_eligible, may_shrink=False
    )
    assert proposal is not None
    assert [replica for replica, _ in proposal.isr] == [1, 2, 3]
    fetch(replicas, 2, 9, end=9)
    assert replicas.compute_high_watermark(9, LAG_MS * 2, none_eligible) == 5
    assert (
        replicas.propose_isr_change(
            high_watermark=5, log_end_offset=9, now_ms=0, is_eligible=all_eligible, may_shrink=True
        )
        is None
    )
    replicas.on_proposal_accepted((1, 2, 3), 8)
    late = LAG_MS * 3
    fetch(replicas, 2, 9, end=9, now_ms=late)
    shrink = replicas.propose_isr_change(
        high_watermark=5, log_end_offset=9, now_ms=late, is_eligible=all_eligible, may_shrink=True
    )
    assert shrink is not None
    assert [replica for replica, _ in shrink.isr] == [1, 2]
    assert replicas.compute_high_watermark(9, late, none_eligible) == 5
    replicas.on_proposal_accepted((1, 2), 9)
    assert replicas.compute_high_watermark(9, late, none_eligible) == 5
    replicas.on_image_changed(image_with_isr((1, 2), 9), late)
    assert replicas.compute_high_watermark(9, late, none_eligible) == 9


def test_follower_joins_isr_only_after_reaching_epoch_start_offset() -> None:
    """Test rule R5 in docs/broker.md.

    A follower that has only reached a new leader's high watermark may lack committed records.
    """
    replicas = leader(isr=(1, 2), end=10)
    fetch(replicas, 3, 7, end=10)
    assert (
        replicas.propose_isr_change(
            high_watermark=6, log_end_offset=10, now_ms=0, is_eligible=all_eligible, may_shrink=False
        )
        is None
    )
    fetch(replicas, 3, 10, end=10)
    assert replicas.propose_isr_change(
        high_watermark=6, log_end_offset=10, now_ms=0, is_eligible=all_eligible, may_shrink=False
    )


def test_isr_proposal_contains_broker_epoch_of_the_incarnation_that_fetched() -> None:
    """Test rule R6 in docs/broker.md.

    If the follower restarts, perhaps with an empty disk, the controller rejects the proposal.
    """
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0, epoch=41)
    proposal = replicas.propose_isr_change(
        high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=all_eligible, may_shrink=False
    )
    assert proposal is not None
    assert dict(proposal.isr)[3] == 41
    replicas.on_proposal_rejected(ErrorCode.INELIGIBLE_REPLICA)
    fetch(replicas, 3, 0, end=0, epoch=42)
    proposal = replicas.propose_isr_change(
        high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=all_eligible, may_shrink=False
    )
    assert proposal is not None
    assert dict(proposal.isr)[3] == 42


def test_caught_up_follower_that_is_not_eligible_is_not_proposed_for_the_isr() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0)
    assert (
        replicas.propose_isr_change(
            high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=none_eligible, may_shrink=False
        )
        is None
    )


def test_follower_that_keeps_up_with_growing_log_stays_in_isr() -> None:
    replicas = leader()
    for step in range(100):
        now_ms = step * 1000
        for replica in (2, 3):
            fetch(replicas, replica, step * 10, end=step * 10 + 10, now_ms=now_ms)
        assert (
            replicas.propose_isr_change(
                high_watermark=0,
                log_end_offset=step * 10 + 10,
                now_ms=now_ms,
                is_eligible=all_eligible,
                may_shrink=True,
            )
            is None
        )


@pytest.mark.parametrize(
    ("error", "again", "open_"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, False, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, False, False),
        (ErrorCode.INVALID_UPDATE_VERSION, False, True),
        (ErrorCode.FENCED_LEADER_EPOCH, False, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True, True),
    ],
)
def test_rejected_isr_proposal_stays_pending_unless_the_error_code_proves_that_it_was_not_applied(
    error: ErrorCode, again: bool, open_: bool
) -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0)
    assert replicas.propose_isr_change(
        high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=all_eligible, may_shrink=False
    )
    assert replicas.on_proposal_rejected(error) is again
    assert (replicas.pending_proposal is not None) is open_
    assert (3 in replicas.maximal_isr) is open_


def test_newer_partition_image_replaces_the_pending_isr_proposal() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0)
    replicas.propose_isr_change(
        high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=all_eligible, may_shrink=False
    )
    image = PartitionImage(replicas=(1, 2, 3), isr=(1,), leader=1, leader_epoch=5, partition_epoch=8)
    replicas.on_image_changed(image, 0)
    assert replicas.pending_proposal is None
    assert replicas.isr == (1,)
    replicas.on_proposal_accepted((1, 2, 3), 7)  # the controller's response arrives late
    assert replicas.isr == (1,)


def test_fetch_request_of_a_broker_that_is_not_a_replica_is_rejected() -> None:
    with pytest.raises(ApiError) as caught:
        fetch(leader(), 9, 0, end=0)
    assert caught.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_low_watermark_is_smallest_log_start_offset_of_live_replicas() -> None:
    replicas = leader()
    for replica, start in ((2, 3), (3, 1)):
        replicas.update_fetch_state(replica, 10, log_start_offset=start, broker_epoch=1, leader_end_offset=10, now_ms=0)
    assert replicas.low_watermark(5, lambda replica: True) == 1
    assert replicas.low_watermark(5, lambda replica: replica == 2) == 3
