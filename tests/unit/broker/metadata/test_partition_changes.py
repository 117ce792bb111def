"""Tests of partition state changes: KIP-966 (eligible leader replicas), KIP-455 (reassignment) and elections."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_broker.metadata.image import PartitionImage
from headrace_broker.metadata.partition_changes import (
    NO_LEADER,
    NO_LEADER_CHANGE,
    RECOVERED,
    RECOVERING,
    Election,
    PartitionChange,
)
from headrace_broker.protocol.metadata_records import PartitionChangeRecord
from support.images import TOPIC_ID, partition_image


def change(partition: PartitionImage, live: str = "123", **changes: Any) -> PartitionChangeRecord | None:
    return PartitionChange(
        topic_id=TOPIC_ID,
        index=0,
        partition=partition,
        may_lead=lambda replica: str(replica) in live,
        min_insync_replicas=changes.pop("min_insync", 2),
        default_directory=lambda replica: bytes([replica]) * 16,
        **changes,
    ).record()


def expect_change(partition: PartitionImage, live: str = "123", **changes: Any) -> PartitionChangeRecord:
    record = change(partition, live, **changes)
    assert record is not None
    return record


def test_unchanged_partition_results_in_no_metadata_record() -> None:
    assert change(partition_image("123", "123", 1)) is None


def test_live_leader_stays_leader_although_another_replica_is_preferred() -> None:
    assert change(partition_image("123", "123", 3)) is None


def test_first_in_sync_replica_in_assignment_order_is_elected() -> None:
    record = expect_change(partition_image("213", "123", 2), live="13")
    assert (record.leader, record.isr) == (1, None)


def test_fenced_and_out_of_sync_replicas_are_not_elected() -> None:
    assert expect_change(partition_image("1234", "134", 1), live="24").leader == 4


def test_preferred_leader_is_elected_only_if_in_sync() -> None:
    assert expect_change(partition_image("123", "123", 2), election=Election.PREFERRED).leader == 1
    assert change(partition_image("123", "23", 2), election=Election.PREFERRED) is None
    assert change(partition_image("123", "123", 2), live="23", election=Election.PREFERRED) is None


def test_replica_that_leaves_the_isr_joins_the_elr_if_the_remaining_isr_is_smaller_than_min_isr() -> None:
    record = expect_change(partition_image("123", "12", 1), isr=[1])
    assert (record.isr, record.eligible_leader_replicas, record.leader) == ([1], [2], NO_LEADER_CHANGE)


def test_replica_that_leaves_the_isr_does_not_join_the_elr_if_the_remaining_isr_has_min_isr_replicas() -> None:
    record = expect_change(partition_image("123", "123", 1), isr=[1, 2])
    assert (record.isr, record.eligible_leader_replicas) == ([1, 2], None)


def test_elr_becomes_empty_when_isr_reaches_min_isr_again() -> None:
    record = expect_change(partition_image("123", "1", 1, elr="23"), isr=[1, 2])
    assert (record.isr, record.eligible_leader_replicas) == ([1, 2], [])


def test_min_isr_is_capped_at_replication_factor() -> None:
    record = expect_change(partition_image("12", "12", 1), isr=[1], min_insync=5)
    assert record.eligible_leader_replicas == [2]
    assert change(partition_image("1", "1", 1), min_insync=5) is None


def test_eligible_leader_replica_is_elected_when_isr_is_empty() -> None:
    record = expect_change(partition_image("123", "1", 1, elr="23"), isr=[], live="3")
    assert (record.leader, record.isr) == (3, [3])
    assert record.eligible_leader_replicas == [2, 1]
    assert record.leader_recovery_state == -1


def test_eligible_leader_replica_is_not_elected_while_isr_is_not_empty() -> None:
    """The in-sync replica may have records that the ELR's replicas lack, so the partition stays without a leader."""
    record = expect_change(partition_image("123", "1", 1, elr="23"), live="23")
    assert record.leader == NO_LEADER
    assert record.last_known_elr == [1]


def test_last_in_sync_replica_leaves_isr_and_becomes_last_known_leader() -> None:
    record = expect_change(partition_image("123", "1", 1), isr=[], live="23")
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (NO_LEADER, [], [1])
    assert record.last_known_elr == [1]


def test_replica_leaves_isr_and_elr_after_an_unclean_shutdown_of_its_broker() -> None:
    record = expect_change(partition_image("123", "1", 1, elr="2"), isr=[], unclean_shutdowns=(1,), live="")
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (NO_LEADER, [], None)
    assert record.last_known_elr == [1]


def test_last_known_leader_is_elected_when_isr_and_elr_are_empty() -> None:
    lost = partition_image("123", "", NO_LEADER, last_known_elr=(1,))
    record = expect_change(lost, live="12")
    assert (record.leader, record.isr, record.leader_recovery_state, record.last_known_elr) == (1, [1], RECOVERING, [])
    assert change(lost, live="23") is None


def test_unclean_election_elects_any_live_replica_and_marks_the_leader_as_recovering() -> None:
    record = expect_change(partition_image("123", "1", 1), live="23", election=Election.UNCLEAN)
    assert (record.leader, record.isr, record.leader_recovery_state) == (2, [2], RECOVERING)


def test_unclean_election_prefers_in_sync_replicas() -> None:
    record = expect_change(partition_image("123", "13", 1), live="23", election=Election.UNCLEAN)
    assert (record.leader, record.isr, record.leader_recovery_state) == (3, None, -1)


def test_unclean_election_clears_elr() -> None:
    record = expect_change(partition_image("123", "1", NO_LEADER, elr="2"), live="3", election=Election.UNCLEAN)
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (3, [3], [])


def test_leader_recovery_state_ends_when_the_leader_reports_that_it_has_recovered() -> None:
    recovering = partition_image("123", "1", 1, leader_recovery_state=RECOVERING)
    assert expect_change(recovering, isr=[1, 2], recovery_state=RECOVERED).leader_recovery_state == RECOVERED


# -- reassignments


def reassigning_partition(replicas: str, isr: str, leader: int, adding: str = "", removing: str = "") -> PartitionImage:
    return partition_image(
        replicas, isr, leader, adding_replicas=tuple(map(int, adding)), removing_replicas=tuple(map(int, removing))
    )


def test_reassignment_completes_when_all_adding_replicas_are_in_sync() -> None:
    record = expect_change(
        reassigning_partition("4123", "123", 1, adding="4", removing="1"), isr=[1, 2, 3, 4], live="1234"
    )
    assert (record.replicas, record.isr, record.adding_replicas, record.removing_replicas) == (
        [4, 2, 3],
        [2, 3, 4],
        [],
        [],
    )
    assert record.leader == 4
    assert record.directories == [bytes([broker]) * 16 for broker in (4, 2, 3)]


def test_reassignment_waits_until_all_adding_replicas_are_in_sync() -> None:
    record = expect_change(
        reassigning_partition("4512", "12", 1, adding="45", removing="12"), isr=[1, 2, 4], live="1245"
    )
    assert (record.replicas, record.isr) == (None, [1, 2, 4])


def test_reassignment_to_fewer_replicas_waits_until_all_remaining_replicas_are_in_sync() -> None:
    """If the reassignment completed while most remaining replicas lag behind, the ISR would shrink."""
    before = reassigning_partition("2345601", "015", 1, adding="", removing="01")
    assert expect_change(before, isr=[0, 1, 5, 2], live="0125").replicas is None
    record = expect_change(before, isr=[0, 1, 2, 3, 4, 5, 6], live="0123456")
    assert (record.replicas, record.isr) == ([2, 3, 4, 5, 6], [2, 3, 4, 5, 6])


def test_leader_epoch_increases_when_a_replica_is_removed() -> None:
    record = expect_change(reassigning_partition("123", "123", 1, removing="3"), live="123")
    assert (record.replicas, record.leader) == ([1, 2], 1)


def test_reordering_replicas_does_not_change_leader_epoch() -> None:
    record = expect_change(partition_image("123", "123", 1), replicas=[3, 2, 1])
    assert (record.replicas, record.leader) == ([3, 2, 1], NO_LEADER_CHANGE)


@pytest.mark.parametrize("election", list(Election))
def test_no_election_type_elects_a_dead_replica(election: Election) -> None:
    record = expect_change(partition_image("123", "123", 1, elr=""), live="", election=election)
    assert (record.leader, record.isr, record.last_known_elr) == (NO_LEADER, None, [1])


@pytest.mark.parametrize(
    ("replicas", "isr", "elr", "last_known", "is_recoverable"),
    [
        ("1", "1", "", "", False),
        ("123", "123", "", "", True),
        ("123", "23", "", "", True),
        ("123", "1", "", "", False),  # replicas 2 and 3 lag behind replica 1
        ("123", "1", "2", "", True),
        ("123", "", "2", "1", True),
        ("123", "", "1", "1", False),
        ("123", "", "1", "2", True),  # replica 1 leaves the ELR after an unclean shutdown
        ("123", "", "", "1", False),
        ("123", "", "", "2", True),
    ],
)
def test_replica_can_refetch_lost_records_only_from_replicas_that_may_become_leader(
    replicas: str, isr: str, elr: str, last_known: str, is_recoverable: bool
) -> None:
    image = partition_image(replicas, isr, -1, elr, last_known_elr=tuple(map(int, last_known)))
    assert image.is_recoverable_from_other_replica(1) is is_recoverable
