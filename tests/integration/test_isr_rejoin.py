"""Tests that the replicas of a restarted node rejoin the ISR once they have caught up, even without new records."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import ClusterProcess, running_cluster

PARTITIONS = 20
TIMEOUT_S = 60.0
LAG_TIME_MAX_MS = 240_000
"""The periodic ISR check runs after half of this time. The test must not pass because of that check."""


def _in_sync(cluster: ClusterProcess) -> list[int]:
    """Return the number of in-sync replicas of each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    return [len(item.isrs) for item in admin.list_topics("t", timeout=10).topics["t"].partitions.values()]


def _await_all_in_sync(cluster: ClusterProcess) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while (found := _in_sync(cluster)) != [3] * PARTITIONS:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_replicas_of_idle_partitions_rejoin_the_isr_soon_after_a_restart(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "c", replica_lag_time_max_ms=str(LAG_TIME_MAX_MS)) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.create_topics([NewTopic("t", PARTITIONS, 3)])["t"].result(30)
        for node in (1, 3):
            cluster.restart_node(node)
            _await_all_in_sync(cluster)
        cluster.stop()
        cluster.start()
        _await_all_in_sync(cluster)
