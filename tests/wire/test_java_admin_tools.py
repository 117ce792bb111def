"""Tests of Kafka's own administration tools with headrace's broker and its metadata log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import apache
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, create_topic

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("java")) as process:
        yield process


def run(main_class: str, broker: BrokerProcess, *arguments: str) -> str:
    done = apache.run_tool(main_class, "--bootstrap-server", broker.address, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_kafka_topics_tool_creates_describes_alters_and_deletes_topics(broker: BrokerProcess) -> None:
    tool = "org.apache.kafka.tools.TopicCommand"
    run(tool, broker, "--create", "--topic", "java", "--partitions", "3", "--config", "cleanup.policy=compact")
    described = run(tool, broker, "--describe", "--topic", "java")
    assert re.search(
        r"Topic: java\tTopicId: \S{22}\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: cleanup.policy=compact",
        described,
    )
    assert described.count("Leader: 1\tReplicas: 1\tIsr: 1") == 3
    run(tool, broker, "--alter", "--topic", "java", "--partitions", "5")
    assert "PartitionCount: 5" in run(tool, broker, "--describe", "--topic", "java")
    run(tool, broker, "--delete", "--topic", "java")
    assert "java" not in run(tool, broker, "--list").split()


def test_kafka_configs_tool_alters_and_describes_configs(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "configured")
    tool = "kafka.admin.ConfigCommand"
    target = ("--entity-type", "topics", "--entity-name", "configured")
    run(tool, broker, "--alter", *target, "--add-config", "retention.ms=5000")
    assert "retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000" in run(
        tool, broker, "--describe", *target
    )


def test_kafka_log_dirs_tool_describes_partitions(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "sized", partitions=2)
    output = run("org.apache.kafka.tools.LogDirsCommand", broker, "--describe", "--topic-list", "sized")
    directory = json.loads(output.splitlines()[-1])["brokers"][0]["logDirs"][0]
    assert directory["logDir"] == str(broker.data_dir)
    assert sorted(item["partition"] for item in directory["partitions"]) == ["sized-0", "sized-1"]


def test_kafka_dump_log_decodes_the_metadata_log_of_headrace(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "t", partitions=2, retention_ms="1000")
        broker.restart()
    path = broker.data_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    done = apache.run_tool("org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", str(path))
    assert done.returncode == 0, done.stderr
    assert "isvalid: false" not in done.stdout
    leaders = [json.loads(found) for found in re.findall(r"LeaderChange: (\{.*\})", done.stdout)]
    assert [item["leaderId"] for item in leaders] == [1, 1]
    assert re.findall(r"partitionLeaderEpoch: (\d+) .*isControl: true", done.stdout) == ["1", "2"]
    records = [json.loads(found) for found in re.findall(r"payload: (\{.*\})", done.stdout)]
    start = ["REGISTER_BROKER_RECORD", "BROKER_REGISTRATION_CHANGE_RECORD"]
    topic = ["TOPIC_RECORD", "CONFIG_RECORD", "PARTITION_RECORD", "PARTITION_RECORD"]
    assert [record["type"] for record in records] == ["FEATURE_LEVEL_RECORD", *start, *topic, *start]
    assert records[4]["data"] == {"resourceType": 2, "resourceName": "t", "name": "retention.ms", "value": "1000"}
    epochs = [record["data"]["brokerEpoch"] for record in records if record["type"] == start[0]]
    offsets = re.findall(r"\| offset: (\d+) .*REGISTER_BROKER_RECORD", done.stdout)
    assert [str(epoch) for epoch in epochs] == offsets


def test_kafka_dump_log_decodes_the_metadata_snapshots_of_headrace(tmp_path: Path) -> None:
    with running_broker(tmp_path, **{"metadata.log.max.record.bytes.between.snapshots": "2000"}) as broker:
        with RawClient(broker.address) as client:
            for number in range(30):
                create_topic(client, f"t{number}", partitions=2, retention_ms="1000")
        directory = broker.data_dir / "__cluster_metadata-0"
        newest = max(directory.glob("*.checkpoint"))
        arguments = ("--cluster-metadata-decoder", "--files", str(newest))
        done = apache.run_tool("org.apache.kafka.tools.DumpLogSegments", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "isvalid: false" not in done.stdout
        assert "SnapshotHeader" in done.stdout
        assert "SnapshotFooter" in done.stdout
        records = [json.loads(found)["type"] for found in re.findall(r"payload: (\{.*\})", done.stdout)]
        assert records[:2] == ["FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD"]
        topics = records.count("TOPIC_RECORD")
        assert topics > 10
        assert records.count("PARTITION_RECORD") == 2 * topics
        assert records.count("CONFIG_RECORD") == topics


def test_kafkas_tools_that_query_unsupported_features_succeed(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "plain")
    configs = "kafka.admin.ConfigCommand"
    for entity in ("users", "clients", "ips", "groups", "client-metrics"):
        run(configs, broker, "--describe", "--entity-type", entity)
    assert "root=INFO" in run(configs, broker, "--describe", "--entity-type", "broker-loggers", "--entity-name", "1")
    run("org.apache.kafka.tools.ClientMetricsCommand", broker, "--list")
    transactions = "org.apache.kafka.tools.TransactionsCommand"
    assert run(transactions, broker, "list").split() == [
        "TransactionalId",
        "Coordinator",
        "ProducerId",
        "TransactionState",
    ]
    run(transactions, broker, "describe-producers", "--topic", "plain", "--partition", "0")
    done = apache.run_tool("org.apache.kafka.tools.AclCommand", "--bootstrap-server", broker.address, "--list")
    assert "SecurityDisabledException: No Authorizer is configured on the broker" in done.stdout + done.stderr
