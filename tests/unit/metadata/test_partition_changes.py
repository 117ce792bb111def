"""What becomes of a partition: the rules of KIP-966 (eligible leaders), KIP-455 (moves) and elections."""

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


def change(partition: PartitionImage, live: str = "123", **wanted: Any) -> PartitionChangeRecord | None:
    return PartitionChange(
        topic_id=TOPIC_ID,
        index=0,
        partition=partition,
        may_lead=lambda replica: str(replica) in live,
        min_insync_replicas=wanted.pop("min_insync", 2),
        directory_of=lambda replica: bytes([replica]) * 16,
        **wanted,
    ).record()


def made(partition: PartitionImage, live: str = "123", **wanted: Any) -> PartitionChangeRecord:
    record = change(partition, live, **wanted)
    assert record is not None
    return record


def test_nothing_wanted_is_no_record() -> None:
    assert change(partition_image("123", "123", 1)) is None


def test_a_leader_that_can_stay_stays_though_it_is_not_the_first() -> None:
    assert change(partition_image("123", "123", 3)) is None


def test_the_first_in_sync_replica_in_the_order_of_assignment_is_elected() -> None:
    record = made(partition_image("213", "123", 2), live="13")
    assert (record.leader, record.isr) == (1, None)


def test_fenced_replicas_and_those_out_of_sync_are_passed_over() -> None:
    assert made(partition_image("1234", "134", 1), live="24").leader == 4


def test_the_preferred_leader_is_elected_only_when_it_is_in_sync() -> None:
    assert made(partition_image("123", "123", 2), election=Election.PREFERRED).leader == 1
    assert change(partition_image("123", "23", 2), election=Election.PREFERRED) is None
    assert change(partition_image("123", "123", 2), live="23", election=Election.PREFERRED) is None


def test_who_leaves_a_set_that_is_too_small_stays_eligible() -> None:
    record = made(partition_image("123", "12", 1), isr=[1])
    assert (record.isr, record.eligible_leader_replicas, record.leader) == ([1], [2], NO_LEADER_CHANGE)


def test_who_leaves_a_set_that_is_large_enough_is_not_eligible() -> None:
    record = made(partition_image("123", "123", 1), isr=[1, 2])
    assert (record.isr, record.eligible_leader_replicas) == ([1, 2], None)


def test_the_eligible_are_forgotten_when_the_set_is_large_enough_again() -> None:
    record = made(partition_image("123", "1", 1, elr="23"), isr=[1, 2])
    assert (record.isr, record.eligible_leader_replicas) == ([1, 2], [])


def test_min_isr_is_never_more_than_there_are_replicas() -> None:
    record = made(partition_image("12", "12", 1), isr=[1], min_insync=5)
    assert record.eligible_leader_replicas == [2]
    assert change(partition_image("1", "1", 1), min_insync=5) is None


def test_without_an_in_sync_replica_that_lives_an_eligible_one_leads() -> None:
    record = made(partition_image("123", "1", 1, elr="23"), isr=[], live="3")
    assert (record.leader, record.isr) == (3, [3])
    assert record.eligible_leader_replicas == [2, 1]
    assert record.leader_recovery_state == -1


def test_eligible_replicas_do_not_lead_while_an_in_sync_one_is_known() -> None:
    """It has more than they have: whoever is in sync comes first even when it is not alive."""
    record = made(partition_image("123", "1", 1, elr="23"), live="23")
    assert record.leader == NO_LEADER
    assert record.last_known_elr == [1]


def test_the_last_in_sync_replica_may_leave_and_is_remembered() -> None:
    record = made(partition_image("123", "1", 1), isr=[], live="23")
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (NO_LEADER, [], [1])
    assert record.last_known_elr == [1]


def test_who_lost_its_memory_is_eligible_for_nothing() -> None:
    record = made(partition_image("123", "1", 1, elr="2"), isr=[], unclean_shutdowns=(1,), live="")
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (NO_LEADER, [], None)
    assert record.last_known_elr == [1]


def test_the_last_known_leader_leads_when_nobody_is_in_sync_or_eligible() -> None:
    lost = partition_image("123", "", NO_LEADER, last_known_elr=(1,))
    record = made(lost, live="12")
    assert (record.leader, record.isr, record.leader_recovery_state, record.last_known_elr) == (1, [1], RECOVERING, [])
    assert change(lost, live="23") is None


def test_an_unclean_election_takes_anybody_alive_and_says_so() -> None:
    record = made(partition_image("123", "1", 1), live="23", election=Election.UNCLEAN)
    assert (record.leader, record.isr, record.leader_recovery_state) == (2, [2], RECOVERING)


def test_an_unclean_election_prefers_clean_leaders() -> None:
    record = made(partition_image("123", "13", 1), live="23", election=Election.UNCLEAN)
    assert (record.leader, record.isr, record.leader_recovery_state) == (3, None, -1)


def test_an_unclean_election_forgets_who_was_eligible() -> None:
    record = made(partition_image("123", "1", NO_LEADER, elr="2"), live="3", election=Election.UNCLEAN)
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (3, [3], [])


def test_recovery_ends_when_the_leader_says_so() -> None:
    recovering = partition_image("123", "1", 1, leader_recovery_state=RECOVERING)
    assert made(recovering, isr=[1, 2], recovery_state=RECOVERED).leader_recovery_state == RECOVERED


# -- moves


def moving(replicas: str, isr: str, leader: int, adding: str = "", removing: str = "") -> PartitionImage:
    return partition_image(
        replicas, isr, leader, adding_replicas=tuple(map(int, adding)), removing_replicas=tuple(map(int, removing))
    )


def test_a_move_is_complete_when_what_it_adds_is_in_sync() -> None:
    record = made(moving("4123", "123", 1, adding="4", removing="1"), isr=[1, 2, 3, 4], live="1234")
    assert (record.replicas, record.isr, record.adding_replicas, record.removing_replicas) == (
        [4, 2, 3],
        [2, 3, 4],
        [],
        [],
    )
    assert record.leader == 4
    assert record.directories == [bytes([broker]) * 16 for broker in (4, 2, 3)]


def test_a_move_waits_for_all_that_it_adds() -> None:
    record = made(moving("4512", "12", 1, adding="45", removing="12"), isr=[1, 2, 4], live="1245")
    assert (record.replicas, record.isr) == (None, [1, 2, 4])


def test_fewer_replicas_wait_for_all_that_stay() -> None:
    """Completing while most of those that stay lag behind would leave fewer in-sync replicas than there were."""
    before = moving("2345601", "015", 1, adding="", removing="01")
    assert made(before, isr=[0, 1, 5, 2], live="0125").replicas is None
    record = made(before, isr=[0, 1, 2, 3, 4, 5, 6], live="0123456")
    assert (record.replicas, record.isr) == ([2, 3, 4, 5, 6], [2, 3, 4, 5, 6])


def test_a_leader_that_stays_gets_a_new_epoch_when_a_replica_goes() -> None:
    record = made(moving("123", "123", 1, removing="3"), live="123")
    assert (record.replicas, record.leader) == ([1, 2], 1)


def test_reordering_replicas_changes_no_epoch() -> None:
    record = made(partition_image("123", "123", 1), replicas=[3, 2, 1])
    assert (record.replicas, record.leader) == ([3, 2, 1], NO_LEADER_CHANGE)


@pytest.mark.parametrize("election", list(Election))
def test_no_election_finds_a_leader_among_the_dead(election: Election) -> None:
    record = made(partition_image("123", "123", 1, elr=""), live="", election=election)
    assert (record.leader, record.isr, record.last_known_elr) == (NO_LEADER, None, [1])


@pytest.mark.parametrize(
    ("replicas", "isr", "elr", "last_known", "is_held"),
    [
        ("1", "1", "", "", False),
        ("123", "123", "", "", True),
        ("123", "23", "", "", True),
        ("123", "1", "", "", False),  # the others lag behind, and will be cut to where it ends
        ("123", "1", "2", "", True),
        ("123", "", "2", "1", True),
        ("123", "", "1", "1", False),
        ("123", "", "1", "2", True),  # back without its memory it is not eligible any more
        ("123", "", "", "1", False),
        ("123", "", "", "2", True),
    ],
)
def test_what_a_replica_lacks_is_held_by_those_that_may_lead(
    replicas: str, isr: str, elr: str, last_known: str, is_held: bool
) -> None:
    image = partition_image(replicas, isr, -1, elr, last_known_elr=tuple(map(int, last_known)))
    assert image.is_held_beside(1) is is_held
