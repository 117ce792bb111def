"""Tests of filters for topics and partitions, and of the output of kafka-topics --describe."""

from __future__ import annotations

import pytest

from headrace_broker.client.admin_replicas import Reassignment
from headrace_broker.tools.get_offsets import parse_time
from headrace_broker.tools.tool_error import ToolError
from headrace_broker.tools.topic_descriptions import (
    PartitionDescription,
    Report,
    TopicDescription,
    describe,
)
from headrace_broker.tools.topic_filter import (
    select_topics,
    topic_and_partitions_filter,
    topic_filter,
    topic_partition_filter,
)
from headrace_broker.tools.topics import parse_assignment, parse_configs

TOPICS = ["b", "a.1", "a-1", "__consumer_offsets"]


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (None, ["__consumer_offsets", "a-1", "a.1", "b"]),
        ("b", ["b"]),
        ("a.1", ["a-1", "a.1"]),
        (r"a\.1", ["a.1"]),
        ("a", []),
        ("b, a-1", ["a-1", "b"]),
        ('"b"', ["b"]),
        ("[ab].*", ["a-1", "a.1", "b"]),
    ],
)
def test_topic_expression_of_the_tools_matches_only_whole_topic_names(
    expression: str | None, selected: list[str]
) -> None:
    assert select_topics(TOPICS, expression, exclude_internal=False) == selected


def test_topic_selection_with_exclude_internal_contains_no_internal_topics() -> None:
    assert select_topics(TOPICS, None, exclude_internal=True) == ["a-1", "a.1", "b"]


def test_topic_expression_with_an_invalid_regex_is_rejected() -> None:
    with pytest.raises(ToolError, match=r"a\( is an invalid regex"):
        topic_filter("a(")


@pytest.mark.parametrize(
    ("rules", "partitions"),
    [
        ("t:1", [1]),
        ("t", [0, 1, 2, 3, 4]),
        ("t:1-3", [1, 2]),
        ("t:3-", [3, 4]),
        ("t:-2", [0, 1]),
        (":0,t:4", [0, 4]),
        ("other", []),
    ],
)
def test_topic_partition_filter_selects_the_partitions_that_match_its_rules(rules: str, partitions: list[int]) -> None:
    _, is_wanted = topic_partition_filter(rules)
    assert [number for number in range(5) if is_wanted("t", number)] == partitions


def test_invalid_topic_partition_rules_and_partition_lists_are_rejected() -> None:
    with pytest.raises(ToolError, match="Invalid rule specification: t:x"):
        topic_partition_filter("t:x")
    with pytest.raises(ToolError, match="numeric partition ids, but received: 1,x"):
        topic_and_partitions_filter("t", "1,x")
    matches, is_wanted = topic_and_partitions_filter(None, "1")
    assert matches("anything")
    assert is_wanted("t", 1)
    assert not is_wanted("t", 0)


def test_time_argument_of_get_offsets_accepts_names_and_timestamps() -> None:
    assert [parse_time(text) for text in ("latest", "-1", "earliest", "max-timestamp", "1700")] == [
        -1,
        -1,
        -2,
        -3,
        1700,
    ]
    with pytest.raises(ToolError, match="Malformed time argument soon"):
        parse_time("soon")


# -- reports ---------------------------------------------------------------------------------------------------------

HEALTHY = PartitionDescription(0, 1, (1, 2), (1, 2), (), ())
SHRUNK = PartitionDescription(1, 2, (1, 2), (2,), (), ())
LEADERLESS = PartitionDescription(2, None, (3,), (), (3,), (3,))
TOPIC = TopicDescription(
    "t", "AAAAAAAAAAAAAAAAAAAAAQ", (HEALTHY, SHRUNK, LEADERLESS), {"retention.ms": "1", "cleanup.policy": "compact"}, 2
)
LIVE = {1, 2}


def test_describe_prints_a_line_for_the_topic_and_a_line_for_each_partition() -> None:
    assert list(describe(TOPIC, Report(), LIVE)) == [
        "Topic: t\tTopicId: AAAAAAAAAAAAAAAAAAAAAQ\tPartitionCount: 3\tReplicationFactor: 2\t"
        "Configs: retention.ms=1,cleanup.policy=compact",
        "\tTopic: t\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2\tElr: \tLastKnownElr: ",
        "\tTopic: t\tPartition: 1\tLeader: 2\tReplicas: 1,2\tIsr: 2\tElr: \tLastKnownElr: ",
        "\tTopic: t\tPartition: 2\tLeader: none\tReplicas: 3\tIsr: \tElr: 3\tLastKnownElr: 3",
    ]


@pytest.mark.parametrize(
    ("report", "partitions"),
    [
        (Report(under_replicated=True), [1, 2]),
        (Report(unavailable=True), [2]),
        (Report(under_min_isr=True), [1, 2]),
        (Report(at_min_isr=True), [0]),
    ],
)
def test_describe_options_such_as_under_replicated_partitions_show_only_the_matching_partitions(
    report: Report, partitions: list[int]
) -> None:
    lines = list(describe(TOPIC, report, LIVE))
    assert [int(line.split("Partition: ")[1].split("\t")[0]) for line in lines] == partitions


def test_option_unavailable_partitions_shows_a_partition_whose_leader_is_not_live() -> None:
    assert len(list(describe(TOPIC, Report(unavailable=True), {1}))) == 2


def test_option_topics_with_overrides_shows_only_topics_that_have_topic_level_configs() -> None:
    assert len(list(describe(TOPIC, Report(only_overrides=True), LIVE))) == 1
    plain = TopicDescription("p", "", (HEALTHY,))
    assert list(describe(plain, Report(only_overrides=True), LIVE)) == []


def test_describe_output_contains_the_replicas_of_a_reassignment() -> None:
    """The columns are `Adding Replicas` and `Removing Replicas`. If the ELR is unknown, its column contains `N/A`."""
    moving = PartitionDescription(0, 1, (1, 2, 3), (1, 2), reassignment=Reassignment((1, 2, 3), (3,), (1,)))
    topic = TopicDescription("t", "AAAAAAAAAAAAAAAAAAAAAA", (moving,))
    first, second = describe(topic, Report(), LIVE)
    assert first == "Topic: t\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: "
    assert second.endswith("\tIsr: 1,2\tAdding Replicas: 3\tRemoving Replicas: 1\tElr: N/A\tLastKnownElr: N/A")
    assert list(describe(topic, Report(under_replicated=True), LIVE)) == []


# -- arguments of --create -------------------------------------------------------------------------------------------


def test_replica_assignment_option_is_parsed_and_invalid_assignments_are_rejected() -> None:
    assert parse_assignment("0:1,1:2") == {0: [0, 1], 1: [1, 2]}
    with pytest.raises(ToolError, match="may not contain duplicate entries: 1"):
        parse_assignment("1:1")
    with pytest.raises(ToolError, match=r"Partition 1 has different replication factor: \[1\]"):
        parse_assignment("1:2,1")
    with pytest.raises(ToolError, match="partition 1: 'x' is not a list of broker ids"):
        parse_assignment("1,x")


def test_config_options_of_kafka_topics_are_parsed_as_name_value_pairs() -> None:
    assert parse_configs(["a=b", " c = d=e "]) == {"a": "b", "c": "d=e"}
    assert parse_configs(None) == {}
    with pytest.raises(ToolError, match='in the format "key=val"'):
        parse_configs(["a"])
