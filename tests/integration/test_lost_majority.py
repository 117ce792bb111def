"""Tests that logs, tools and clients report a lost quorum majority, and that the cluster recovers with a majority."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import await_in_sync, create_topic, running_load
from support.commands import run_tool

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


def quorum_status(cluster: ClusterProcess, node: int) -> subprocess.CompletedProcess[str]:
    return run_tool("metadata_quorum", "--bootstrap-server", cluster.address(node), "describe", "--status")


def await_log(cluster: ClusterProcess, node: int, words: str) -> None:
    deadline = time.monotonic() + 30
    while words not in cluster.log(node):
        assert time.monotonic() < deadline, cluster.log(node)
        time.sleep(0.02)


def why_not_created(cluster: ClusterProcess, node: int) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.address(node), "log_level": 0})
    request = admin.create_topics([NewTopic("impossible", 1, 1)], request_timeout=10, operation_timeout=2)
    with pytest.raises(KafkaException) as refused:
        request["impossible"].result(30)
    return str(refused.value)


def test_logs_and_tools_report_a_lost_majority_and_the_cluster_recovers_once_a_majority_runs_again(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path / "c") as cluster, running_load(cluster.bootstrap_servers, "majority") as load:
        create_topic(cluster.bootstrap_servers, "before", 1)
        for node in (1, 2):
            cluster.kill(node)
        lost = "a majority of controller.quorum.voters is not reachable: "
        dead = ", ".join(f"{node}@127.0.0.1:{cluster.base_port + 1000 + node - 1}" for node in (1, 2))
        first, second = dead.split(", ")
        for words in (lost, f"{first} refuses connections", f"{second} refuses connections"):
            await_log(cluster, 3, words)
            assert words in why_not_created(cluster, 3)
        status = quorum_status(cluster, 3)
        assert status.returncode == 1
        assert lost in status.stderr
        assert len(status.stderr.splitlines()) == 1, status.stderr
        assert cluster.run_cli("status").stdout.endswith(" without quorum: it cannot reach an active controller\n")
        cluster.start_node(2)
        await_log(cluster, 3, " has a leader again")
        assert "LeaderId:  " in quorum_status(cluster, 3).stdout
        load.await_acknowledged(200, timeout_s=60)
        create_topic(cluster.bootstrap_servers, "after", 1, 2)
        cluster.start_node(1)
        await_in_sync(cluster.bootstrap_servers, "majority", 3)
        assert not load.errors
