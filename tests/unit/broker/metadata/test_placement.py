"""Tests of replica placement: the guarantees of Kafka's StripedReplicaPlacer."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.placement import next_start, place_partitions
from headrace_broker.protocol.errors import ApiError
from support.images import broker_image


def brokers(racks: dict[int, str | None], fenced: tuple[int, ...] = ()) -> MetadataImage:
    return MetadataImage(
        brokers={item: broker_image(item, rack=rack, fenced=item in fenced) for item, rack in racks.items()}
    )


THREE_RACKS = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}


def test_leaders_and_replicas_are_spread_evenly_over_brokers() -> None:
    placed = place_partitions(brokers(THREE_RACKS), 0, 60, 3, "t")
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(THREE_RACKS, 10)
    assert Counter(broker for replicas in placed for broker in replicas) == dict.fromkeys(THREE_RACKS, 30)


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    for replicas in place_partitions(brokers(THREE_RACKS), 7, 30, 3, "t"):
        assert sorted(THREE_RACKS[broker] for broker in replicas) == ["a", "b", "c"]


def test_replicas_of_a_partition_are_spread_evenly_over_racks_if_there_are_fewer_racks_than_replicas() -> None:
    for replicas in place_partitions(brokers(THREE_RACKS), 0, 30, 4, "t"):
        assert len(set(replicas)) == 4
        assert max(Counter(THREE_RACKS[broker] for broker in replicas).values()) == 2


def test_fenced_broker_is_assigned_a_replica_only_if_necessary_and_is_never_the_leader() -> None:
    image = brokers({1: None, 2: None, 3: None}, fenced=(2,))
    assert all(2 not in replicas for replicas in place_partitions(image, 0, 9, 2, "t"))
    assert all(replicas[0] != 2 and len(replicas) == 3 for replicas in place_partitions(image, 0, 9, 3, "t"))
    racks = brokers({1: "a", 2: "b"}, fenced=(2,))
    assert place_partitions(racks, 0, 4, 2, "t") == [(1, 2)] * 4


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (brokers({1: None, 2: None}), "only 2 broker\\(s\\) are registered"),
        (brokers({1: None, 2: None, 3: None}, fenced=(1, 2, 3)), "All brokers are currently fenced"),
    ],
)
def test_placement_without_enough_usable_brokers_fails_with_the_reason(image: MetadataImage, words: str) -> None:
    with pytest.raises(ApiError, match=words):
        place_partitions(image, 0, 1, 3, "t")


def test_single_partition_topics_are_on_different_brokers_and_added_partitions_continue_at_the_next_broker() -> None:
    image = brokers({1: None, 2: None, 3: None})
    assert [place_partitions(image, start, 1, 1, "t")[0][0] for start in range(4)] == [1, 2, 3, 1]
    assert place_partitions(image, next_start(image, 2), 2, 1, "t") == [(3,), (1,)]
    assert next_start(brokers({1: None}, fenced=(1,)), 1) == 0
    assert next_start(image, 9) == 0
