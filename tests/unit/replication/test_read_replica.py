"""Which replica a consumer is sent to."""

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
        ("b", [ReplicaView(2, "b", 90), ReplicaView(3, "b", 100)], 3),  # the one that has more
        ("b", [ReplicaView(2, "b", 90, 5), ReplicaView(3, "b", 90, 20)], 2),  # else the one that lags less
        ("b", [ReplicaView(2, "b", 90, 5), ReplicaView(3, "b", 90, 5)], 3),  # else always the same
        ("a", [ReplicaView(2, "a", 100)], None),  # the leader is as near
        ("d", [ReplicaView(2, "b", 100)], None),
        ("", [ReplicaView(2, "", 100)], None),
        ("b", [ReplicaView(2, None, 100)], None),
        ("b", [], None),
    ],
)
def test_a_consumer_is_sent_to_its_own_rack(rack: str, followers: list[ReplicaView], chosen: int | None) -> None:
    assert rack_aware(rack, LEADER, followers) == chosen


def test_kafkas_name_and_the_short_one_mean_the_same() -> None:
    assert set(SELECTORS) == {
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "RackAwareReplicaSelector",
    }


def test_only_followers_in_sync_that_have_the_offset_are_offered() -> None:
    image = PartitionImage(replicas=(1, 2, 3, 4), isr=(1, 2, 3), leader=1, leader_epoch=5, partition_epoch=7)
    replicas = LeaderReplicas(1, image, log_end_offset=50, min_insync_replicas=2, lag_time_max_ms=1000, now_ms=0)
    for replica, start, end in ((2, 0, 40), (3, 20, 50), (4, 0, 50)):
        replicas.fetched(replica, end, log_start_offset=start, broker_epoch=1, leader_end_offset=50, now_ms=0)
    assert [replica for replica, _ in replicas.readable_at(10)] == [2]
    assert [replica for replica, _ in replicas.readable_at(40)] == [2, 3]
    assert [replica for replica, _ in replicas.readable_at(50)] == [3]
    assert not list(replicas.readable_at(51))


def test_a_follower_that_nobody_was_sent_to_serves_no_consumers() -> None:
    image = PartitionImage(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=7)
    replicas = LeaderReplicas(1, image, log_end_offset=0, min_insync_replicas=1, lag_time_max_ms=1000, now_ms=0)
    assert not replicas.serves_consumers(2)
    assert not replicas.serves_consumers(-1)
    replicas.followers[2].serves_consumers = True
    assert replicas.serves_consumers(2)
