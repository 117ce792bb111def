"""Tests of replica selection for consumers (KIP-392)."""

from __future__ import annotations

import pytest

from headrace_broker.metadata.image import PartitionImage
from headrace_broker.replication.leader import LeaderReplicas
from headrace_broker.replication.read_replica import SELECTORS, ReplicaView, rack_aware

LEADER = ReplicaView(1, "a", 100)


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"),
    [
        ("b", [ReplicaView(2, "b", 90), ReplicaView(3, "c", 100)], 2),
        ("b", [ReplicaView(2, "b", 90), ReplicaView(3, "b", 100)], 3),  # the highest log end offset wins
        ("b", [ReplicaView(2, "b", 90, 5), ReplicaView(3, "b", 90, 20)], 2),  # of equal offsets, the smallest lag wins
        ("b", [ReplicaView(2, "b", 90, 5), ReplicaView(3, "b", 90, 5)], 3),  # of equal lags, the higher id wins
        ("a", [ReplicaView(2, "a", 100)], None),  # the leader is also in rack a
        ("d", [ReplicaView(2, "b", 100)], None),
        ("", [ReplicaView(2, "", 100)], None),
        ("b", [ReplicaView(2, None, 100)], None),
        ("b", [], None),
    ],
)
def test_rack_aware_selector_prefers_follower_in_consumers_rack(
    rack: str, followers: list[ReplicaView], chosen: int | None
) -> None:
    assert rack_aware(rack, LEADER, followers) == chosen


def test_replica_selector_is_found_by_full_and_simple_class_name() -> None:
    assert set(SELECTORS) == {
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "RackAwareReplicaSelector",
    }


def test_only_in_sync_followers_that_have_the_fetch_offset_can_be_read_replicas() -> None:
    image = PartitionImage(replicas=(1, 2, 3, 4), isr=(1, 2, 3), leader=1, leader_epoch=5, partition_epoch=7)
    replicas = LeaderReplicas(1, image, log_end_offset=50, min_insync_replicas=2, lag_time_max_ms=1000, now_ms=0)
    for replica, start, end in ((2, 0, 40), (3, 20, 50), (4, 0, 50)):
        replicas.update_fetch_state(
            replica, end, log_start_offset=start, broker_epoch=1, leader_end_offset=50, now_ms=0
        )
    assert [replica for replica, _ in replicas.in_sync_followers_with_offset(10)] == [2]
    assert [replica for replica, _ in replicas.in_sync_followers_with_offset(40)] == [2, 3]
    assert [replica for replica, _ in replicas.in_sync_followers_with_offset(50)] == [3]
    assert not list(replicas.in_sync_followers_with_offset(51))


def test_follower_serves_consumers_only_if_consumers_were_redirected_to_it() -> None:
    image = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=7)
    replicas = LeaderReplicas(1, image, log_end_offset=0, min_insync_replicas=1, lag_time_max_ms=1000, now_ms=0)
    assert not replicas.serves_consumers(2)
    assert not replicas.serves_consumers(-1)
    replicas.followers[2].serves_consumers = True
    assert replicas.serves_consumers(2)
