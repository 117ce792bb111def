"""Tests of reassignment with --throttle (KIP-73): replication stays at the throttle rate, producers are not slowed."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import await_in_sync, create_topic
from support.commands import run_tool

pytestmark = [pytest.mark.integration, pytest.mark.timed, pytest.mark.slow, pytest.mark.timeout(300)]

SIZE_BYTES = 12_000_000
BYTES_PER_S = 3_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(tmp_path_factory.mktemp("throttle") / "c") as cluster:
        yield cluster


def run(cluster: ClusterProcess, tool: str, *arguments: str) -> str:
    done = run_tool(tool, "--bootstrap-server", cluster.bootstrap_servers, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def create_topic_on(cluster: ClusterProcess, topic: str, broker: int) -> None:
    """Create a topic with one replica, on `broker`. Write SIZE_BYTES to the topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    config = {"min.insync.replicas": "1"}
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[broker]], config=config)])[topic].result(30)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for _ in range(SIZE_BYTES // 10_000):
        producer.produce(topic, bytes(10_000))
        producer.poll(0)
    assert not producer.flush(60)


def move(cluster: ClusterProcess, topic: str, broker: int, directory: Path, *options: str) -> tuple[str, Path]:
    plan = directory / f"{topic}-{broker}.json"
    moves = [{"topic": topic, "partition": 0, "replicas": [broker]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    text = run(cluster, "reassign_partitions", "--execute", "--reassignment-json-file", str(plan), *options)
    return text, plan


def await_moved(cluster: ClusterProcess, topic: str, broker: int, since: float) -> float:
    """Wait until `broker` has the partition's only replica. Return the seconds since `since`."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    while admin.list_topics(topic, 10).topics[topic].partitions[0].replicas != [broker]:
        assert time.monotonic() - since < 60
        time.sleep(0.02)
    return time.monotonic() - since


def latencies(producer: Producer, count: int) -> list[float]:
    """Send `count` records one at a time to a replicated topic. Return the seconds until each acknowledgement."""
    found = []
    for _ in range(count):
        start = time.monotonic()
        producer.produce("beside", bytes(100))
        assert not producer.flush(10)
        found.append(time.monotonic() - start)
        time.sleep(0.005)
    return found


def described(cluster: ClusterProcess, kind: str, name: str) -> str:
    return run(cluster, "configs", "--describe", "--entity-type", kind, "--entity-name", name)


def test_throttled_reassignment_stays_at_the_throttle_rate_and_does_not_slow_producers(
    cluster: ClusterProcess, tmp_path: Path
) -> None:
    create_topic_on(cluster, "t", 1)
    create_topic(cluster.bootstrap_servers, "beside", 1)
    await_in_sync(cluster.bootstrap_servers, "beside", 3)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    latencies(producer, 20)
    before = latencies(producer, 200)

    text, plan = move(cluster, "t", 2, tmp_path, "--throttle", str(BYTES_PER_S))
    start = time.monotonic()
    assert "Warning: You must run --verify periodically, until the reassignment completes" in text
    assert f"The inter-broker throttle limit was set to {BYTES_PER_S} B/s\n" in text
    in_progress = run(cluster, "reassign_partitions", "--verify", "--reassignment-json-file", str(plan))
    assert "Reassignment of partition t-0 is still in progress." in in_progress
    assert "Clearing" not in in_progress
    assert "leader.replication.throttled.replicas=0:1" in described(cluster, "topics", "t")
    assert "follower.replication.throttled.replicas=0:2" in described(cluster, "topics", "t")
    assert f"follower.replication.throttled.rate={BYTES_PER_S}" in described(cluster, "brokers", "2")
    during = latencies(producer, 200)
    took_s = await_moved(cluster, "t", 2, start)
    assert took_s > 0.7 * SIZE_BYTES / BYTES_PER_S, took_s
    assert statistics.median(during) < 3 * statistics.median(before) + 0.05, (before, during)

    done = run(cluster, "reassign_partitions", "--verify", "--reassignment-json-file", str(plan))
    assert done.endswith(
        "Reassignment of partition t-0 is completed.\n\n"
        "Clearing broker-level throttles on brokers 1,2,3\nClearing topic-level throttles on topic t\n"
    )
    for kind, name in (("topics", "t"), ("brokers", "1"), ("brokers", "2")):
        assert "throttled" not in described(cluster, kind, name)

    start = time.monotonic()
    move(cluster, "t", 3, tmp_path)
    unthrottled_s = await_moved(cluster, "t", 3, start)
    assert unthrottled_s < took_s, (unthrottled_s, took_s)
    print(f"throttled {took_s:.2f} s, without {unthrottled_s:.2f} s, beside it {sorted(during)[198]:.4f} s at p99")


@pytest.mark.parametrize(("side", "source", "target"), [("leader", 3, 1), ("follower", 1, 3)])
def test_leader_throttle_or_follower_throttle_alone_limits_the_replication_rate(
    cluster: ClusterProcess, tmp_path: Path, side: str, source: int, target: int
) -> None:
    """Node 3 is the throttled node: as the leader, it sends to node 1, and as the follower, it receives from node 1.

    The quota measures the rate of the last 11 s, and node 3 has had no throttled traffic before this test.
    """
    create_topic_on(cluster, side, source)
    rate = f"{side}.replication.throttled.rate={BYTES_PER_S}"
    run(cluster, "configs", "--alter", "--entity-type", "brokers", "--entity-name", "3", "--add-config", rate)
    replicas = f"{side}.replication.throttled.replicas=*"
    run(cluster, "configs", "--alter", "--entity-type", "topics", "--entity-name", side, "--add-config", replicas)
    start = time.monotonic()
    move(cluster, side, target, tmp_path)
    took_s = await_moved(cluster, side, target, start)
    assert took_s > 0.7 * SIZE_BYTES / BYTES_PER_S, took_s
