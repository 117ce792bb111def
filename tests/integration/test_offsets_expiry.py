"""Tests of committed offset expiration (KIP-211): offsets expire on time even if their coordinator fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import create_topic, leader_of

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

RETENTION_S = 60  # the smallest valid offsets.retention.minutes is 1
FAILOVER_S = 25
SLACK_S = 15


def consumer_of(cluster: ClusterProcess, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    )


def committed(cluster: ClusterProcess, group: str) -> set[str]:
    """Return the topics for which the group has committed offsets."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {item.topic for item in found.topic_partitions if item.offset != OFFSET_INVALID}


def test_committed_offsets_expire_on_time_after_a_coordinator_failover(tmp_path: Path) -> None:
    settings = {
        "offsets_retention_minutes": str(RETENTION_S // 60),
        "offsets_retention_check_interval_ms": "1000",
        "offsets_topic_num_partitions": "1",
        "group_initial_rebalance_delay_ms": "0",
    }
    with running_cluster(tmp_path / "c", **settings) as cluster:
        for topic in ("kept", "dropped"):
            create_topic(cluster.bootstrap_servers, topic, 1)
        both = [TopicPartition("kept", 0, 5), TopicPartition("dropped", 0, 6)]
        living = consumer_of(cluster, "living")
        living.subscribe(["kept"])
        while not living.assignment():
            living.poll(0.1)
        former = consumer_of(cluster, "former")
        former.subscribe(["kept"])
        while not former.assignment():
            former.poll(0.1)
        started_s = time.monotonic()
        living.commit(offsets=both, asynchronous=False)
        former.commit(offsets=both, asynchronous=False)
        former.close()
        alone = consumer_of(cluster, "alone")
        alone.commit(offsets=both, asynchronous=False)
        alone.close()

        def at(moment_s: float) -> None:
            while time.monotonic() < started_s + moment_s:
                living.poll(0.5)

        at(FAILOVER_S)
        coordinator = leader_of(cluster.bootstrap_servers, "__consumer_offsets")
        cluster.kill(coordinator)
        at(RETENTION_S - 20)
        assert leader_of(cluster.bootstrap_servers, "__consumer_offsets") not in (coordinator, -1)
        for group in ("living", "former", "alone"):
            assert committed(cluster, group) == {"kept", "dropped"}
        # If the new coordinator restarted the retention time, the offsets would expire FAILOVER_S later.
        assert SLACK_S < FAILOVER_S
        at(RETENTION_S + SLACK_S)
        assert committed(cluster, "living") == {"kept"}
        assert committed(cluster, "former") == set()
        assert committed(cluster, "alone") == set()
        living.close()
