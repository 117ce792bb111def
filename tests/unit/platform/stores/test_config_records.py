"""Tests that config changes are written as the expected records of the config topic: order, keys, and value bytes."""

from __future__ import annotations

import json

import pytest

from headrace.stores.config_records import Record, steps
from headrace.stores.config_store import (
    ConfigChange,
    DeleteConnector,
    PutConnector,
    PutLogLevel,
    PutSessionKey,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)

CONNECTOR_C: Record = ("connector-c", b'{"properties":{"name":"c","tasks.max":"1"}}')
CONFIG = {"name": "c", "tasks.max": "1"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (PutConnector("c", CONFIG), [[CONNECTOR_C]]),
        (
            PutConnector("c", CONFIG, TargetState.PAUSED),
            [[("target-state-c", b'{"state":"PAUSED","state.v2":"PAUSED"}'), CONNECTOR_C]],
        ),
        (
            PutConnector("c", CONFIG, TargetState.STOPPED),
            [[("target-state-c", b'{"state":"PAUSED","state.v2":"STOPPED"}'), CONNECTOR_C]],
        ),
        (DeleteConnector("c"), [[("connector-c", None), ("target-state-c", None)]]),
        (
            PutTaskConfigs("c", [{"task.class": "T", "n": "0"}, {"n": "1"}]),
            [
                [
                    ("task-c-0", b'{"properties":{"task.class":"T","n":"0"}}'),
                    ("task-c-1", b'{"properties":{"n":"1"}}'),
                ],
                [("commit-c", b'{"tasks":2}')],
            ],
        ),
        (PutTaskConfigs("c", []), [[("commit-c", b'{"tasks":0}')]]),
        (
            PutTargetState("c", TargetState.STARTED),
            [[("target-state-c", b'{"state":"STARTED","state.v2":"STARTED"}')]],
        ),
        (
            PutTargetState("c", TargetState.STOPPED),
            [[("target-state-c", b'{"state":"PAUSED","state.v2":"STOPPED"}')]],
        ),
        (
            RequestRestart("c", include_tasks=True, only_failed=False),
            [[("restart-connector-c", b'{"include-tasks":true,"only-failed":false}')]],
        ),
        (
            PutSessionKey("c2VjcmV0", "HmacSHA256", 1_700_000_000_000),
            [[("session-key", b'{"key":"c2VjcmV0","algorithm":"HmacSHA256","creation-timestamp":1700000000000}')]],
        ),
        (PutLogLevel("org.example", "DEBUG"), [[("logger-cluster-org.example", b'{"level":"DEBUG"}')]]),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else "",
)
def test_config_change_is_written_as_the_records_that_kafka_connect_writes(
    change: ConfigChange, expected: list[list[Record]]
) -> None:
    assert steps(change) == expected


def test_hyphens_in_a_connector_name_are_not_escaped_in_record_keys() -> None:
    keys = [key for step in steps(PutTaskConfigs("a-b-1", [{}])) for key, _ in step]
    assert keys == ["task-a-b-1-0", "commit-a-b-1"]


def test_non_ascii_text_in_a_configuration_is_written_as_utf_8() -> None:
    [[(_, value)]] = steps(PutConnector("c", {"topic": "größe-数", "quote": '"\n'}))
    assert value == '{"properties":{"topic":"größe-数","quote":"\\"\\n"}}'.encode()


def test_unpaired_surrogate_in_a_configuration_is_written_as_a_json_escape() -> None:
    [[(_, value)]] = steps(PutConnector("c", {"file": "a\udc80"}))
    assert value == b'{"properties":{"file":"a\\uDC80"}}'
    assert json.loads(value) == {"properties": {"file": "a\udc80"}}


def test_task_configuration_is_written_in_the_key_order_of_kafka_connects_hash_maps() -> None:
    config = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": "in.txt",
        "topic": "lines",
        "name": "src",
        "task.class": "org.apache.kafka.connect.file.FileStreamSourceTask",
    }
    [[(_, value)], _] = steps(PutTaskConfigs("src", [config]))
    written = ["connector.class", "file", "task.class", "tasks.max", "name", "topic"]  # as Apache Kafka 4.3.1 writes it
    assert value is not None
    assert list(json.loads(value)["properties"]) == written
