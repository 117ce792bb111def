"""The leader's side of a partition: what is committed, who is in sync, and what is proposed."""

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


def everybody(replica: int, broker_epoch: int | None) -> bool:
    return True


def nobody(replica: int, broker_epoch: int | None) -> bool:
    return False


def fetch(replicas: LeaderReplicas, replica: int, offset: int, *, end: int, now_ms: int = 0, epoch: int = 100) -> None:
    replicas.fetched(replica, offset, log_start_offset=0, broker_epoch=epoch, leader_end_offset=end, now_ms=now_ms)


def in_sync(isr: tuple[int, ...], partition_epoch: int) -> PartitionImage:
    return PartitionImage(replicas=(1, 2, 3), isr=isr, leader=1, leader_epoch=5, partition_epoch=partition_epoch)


def test_a_record_counts_when_every_replica_in_sync_has_it() -> None:
    """R1: one that was acknowledged is on every replica that may lead next."""
    replicas = leader()
    fetch(replicas, 2, 10, end=10)
    assert replicas.committed_offset(10, 0, everybody) == -1  # replica 3 has not fetched yet
    fetch(replicas, 3, 4, end=10)
    assert replicas.committed_offset(10, 0, everybody) == 4
    fetch(replicas, 3, 10, end=10)
    assert replicas.committed_offset(10, 0, everybody) == 10


def test_nothing_is_committed_below_min_insync_replicas() -> None:
    """R7."""
    replicas = leader(isr=(1,))
    assert replicas.is_under_min_isr
    assert replicas.committed_offset(10, 0, nobody) is None


def test_min_insync_replicas_is_no_more_than_there_are_replicas() -> None:
    replicas = leader(isr=(1,), replicas=(1,), min_insync=2)
    assert not replicas.is_under_min_isr
    assert replicas.committed_offset(10, 0, nobody) == 10


def test_a_follower_that_may_join_is_waited_for() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 2, 10, end=10)
    fetch(replicas, 3, 10, end=10)
    fetch(replicas, 2, 12, end=12)
    assert replicas.committed_offset(12, 0, everybody) == 10
    assert replicas.committed_offset(12, 0, nobody) == 12
    assert replicas.committed_offset(12, LAG_MS + 1, everybody) == 12  # it does not keep up any more


def test_a_follower_that_is_back_is_waited_for_only_when_it_has_caught_up_again() -> None:
    """It left a moment ago, and has much to fetch: producers do not wait for that."""
    replicas = leader()
    for replica in (2, 3):
        fetch(replicas, replica, 10, end=10, now_ms=1000)
    without = PartitionImage(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=8)
    replicas.image_changed(without, 1500)
    fetch(replicas, 2, 1000, end=1000, now_ms=2000)
    fetch(replicas, 3, 10, end=1000, now_ms=2000, epoch=200)
    assert replicas.committed_offset(1000, 2000, everybody) == 1000
    fetch(replicas, 3, 900, end=1001, now_ms=2001, epoch=200)
    fetch(replicas, 2, 1001, end=1001, now_ms=2001)
    assert replicas.committed_offset(1001, 2001, everybody) == 1001
    fetch(replicas, 3, 1001, end=1002, now_ms=2002, epoch=200)  # what there was when it last asked
    fetch(replicas, 2, 1002, end=1002, now_ms=2002)
    assert replicas.committed_offset(1002, 2002, everybody) == 1001


def test_the_next_process_of_a_follower_that_stopped_in_order_is_waited_for_only_when_it_has_caught_up() -> None:
    """Out of sync already, the one that stopped had everything until its end."""
    replicas = leader(isr=(1, 2))
    for replica in (2, 3):
        fetch(replicas, replica, 10, end=10, now_ms=1000)
    replicas.appended(10, 1100)
    fetch(replicas, 2, 1000, end=1000, now_ms=2000)
    fetch(replicas, 3, 10, end=1000, now_ms=3000, epoch=101)
    assert replicas.committed_offset(1000, 3000, everybody) == 1000


def test_what_is_appended_while_a_follower_is_away_does_not_tell_that_it_keeps_up() -> None:
    replicas = leader()
    for replica in (2, 3):
        fetch(replicas, replica, 10, end=10, now_ms=1000)
    replicas.image_changed(in_sync((1, 2), 8), 1500)
    replicas.appended(10, 2000)
    fetch(replicas, 2, 1000, end=1000, now_ms=2000)
    fetch(replicas, 3, 10, end=1000, now_ms=3000)
    assert replicas.committed_offset(1000, 3000, everybody) == 1000


def test_a_smaller_set_forgets_how_well_the_others_kept_up() -> None:
    replicas = leader()
    fetch(replicas, 2, 10, end=10, now_ms=1000)
    fetch(replicas, 3, 10, end=10, now_ms=1000)
    replicas.image_changed(in_sync((1, 2), 8), 1000)
    assert replicas.followers[3].is_caught_up(10, 1001, LAG_MS)  # it has everything
    assert not replicas.followers[3].is_caught_up(11, 1001, LAG_MS)
    assert replicas.lacks_nothing_but_membership(10)
    assert not replicas.lacks_nothing_but_membership(11)


def test_who_had_everything_lags_from_the_next_record_on() -> None:
    """However long nothing was written, and so nothing asked for."""
    replicas = leader()
    fetch(replicas, 2, 10, end=10, now_ms=0)
    fetch(replicas, 3, 9, end=10, now_ms=0)
    replicas.appended(10, 5 * LAG_MS)
    assert replicas.followers[2].is_caught_up(11, 6 * LAG_MS, LAG_MS)
    assert not replicas.followers[2].is_caught_up(11, 6 * LAG_MS + 1, LAG_MS)
    assert not replicas.followers[3].is_caught_up(11, 5 * LAG_MS, LAG_MS)


def test_a_larger_set_counts_from_the_proposal_on_and_a_smaller_one_from_the_metadata_log() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 2, 5, end=5)
    fetch(replicas, 3, 5, end=5)
    proposal = replicas.propose(high_watermark=5, log_end_offset=5, now_ms=0, is_eligible=everybody, may_shrink=False)
    assert proposal is not None
    assert [replica for replica, _ in proposal.isr] == [1, 2, 3]
    fetch(replicas, 2, 9, end=9)
    assert replicas.committed_offset(9, LAG_MS * 2, nobody) == 5
    assert (
        replicas.propose(high_watermark=5, log_end_offset=9, now_ms=0, is_eligible=everybody, may_shrink=True) is None
    )
    replicas.proposal_confirmed((1, 2, 3), 8)
    late = LAG_MS * 3
    fetch(replicas, 2, 9, end=9, now_ms=late)
    shrink = replicas.propose(high_watermark=5, log_end_offset=9, now_ms=late, is_eligible=everybody, may_shrink=True)
    assert shrink is not None
    assert [replica for replica, _ in shrink.isr] == [1, 2]
    assert replicas.committed_offset(9, late, nobody) == 5
    replicas.proposal_confirmed((1, 2), 9)
    assert replicas.committed_offset(9, late, nobody) == 5
    replicas.image_changed(in_sync((1, 2), 9), late)
    assert replicas.committed_offset(9, late, nobody) == 9


def test_a_follower_joins_only_past_the_start_of_the_epoch() -> None:
    """With a high watermark that lags, one at it may lack what an earlier leader committed (R5)."""
    replicas = leader(isr=(1, 2), end=10)
    fetch(replicas, 3, 7, end=10)
    assert (
        replicas.propose(high_watermark=6, log_end_offset=10, now_ms=0, is_eligible=everybody, may_shrink=False) is None
    )
    fetch(replicas, 3, 10, end=10)
    assert replicas.propose(high_watermark=6, log_end_offset=10, now_ms=0, is_eligible=everybody, may_shrink=False)


def test_a_proposal_names_the_process_that_has_fetched() -> None:
    """R6: by its broker epoch, so that the controller refuses the one that came after it with an empty disk."""
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0, epoch=41)
    proposal = replicas.propose(high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=everybody, may_shrink=False)
    assert proposal is not None
    assert dict(proposal.isr)[3] == 41
    replicas.proposal_refused(ErrorCode.INELIGIBLE_REPLICA)
    fetch(replicas, 3, 0, end=0, epoch=42)
    proposal = replicas.propose(high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=everybody, may_shrink=False)
    assert proposal is not None
    assert dict(proposal.isr)[3] == 42


def test_who_is_not_eligible_does_not_join() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0)
    assert replicas.propose(high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=nobody, may_shrink=False) is None


def test_a_follower_that_keeps_up_with_a_moving_end_stays_in_sync() -> None:
    replicas = leader()
    for step in range(100):
        now_ms = step * 1000
        for replica in (2, 3):
            fetch(replicas, replica, step * 10, end=step * 10 + 10, now_ms=now_ms)
        assert (
            replicas.propose(
                high_watermark=0, log_end_offset=step * 10 + 10, now_ms=now_ms, is_eligible=everybody, may_shrink=True
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
def test_only_a_sure_refusal_takes_a_proposal_back(error: ErrorCode, again: bool, open_: bool) -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0)
    assert replicas.propose(high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=everybody, may_shrink=False)
    assert replicas.proposal_refused(error) is again
    assert (replicas.proposal is not None) is open_
    assert (3 in replicas.maximal_isr) is open_


def test_the_image_overtakes_a_proposal() -> None:
    replicas = leader(isr=(1, 2))
    fetch(replicas, 3, 0, end=0)
    replicas.propose(high_watermark=0, log_end_offset=0, now_ms=0, is_eligible=everybody, may_shrink=False)
    image = PartitionImage(replicas=(1, 2, 3), isr=(1,), leader=1, leader_epoch=5, partition_epoch=8)
    replicas.image_changed(image, 0)
    assert replicas.proposal is None
    assert replicas.isr == (1,)
    replicas.proposal_confirmed((1, 2, 3), 7)  # an answer that comes too late
    assert replicas.isr == (1,)


def test_a_stranger_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        fetch(leader(), 9, 0, end=0)
    assert caught.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_records_can_be_deleted_up_to_what_every_live_follower_has_dropped() -> None:
    replicas = leader()
    for replica, start in ((2, 3), (3, 1)):
        replicas.fetched(replica, 10, log_start_offset=start, broker_epoch=1, leader_end_offset=10, now_ms=0)
    assert replicas.low_watermark(5, lambda replica: True) == 1
    assert replicas.low_watermark(5, lambda replica: replica == 2) == 3
