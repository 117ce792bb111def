"""Tests of Kafka's own tools with a headrace cluster: quorum, reassignments, elections, broker configurations."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import apache
from support.cluster import ClusterProcess, running_cluster

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with running_cluster(tmp_path_factory.mktemp("java") / "cluster") as running:
        yield running


def run(main_class: str, cluster: ClusterProcess, *arguments: str) -> str:
    names_servers = any(argument.startswith("--bootstrap-") for argument in arguments)
    servers = () if names_servers else ("--bootstrap-server", cluster.address(1))
    done = apache.run_tool(main_class, *servers, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafka_metadata_quorum_tool_accepts_bootstrap_servers_and_bootstrap_controllers(
    cluster: ClusterProcess,
) -> None:
    tool = "org.apache.kafka.tools.MetadataQuorumCommand"
    status = run(tool, cluster, "describe", "--status")
    assert re.search(r"LeaderId:\s+[123]\n", status)
    assert status.count("CONTROLLER://127.0.0.1:") == 3
    controller = f"127.0.0.1:{cluster.base_port + 1000}"
    replication = run(tool, cluster, "--bootstrap-controller", controller, "describe", "--replication")
    rows = [line.split("\t") for line in replication.splitlines()[1:]]
    assert sorted(row[0].strip() for row in rows) == ["1", "2", "3"]
    assert sorted(row[-2].strip() for row in rows if row[-2].strip()) == ["Follower", "Follower", "Leader"]
    assert all(int(row[4]) > 1_700_000_000_000 for row in rows)


def test_kafkas_tools_accept_the_option_bootstrap_controller(cluster: ClusterProcess) -> None:
    controllers = ("--bootstrap-controller", f"127.0.0.1:{cluster.base_port + 1001}")
    configs, everyone = "kafka.admin.ConfigCommand", ("--entity-type", "brokers", "--entity-default")
    run(configs, cluster, *controllers, "--alter", *everyone, "--add-config", "log.retention.ms=9000")
    assert "  log.retention.ms=9000 " in run(configs, cluster, *controllers, "--describe", *everyone)
    run(configs, cluster, *controllers, "--alter", *everyone, "--delete-config", "log.retention.ms")
    moves = run("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", cluster, *controllers, "--list")
    assert moves == "No partition reassignments found.\n"
    for servers in (controllers, ("--bootstrap-server", cluster.address(1))):
        endpoints = run("org.apache.kafka.tools.ClusterTool", cluster, "list-endpoints", *servers)
        words = [sys.executable, "-m", "headrace_broker.tools.cluster", "list-endpoints", *servers]
        assert endpoints == subprocess.run(words, capture_output=True, text=True, timeout=120).stdout


def test_kafkas_tools_reassign_partitions_and_elect_leaders(cluster: ClusterProcess, tmp_path: Path) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    run(topics, cluster, "--create", "--topic", "moved", "--replica-assignment", "1:2")
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [3, 2, 1]}]})
    )
    tool = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    started = run(tool, cluster, "--reassignment-json-file", str(plan), "--execute", "--throttle", "5000000")
    assert "The inter-broker throttle limit was set to 5000000 B/s" in started
    verified = run(tool, cluster, "--reassignment-json-file", str(plan), "--verify")
    assert re.search(r"moved-0 is (completed|still in progress)", verified)
    described = run(topics, cluster, "--describe", "--topic", "moved")
    assert re.search(r"Leader: 1\tReplicas: 3,2,1\tIsr: ", described)
    elected = run("org.apache.kafka.tools.LeaderElectionCommand", cluster, "--election-type", "preferred",
                  "--all-topic-partitions")  # fmt: skip
    assert "Successfully completed leader election (PREFERRED) for partitions moved-0" in elected
    assert re.search(r"Leader: 3\tReplicas: 3,2,1", run(topics, cluster, "--describe", "--topic", "moved"))


def test_kafka_configs_tool_alters_cluster_wide_defaults_and_configs_of_a_single_broker(
    cluster: ClusterProcess,
) -> None:
    tool = "kafka.admin.ConfigCommand"
    everyone = ("--entity-type", "brokers", "--entity-default")
    run(tool, cluster, "--alter", *everyone, "--add-config", "log.retention.ms=7000")
    assert "log.retention.ms=7000" in run(tool, cluster, "--describe", *everyone)
    only = ("--entity-type", "brokers", "--entity-name", "2")
    run(tool, cluster, "--alter", *only, "--add-config", "log.retention.ms=8000")
    described = run(tool, cluster, "--describe", *only)
    assert "DYNAMIC_BROKER_CONFIG:log.retention.ms=8000" in described
    features = run("org.apache.kafka.tools.FeatureCommand", cluster, "describe")
    assert "metadata.version" in features
