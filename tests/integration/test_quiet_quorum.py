"""Tests that three nodes on one disk hold no election while a producer sends as fast as it can.

HEADRACE_QUIET_S sets the duration of the load. `make test-long` runs 20 s, and `make prove` ten minutes.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import create_topic
from support.metrics import Samples, scrape, value

pytestmark = [pytest.mark.integration, pytest.mark.timed, pytest.mark.timeout(1800)]

TOPIC = "full"
FLUSHES = "kafka_log_logflushstats_logflushrateandtimems"
DURATIONS_S = [pytest.param(20, marks=pytest.mark.slow), pytest.param(600, marks=pytest.mark.prove)]


def produce_for(cluster: ClusterProcess, duration_s: float) -> tuple[int, list[str]]:
    """Produce records for `duration_s` seconds, as fast as librdkafka can.

    Return (number of acknowledged records, errors).
    """
    acknowledged, errors = 0, []

    def delivered(error: object, message: object) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            errors.append(str(error))

    settings = {"acks": "all", "linger.ms": 5, "batch.size": 131_072, "compression.type": "none"}
    queue = {"queue.buffering.max.messages": 200_000, "queue.buffering.max.kbytes": 200_000}
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings, **queue})
    record = os.urandom(1000)
    ends_s = time.monotonic() + duration_s
    while time.monotonic() < ends_s:
        try:
            for _ in range(100):
                producer.produce(TOPIC, record, on_delivery=delivered)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(120) == 0
    return acknowledged, errors


def starved_s(cluster: ClusterProcess) -> list[float]:
    """Return the seconds that each node's main thread has waited for a processor since the node's start."""
    fields = [Path(f"/proc/{cluster.pid(node)}/schedstat").read_text().split() for node in (1, 2, 3)]
    return [int(waited_ns) / 1e9 for _, waited_ns, _ in fields]


def pages(cluster: ClusterProcess) -> list[Samples]:
    return [scrape(cluster.log(node)) for node in (1, 2, 3)]


@pytest.mark.parametrize("duration_s", DURATIONS_S)
def test_quorum_holds_no_election_while_a_producer_saturates_the_disk(tmp_path: Path, duration_s: float) -> None:
    duration_s = float(os.environ.get("HEADRACE_QUIET_S", duration_s))
    settings = {
        "headrace_metrics_listeners": "http://127.0.0.1:0",
        "min_insync_replicas": "2",
        "log_segment_bytes": str(64 * 1024 * 1024),
        "log_retention_bytes": str(256 * 1024 * 1024),
        "log_retention_check_interval_ms": "1000",
        "log_segment_delete_delay_ms": "1000",
    }
    with running_cluster(tmp_path / "c", **settings) as cluster:
        create_topic(cluster.bootstrap_servers, TOPIC, 6)
        epochs = {value(page, "kafka_server_raft_metrics_current_epoch") for page in pages(cluster)}
        assert len(epochs) == 1
        starved_before_s = starved_s(cluster)
        acknowledged, errors = produce_for(cluster, duration_s)
        starved = [after - before for before, after in zip(starved_before_s, starved_s(cluster), strict=True)]
        after = pages(cluster)
        print(f"\n{duration_s:.0f} s, {acknowledged / duration_s / 1000:.1f} MB/s with acks=all to three replicas")
        for page in after:
            flushes = {item: value(page, FLUSHES, quantile=item) for item in ("0.5", "0.99", "0.999")}
            print(f"fsyncs of a node: {value(page, f'{FLUSHES}_count'):.0f}, recent quantiles {flushes} ms")
        print(f"load average {Path('/proc/loadavg').read_text().split()[:3]}")
        waited = ", ".join(f"{100 * seconds / duration_s:.0f}%" for seconds in starved)
        print(f"share of the time in which the nodes waited for a CPU: {waited}")
        assert errors == []
        assert {value(page, "kafka_server_raft_metrics_current_epoch") for page in after} == epochs
        assert sum(len(re.findall(r"is active in epoch", cluster.log(node))) for node in (1, 2, 3)) == 1
