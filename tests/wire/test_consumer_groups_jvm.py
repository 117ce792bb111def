"""Tests of Kafka's own tools and consumers with the groups and the `__consumer_offsets` topic of headrace's broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_broker.coordinator.placement import coordinator_partition
from support import apache
from support.broker import BrokerProcess, running_broker
from support.group_processes import GroupProcesses
from support.worker import wait_for

pytestmark = [pytest.mark.wire, pytest.mark.jvm]

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"
FORMATTERS = "org.apache.kafka.tools.consumer"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    reason = apache.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with running_broker(tmp_path_factory.mktemp("jvm-groups")) as running:
        client = AdminClient({"bootstrap.servers": running.address})
        client.create_topics([NewTopic("t", 3)])["t"].result(30)
        producer = Producer({"bootstrap.servers": running.address})
        for n in range(30):
            producer.produce("t", b"value", partition=n % 3)
        assert producer.flush(10) == 0
        yield running


def run(broker: BrokerProcess, main_class: str, *arguments: str) -> str:
    done = apache.run_tool(main_class, "--bootstrap-server", broker.address, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(output: str) -> list[dict[str, str]]:
    """Parse a table in the output of Kafka's tools."""
    lines = [line.split() for line in output.splitlines() if line.strip()]
    head = next(n for n, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[head], line, strict=False)) for line in lines[head + 1 :]]


def test_java_consumer_reads_and_commits_in_a_group(broker: BrokerProcess) -> None:
    read = ("--topic", "t", "--group", "java", "--timeout-ms", "6000", "--from-beginning")
    assert run(broker, CONSOLE, *read, "--max-messages", "30").count("value") == 30
    described = rows(run(broker, GROUPS, "--describe", "--group", "java"))
    assert {(row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"]) for row in described} == {
        (str(n), "10", "0") for n in range(3)
    }


def test_kafka_consumer_groups_tool_describes_members_and_resets_offsets(broker: BrokerProcess) -> None:
    with GroupProcesses(broker.address, "shown", "t", 10_000) as members:
        members.start("confluent")
        members.await_shared(3, 15)
        (member,) = rows(run(broker, GROUPS, "--describe", "--group", "shown", "--members"))
        assert (member["HOST"], member["#PARTITIONS"]) == ("/127.0.0.1", "3")
        state = run(broker, GROUPS, "--describe", "--group", "shown", "--state")
        assert "Stable" in state
        assert "range" in state
        rejected = run(broker, GROUPS, "--delete", "--group", "shown")
        assert "not empty" in rejected.lower() or "GroupNotEmptyException" in rejected
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "moved"})
    consumer.commit(offsets=[TopicPartition("t", n, 5) for n in range(3)], asynchronous=False)
    consumer.close()
    reset = ("--group", "moved", "--reset-offsets", "--topic", "t:0", "--to-offset", "2", "--execute")
    run(broker, GROUPS, *reset)
    run(broker, GROUPS, "--group", "moved", "--delete-offsets", "--topic", "t:1")
    described = {
        row["PARTITION"]: row["CURRENT-OFFSET"] for row in rows(run(broker, GROUPS, "--describe", "--group", "moved"))
    }
    assert (described["0"], described["2"]) == ("2", "5")
    assert described.get("1", "-") == "-"
    assert "moved" in run(broker, GROUPS, "--list").split()
    assert "was successful" in run(broker, GROUPS, "--delete", "--group", "moved")
    assert "moved" not in run(broker, GROUPS, "--list").split()


def test_kafkas_formatters_decode_the_consumer_offsets_topic_of_headraces_broker(broker: BrokerProcess) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "written"})
    consumer.commit(offsets=[TopicPartition("t", 2, 7, metadata="a note", leader_epoch=0)], asynchronous=False)
    consumer.close()
    with GroupProcesses(broker.address, "led", "t", 10_000) as members:
        members.start("confluent")
        members.await_shared(3, 15)
    found = _formatted(broker, "OffsetsMessageFormatter", "written")[-1]  # a repeated commit writes a second record
    assert found["key"] == {"type": 1, "data": {"group": "written", "topic": "t", "partition": 2}}
    assert found["value"]["data"]["offset"] == 7
    assert found["value"]["data"]["metadata"] == "a note\0"  # confluent-kafka appends a null byte to the metadata
    assert found["value"]["data"]["leaderEpoch"] == 0
    groups = _formatted(broker, "GroupMetadataMessageFormatter", "led")
    stable = [record for record in groups if record["value"] and record["value"]["data"]["members"]]
    assert stable[-1]["value"]["data"]["protocolType"] == "consumer"
    assert stable[-1]["value"]["data"]["protocol"] == "range"


def _formatted(broker: BrokerProcess, formatter: str, group: str) -> list[dict[str, Any]]:
    """Return the formatted records of a group. If the tool's timeout ends before it has read any, run it again."""
    records: list[dict[str, Any]] = []

    def has_read_records() -> bool:
        records.extend(_run_formatter(broker, formatter, group))
        return bool(records)

    wait_for(has_read_records, f"records of group {group}", 60)
    return records


def _run_formatter(broker: BrokerProcess, formatter: str, group: str) -> Iterator[dict[str, Any]]:
    partition = str(coordinator_partition(group, 50))
    done = apache.run_tool(
        CONSOLE,
        *("--bootstrap-server", broker.address, "--topic", "__consumer_offsets", "--partition", partition),
        *("--offset", "earliest", "--timeout-ms", "4000", "--formatter", f"{FORMATTERS}.{formatter}"),
    )
    text = done.stdout.strip()
    while text:  # one formatter writes no newlines between records
        record, end = json.JSONDecoder().raw_decode(text)
        if record["key"]["data"]["group"] == group:
            yield record
        text = text[end:].lstrip()
