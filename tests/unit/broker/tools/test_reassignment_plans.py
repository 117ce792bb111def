"""Tests of how kafka-reassign-partitions parses, checks, proposes and formats plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace_broker.client.admin_replicas import Reassignment
from headrace_broker.tools.reassignment_plans import (
    ReassignmentPlan,
    as_json,
    check_brokers,
    check_log_dirs,
    check_plan,
    list_lines,
    log_dir_states,
    parse_brokers,
    parse_plan,
    parse_topics,
    plan_states,
    propose,
    replica_moves,
)
from headrace_broker.tools.tool_error import ToolError


def plan(*entries: dict[str, Any]) -> ReassignmentPlan:
    return parse_plan({"version": 1, "partitions": list(entries)})


def test_assignment_printed_by_kafka_reassign_partitions_can_be_parsed_as_a_plan() -> None:
    text = as_json({("b", 1): [2, 3], ("a", 0): [1]}, {("b", 1, 2): "/data"})
    assert text == (
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1],"log_dirs":["any"]},'
        '{"topic":"b","partition":1,"replicas":[2,3],"log_dirs":["/data","any"]}]}'
    )
    read = parse_plan(json.loads(text))
    assert read == ReassignmentPlan({("a", 0): [1], ("b", 1): [2, 3]}, {("b", 1, 2): "/data"})
    check_log_dirs(read, {2: ["/data"]})


def test_verify_option_reports_whether_replicas_are_in_the_log_directories_given_in_the_plan() -> None:
    named = ReassignmentPlan({("b", 1): [2, 3, 4]}, {("b", 1, 2): "/data", ("b", 1, 3): "/data", ("b", 1, 4): "/data"})
    assert log_dir_states(named, {("b", 1, 2): "/data", ("b", 1, 3): "/other"}) == [
        "Reassignment of replica b-1-2 completed successfully.",
        "Partition b-1 on broker 3 is not being moved from log dir /other to /data.",
        "Partition b-1 cannot be found in any live log directory on broker 4.",
    ]


@pytest.mark.parametrize("directories", [["/other"], ["/data", "/other"]])
def test_reassignment_plan_that_names_a_log_directory_is_rejected_unless_the_broker_has_only_this_directory(
    directories: list[str],
) -> None:
    with pytest.raises(ToolError) as raised:
        check_log_dirs(ReassignmentPlan({("b", 1): [2]}, {("b", 1, 2): "/data"}), {2: directories})
    assert str(raised.value) == (
        f"b-1: log_dirs contains /data for broker 2, but a reassignment cannot choose a log directory of this broker "
        f"(its log directories are {', '.join(directories)}): "
        'use "any" to let the broker choose'
    )


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "Partition reassignment list cannot be empty"),
        ([{"topic": "a", "partition": 0, "replicas": []}], "Partition replica list cannot be empty"),
        (
            [{"topic": "a", "partition": 0, "replicas": [1, 2, 1]}],
            "Partition replica lists may not contain duplicate entries: a-0 contains multiple entries for 1",
        ),
        (
            [{"topic": "a", "partition": 0, "replicas": [1]}] * 2,
            "Partition reassignment contains duplicate topic partitions: a-0",
        ),
        ([{"topic": "a", "partition": 0}], '"replicas" is missing or not of the right type'),
        ([{"topic": "a", "partition": "0", "replicas": [1]}], '"partition" is missing or not of the right type'),
        ([{"topic": "a", "partition": 0, "replicas": ["1"]}], '"replicas" of a-0 must be broker ids'),
        (
            [{"topic": "a", "partition": 0, "replicas": [1, 2], "log_dirs": ["any"]}],
            "Size of replicas list [1, 2] is different from size of log dirs list ['any'] for partition a-0",
        ),
        (["a"], "partitions, entry 1: expected a JSON object"),
    ],
)
def test_invalid_reassignment_plan_is_rejected(entries: list[Any], message: str) -> None:
    with pytest.raises(ToolError) as raised:
        check_plan(plan(*entries))
    assert str(raised.value).startswith(message)


def test_duplicate_topics_in_a_topics_file_and_duplicate_brokers_in_a_broker_list_are_rejected() -> None:
    assert parse_topics({"topics": [{"topic": "a"}]}) == ["a"]
    with pytest.raises(ToolError, match="duplicate entries"):
        parse_topics({"topics": [{"topic": "a"}, {"topic": "a"}]})
    assert parse_brokers("3,1") == [3, 1]
    for text in ("1,1", "1,", "x"):
        with pytest.raises(ToolError):
            parse_brokers(text)


def test_proposed_reassignment_spreads_leaders_over_brokers_and_replicas_over_racks() -> None:
    current = {("t", index): [1, 2] for index in range(6)}
    proposed = propose(current, {1: "x", 2: "x", 3: "y", 4: "y"}, 0)
    assert proposed.keys() == current.keys()
    assert all(len(set(replicas)) == 2 for replicas in proposed.values())
    racks = [{replica > 2 for replica in replicas} for replicas in proposed.values()]
    assert all(rack == {True, False} for rack in racks)
    assert {replicas[0] for replicas in proposed.values()} == {1, 2, 3, 4}


def test_verify_option_reports_the_reassignment_state_of_each_partition() -> None:
    wanted = ReassignmentPlan({("a", 0): [1, 2], ("a", 1): [1, 2], ("a", 2): [1, 2]}, {})
    moving = {("a", 1): Reassignment((1, 2, 3), (1,), (3,))}
    assert plan_states(wanted, moving, {("a", 0): [1, 2], ("a", 1): [1, 2, 3], ("a", 2): [3]}) == [
        "Status of partition reassignment:",
        "Reassignment of partition a-0 is completed.",
        "Reassignment of partition a-1 is still in progress.",
        "There is no active reassignment of partition a-2, but replica set is 3 rather than 1,2.",
    ]


def test_list_option_shows_reassignments_in_progress() -> None:
    assert list_lines({}) == ["No partition reassignments found."]
    assert list_lines({("a", 1): Reassignment((1, 2, 3), (1,), (3,)), ("a", 0): Reassignment((1,), (), ())}) == [
        "Current partition reassignments:",
        "a-0: replicas: 1.",
        "a-1: replicas: 1,2,3. adding: 1. removing: 3.",
    ]


def test_throttled_replica_moves_include_the_moves_of_reassignments_in_progress() -> None:
    moving = {("a", 0): Reassignment((1, 2, 3), (3,), (1,)), ("a", 1): Reassignment((1, 4), (4,), ())}
    started = plan(
        {"topic": "a", "partition": 0, "replicas": [2, 5]}, {"topic": "b", "partition": 0, "replicas": [3, 1]}
    )
    current = {("a", 0): [1, 2, 3], ("b", 0): [1, 2]}
    assert replica_moves(started, moving, current) == {
        ("a", 0): ({1, 2}, {5}),  # replica 3 is still being added
        ("a", 1): ({1}, {4}),
        ("b", 0): ({1, 2}, {3}),
    }


@pytest.mark.parametrize(
    ("brokers", "message"),
    [
        ([1, 9, 7], "--broker-list 1,9,7: broker 9,7 is not live; the live brokers are 1,2,3"),
        ([1], "--broker-list 1: topic t has replication factor 2 and needs at least 2 brokers"),
    ],
)
def test_broker_list_with_dead_or_too_few_brokers_is_rejected(brokers: list[int], message: str) -> None:
    with pytest.raises(ToolError) as raised:
        check_brokers(brokers, {3, 1, 2}, {("t", 0): [1, 2]})
    assert str(raised.value) == message
    check_brokers([3, 1], {3, 1, 2}, {("t", 0): [1, 2]})
