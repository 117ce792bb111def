"""Tests of connector configurations in real distributed workers: validation, changes, initial states and limits.

The tests of the file share a broker and a group of two workers. Each test deletes its connectors.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.data.java import hash_map_order
from support.broker import BrokerProcess, running_broker
from support.distributed import DistributedWorker, is_running, owners, worker_group
from support.rest_plugins import starts, write_plugins
from support.topics import read_topic
from support.worker import RestError, Worker, wait_for

pytestmark = pytest.mark.integration

TEXT = {"key.converter": "StringConverter", "value.converter": "StringConverter"}
TRANSFORM, PREDICATE = "org.apache.kafka.connect.transforms.Filter", "RecordIsTombstone"
HINT = (
    "\nYou can also find the above list of errors at the endpoint `/connector-plugins/{connectorType}/config/validate`"
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plugins(tmp_path_factory.mktemp("plugins"))


@pytest.fixture(scope="module")
def group(
    broker: BrokerProcess, plugins: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[DistributedWorker]]:
    with worker_group(tmp_path_factory.mktemp("workers"), broker.address, 2, {"plugin.path": str(plugins)}) as running:
        yield running


@pytest.fixture
def workers(group: list[DistributedWorker], tmp_path: Path) -> Iterator[list[DistributedWorker]]:
    """Yield the workers of the group. The first worker is the leader.

    The fixture depends on `tmp_path`, so that the connectors are deleted before the directory that they use.
    """
    yield group
    for name in group[0].request("GET", "/connectors"):
        group[0].request("DELETE", f"/connectors/{name}")


@contextmanager
def single_worker(
    broker: BrokerProcess, plugins: Path, directory: Path, name: str, **settings: str
) -> Iterator[DistributedWorker]:
    """Run a worker that is the only member of its group."""
    topics = {f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")}
    own = {"group.id": name, **topics, "plugin.path": str(plugins)}
    own |= {key.replace("_", "."): value for key, value in settings.items()}
    with worker_group(directory, broker.address, 1, own) as [worker]:
        yield worker


def source(directory: Path, topic: str = "configured", **more: str) -> dict[str, str]:
    config = {"connector.class": "RestSource", "directory": str(directory), "topic": topic, "records": "0"}
    return {**config, **TEXT, **more}


def sink(directory: Path, **more: str) -> dict[str, str]:
    return {"connector.class": "RestSink", "directory": str(directory), "topics": "t1", **TEXT, **more}


def failure(worker: Worker, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Return status and message of the error response to a request."""
    with pytest.raises(RestError) as caught:
        worker.request(method, path, body)
    assert caught.value.body == {"error_code": caught.value.status, "message": caught.value.body["message"]}
    return caught.value.status, caught.value.body["message"]


def validation_errors(worker: Worker, config: dict[str, Any]) -> dict[str, list[str]]:
    """Validate a configuration and return the errors by key."""
    path = f"/connector-plugins/{config['connector.class']}/config/validate"
    result = worker.request("PUT", path, config)
    found = {each["value"]["name"]: each["value"]["errors"] for each in result["configs"] if each["value"]["errors"]}
    assert result["error_count"] == sum(len(errors) for errors in found.values())
    return found


# Validation

NO_TOPICS = "Must configure one of topics or topics.regex"
BOTH_TOPICS = "topics and topics.regex are mutually exclusive options, but both are set."
NEGATE = (
    "Invalid value org.apache.kafka.connect.transforms.Filter for configuration transforms.t.type: Config "
    "'transforms.t.negate' was provided but there is no config 'transforms.t.predicate' defining a predicate to be "
    "negated."
)
INVALID: dict[str, tuple[str, dict[str, str | None], dict[str, list[str | None]]]] = {
    # None stands for any error text, because the text names the available classes.
    "no topics": ("RestSink", {"topics": ""}, {"topics": [NO_TOPICS], "topics.regex": [NO_TOPICS]}),
    "topics and topics.regex": (
        "RestSink",
        {"topics.regex": "r.*"},
        {"topics": [BOTH_TOPICS], "topics.regex": [BOTH_TOPICS]},
    ),
    "dead letter queue in topics": (
        "RestSink",
        {"errors.deadletterqueue.topic.name": "t1"},
        {
            "topics": [
                "The DLQ topic 't1' may not be included in the list of topics ('topics=[t1]') consumed by the connector"
            ]
        },
    ),
    "dead letter queue matches topics.regex": (
        "RestSink",
        {"topics": "", "topics.regex": "r.*", "errors.deadletterqueue.topic.name": "ruh.roh"},
        {
            "topics.regex": [
                "The DLQ topic 'ruh.roh' may not be matched by the regex for the topics ('topics.regex=r.*') consumed "
                "by the connector"
            ]
        },
    ),
    "consumer group of the workers": (
        "RestSink",
        {"consumer.override.group.id": "workers"},
        {"consumer.override.group.id": ["Consumer group workers conflicts with Connect worker group workers"]},
    ),
    "duplicate topic creation group": (
        "RestSource",
        {
            "topic.creation.groups": "g1, g2, g1",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
            "topic.creation.g1.include": "a",
            "topic.creation.g2.include": "b",
        },
        {
            "topic.creation.groups": [
                "Invalid value [g1, g2, g1] for configuration topic.creation.groups: Duplicate alias provided."
            ]
        },
    ),
    "duplicate transform": (
        "RestSink",
        {"transforms": "t, t", "transforms.t.type": TRANSFORM},
        {"transforms": ["Invalid value [t, t] for configuration transforms: Duplicate alias provided."]},
    ),
    "unknown transform class": (
        "RestSink",
        {"transforms": "t", "transforms.t.type": "WheresTheFruit"},
        {"transforms.t.type": [None]},
    ),
    "transform class of the wrong type": (
        "RestSink",
        {"transforms": "t", "transforms.t.type": "RestSink"},
        {"transforms.t.type": [None]},
    ),
    "negate without a predicate": (
        "RestSink",
        {"transforms": "t", "transforms.t.type": TRANSFORM, "transforms.t.negate": "true"},
        {"transforms.t.type": [NEGATE]},
    ),
    "duplicate predicate": (
        "RestSink",
        {"predicates": "p, p", "predicates.p.type": PREDICATE},
        {"predicates": ["Invalid value [p, p] for configuration predicates: Duplicate alias provided."]},
    ),
    "unknown predicate class": (
        "RestSink",
        {"predicates": "p", "predicates.p.type": "WheresTheFruit"},
        {"predicates.p.type": [None]},
    ),
    "predicate class of the wrong type": (
        "RestSink",
        {"predicates": "p", "predicates.p.type": "RestSink"},
        {"predicates.p.type": [None]},
    ),
    "unknown converter class": ("RestSink", {"key.converter": "WheresTheFruit"}, {"key.converter": [None]}),
    "converter class of the wrong type": ("RestSink", {"key.converter": "RestSink"}, {"key.converter": [None]}),
    "invalid key of a converter": (
        "RestSink",
        {"value.converter": "JsonConverter", "value.converter.schemas.enable": "notaboolean"},
        {
            "value.converter.schemas.enable": [
                "Invalid value notaboolean for configuration value.converter.schemas.enable: Expected value to be "
                "either true or false"
            ]
        },
    ),
    "unknown header converter class": ("RestSink", {"header.converter": "Nope"}, {"header.converter": [None]}),
    "wrong header converter class": ("RestSink", {"header.converter": "RestSink"}, {"header.converter": [None]}),
    "null values": (
        "RestSource",
        {"topic": None, "unknown": None},
        {
            "topic": ["Null value can not be supplied as the configuration value."],
            "unknown": ["Null value can not be supplied as the configuration value."],
        },
    ),
    "several invalid keys": (
        "RestSource",
        {"tasks.max": "0", "records": "many", "errors.tolerance": "some", "transforms": "t", "directory": None},
        {
            "tasks.max": ["Invalid value 0 for configuration tasks.max: Value must be at least 1"],
            "records": ["Invalid value many for configuration records: Not a number of type INT"],
            "errors.tolerance": [
                "Invalid value some for configuration errors.tolerance: String must be one of: none, all"
            ],
            "transforms.t.type": [
                'Missing required configuration "transforms.t.type" which has no default value.'
            ],
            "directory": ["Null value can not be supplied as the configuration value."],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", INVALID)
def test_invalid_connector_configuration_is_rejected_with_all_errors(
    workers: list[DistributedWorker], tmp_path: Path, case: str
) -> None:
    """PUT validate lists the errors by key. POST and PUT of a connector fail with the same errors."""
    leader, other = workers
    connector_class, changes, expected = INVALID[case]
    base = sink(tmp_path) if connector_class == "RestSink" else source(tmp_path)
    config: dict[str, Any] = {"name": "c", **base, **changes}
    found = validation_errors(other, config)
    assert found.keys() == expected.keys()
    for key, texts in expected.items():
        assert len(found[key]) == len(texts), found[key]
        assert [a for a, b in zip(found[key], texts, strict=True) if b is not None] == [b for b in texts if b]
    count = sum(len(errors) for errors in found.values())
    for worker in (leader, other):
        for method, path, body in (
            ("POST", "/connectors", {"name": "c", "config": config}),
            ("PUT", "/connectors/c/config", config),
        ):
            status, message = failure(worker, method, path, body)
            assert status == 400
            head, *lines = message.removesuffix(HINT).split("\n")
            assert head == f"Connector configuration is invalid and contains the following {count} error(s):"
            errors = [line for line in lines if not line.startswith("Warning: ")]
            assert sorted(errors) == sorted(error for errors in found.values() for error in errors)
    assert leader.request("GET", "/connectors") == []


def test_sink_whose_default_consumer_group_is_the_worker_group_is_rejected(
    broker: BrokerProcess, plugins: Path, tmp_path: Path
) -> None:
    with single_worker(broker, plugins, tmp_path, "connect-c") as worker:
        message = "Consumer group for sink connector named c conflicts with Connect worker group connect-c"
        assert validation_errors(worker, {"name": "c", **sink(tmp_path)}) == {"name": [message]}


def test_missing_or_unknown_connector_class_is_reported_together_with_the_other_errors(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    config = {**source(tmp_path), "tasks.max": "0"}
    tasks = "Invalid value 0 for configuration tasks.max: Value must be at least 1"
    for worker in workers:
        status, message = failure(worker, "PUT", "/connectors/c/config", {**config, "connector.class": "RestSorce"})
        assert status == 400
        _, first, second = message.removesuffix(HINT).split("\n")
        assert first.startswith("Invalid value RestSorce for configuration connector.class: Failed to find any class")
        assert second == tasks
        del (nameless := dict(config))["connector.class"]
        status, message = failure(worker, "POST", "/connectors", {"name": "c", "config": nameless})
        missing = 'Missing required configuration "connector.class" which has no default value.'
        assert (status, message.removesuffix(HINT).split("\n")[1:]) == (400, [missing, tasks])
        path = "/connector-plugins/RestSink/config/validate"
        mismatch = "Included connector type RestSource does not match request type RestSink"
        assert failure(worker, "PUT", path, config) == (400, mismatch)


def test_validation_response_has_the_json_format_of_kafka_connect(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    config = {"name": "c", **source(tmp_path), "tasks.max": "x", "recrods": "5"}
    result = workers[1].request("PUT", "/connector-plugins/RestSource/config/validate", config)
    assert result.keys() == {"name", "error_count", "groups", "configs", "warnings"}
    assert result["warnings"] == ["Unknown configuration key recrods is ignored; did you mean records?"]
    assert (result["name"], result["error_count"]) == ("RestSource", 1)
    assert result["groups"][:4] == ["Common", "Transforms", "Predicates", "Error Handling"]
    by_name = {each["value"]["name"]: each for each in result["configs"]}
    tasks = by_name["tasks.max"]
    assert tasks["definition"] == {
        **tasks["definition"],
        "name": "tasks.max",
        "type": "INT",
        "required": False,
        "default_value": "1",
        "importance": "HIGH",
        "group": "Common",
        "width": "SHORT",
        "display_name": "Tasks max",
        "dependents": [],
        "order": 4,
    }
    assert tasks["value"] == {
        "name": "tasks.max",
        "value": None,
        "recommended_values": [],
        "errors": ["Invalid value x for configuration tasks.max: Not a number of type INT"],
        "visible": True,
    }
    assert by_name["records"]["value"]["value"] == "0"
    assert by_name["recrods"] == {
        "definition": None,
        "value": {"name": "recrods", "value": None, "recommended_values": ["records"], "errors": [], "visible": True},
    }


def test_unknown_configuration_keys_are_stored_and_logged_with_the_nearest_known_key(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    leader, other = workers
    requests = [
        ("POST", "/connectors", {"name": "c", "config": source(tmp_path, recrods="5")}),
        ("PUT", "/connectors/c/config", source(tmp_path, topci="t")),
        ("PATCH", "/connectors/c/config", {"alter.reslut": "true"}),
    ]
    for (method, path, body), warning in zip(
        requests, ("recrods is ignored; did you mean records?", "topci is ignored; did you mean topic?",
                   "alter.reslut is ignored; did you mean alter.result?"), strict=True,
    ):  # fmt: skip
        other.request(method, path, body)
        assert f"Unknown configuration key {warning}" in leader.log()
    assert other.request("GET", "/connectors/c/config") == {
        "name": "c",
        **source(tmp_path, topci="t"),
        "alter.reslut": "true",
    }


# Client overrides (KIP-458, KIP-1188)

OVERRIDES = {
    "consumer.override.client.id": "c",
    "consumer.override.sasl.mechanism": "PLAIN",
    "consumer.override.max.poll.records": "7",
}


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("None", ["client.id", "sasl.mechanism", "max.poll.records"]),
        ("Principal", ["client.id", "max.poll.records"]),
        ("Allowlist", ["sasl.mechanism", "max.poll.records"]),
    ],
)
def test_client_overrides_are_restricted_by_the_workers_policy(
    broker: BrokerProcess, plugins: Path, tmp_path: Path, policy: str, refused: list[str]
) -> None:
    """The policy rejects the client overrides in `refused`.

    The test also checks two settings that do not depend on the policy. All workers have
    `topic.tracking.allow.reset=false`, so requests to reset active topics return errors. The worker with the policy
    "None" also has `topic.tracking.enable=false`, so requests to read active topics return errors, too.
    """
    settings = {
        "connector_client_config_override_policy": policy,
        "connector_client_config_override_allowlist": "client.id",
        "topic_tracking_enable": str(policy != "None").lower(),
        "topic_tracking_allow_reset": "false",
    }
    with single_worker(broker, plugins, tmp_path, f"policy-{policy.lower()}", **settings) as worker:
        config = sink(tmp_path, **OVERRIDES)
        assert validation_errors(worker, {"name": "c", **config}) == {
            f"consumer.override.{key}": [
                f"The '{policy}' policy does not allow '{key}' to be overridden in the connector configuration."
            ]
            for key in refused
        }
        status, message = failure(worker, "PUT", "/connectors/c/config", config)
        assert (status, message.count(f"The '{policy}' policy does not allow")) == (400, len(refused))
        allowed = {key: value for key, value in config.items() if key.partition(".override.")[2] not in refused}
        worker.create("c", allowed, initial_state="STOPPED")

        tracking = policy != "None"
        disabled = "Topic tracking reset is disabled." if tracking else "Topic tracking is disabled."
        assert failure(worker, "PUT", "/connectors/c/topics/reset") == (403, disabled)
        if tracking:
            assert worker.request("GET", "/connectors/c/topics") == {"c": {"topics": []}}
        else:
            assert failure(worker, "GET", "/connectors/c/topics") == (403, disabled)


def test_distributed_worker_rejects_a_transform_with_python_code_by_default(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    marker = tmp_path / "executed"
    expression = f"open({str(marker)!r}, 'w')"
    config = source(tmp_path, transforms="code") | {
        "transforms.code.type": "Python",
        "transforms.code.expression": expression,
    }
    for worker in workers:
        status, message = failure(worker, "POST", "/connectors", {"name": "code", "config": config})
        assert status == 400
        assert "transforms.code.type" in message
        assert "python.transform.enable is not set, and false by default in a distributed worker" in message
    assert not marker.exists()


def test_client_override_policy_all_permits_every_client_override(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    config = sink(tmp_path, **{key: value for key, value in OVERRIDES.items() if "sasl" not in key})
    assert validation_errors(workers[1], {"name": "c", **config}) == {}
    workers[1].create("c", config)
    wait_for(lambda: is_running(workers[1], "c", 1), "the connector is running", 60)


# Changes


def test_patch_request_can_change_add_and_remove_keys_of_a_connector_configuration(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    leader, other = workers
    other.create("c", source(tmp_path, unchanged="1", removed="2", **{"tasks.max": "2"}))
    wait_for(lambda: is_running(other, "c", 2), "two tasks are running", 60)
    patched = other.request("PATCH", "/connectors/c/config", {"tasks.max": "3", "added": "x", "removed": None})
    expected = {"name": "c", **source(tmp_path, unchanged="1", **{"tasks.max": "3"}), "added": "x"}
    assert patched["config"] == expected
    assert patched["type"] == "source"
    for worker in workers:
        wait_for(lambda w=worker: is_running(w, "c", 3), "three tasks are running", 60)
        assert worker.request("GET", "/connectors/c/config") == expected
    rejected = failure(leader, "PATCH", "/connectors/c/config", {"tasks.max": "0", "records": "x"})
    assert rejected[0] == 400
    assert "contains the following 2 error(s):" in rejected[1]
    for body in ({"name": "d"}, {"a": {"b": 1}}, {"a": []}):
        assert failure(other, "PATCH", "/connectors/c/config", body)[0] == 400
    assert other.request("PATCH", "/connectors/c/config", {"name": None, "a": None})["config"] == expected


def test_leader_writes_task_configurations_again_after_the_configuration_of_a_paused_connector_changes(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    """Without the repeated records, workers that read the compacted topic would ignore the tasks (KAFKA-17719)."""
    leader, other = workers
    other.create("c", source(tmp_path, **{"tasks.max": "2"}))
    wait_for(lambda: is_running(other, "c", 2), "two tasks are running", 60)
    other.request("PUT", "/connectors/c/pause")
    before = len(read_topic(leader.bootstrap_servers(), "connect-configs"))
    other.request("PATCH", "/connectors/c/config", {"added": "x"})

    def written() -> list[str]:
        messages = read_topic(leader.bootstrap_servers(), "connect-configs")[before:]
        return [key for each in messages if (key := (each.key() or b"").decode()) != "session-key"]

    expected = ["connector-c", "task-c-0", "task-c-1", "commit-c"]
    wait_for(lambda: len(written()) >= len(expected), "the task configurations are written again", 60)
    assert written() == expected
    other.request("PUT", "/connectors/c/resume")
    for worker in workers:
        wait_for(lambda w=worker: is_running(w, "c", 2), "two tasks are running", 60)


def test_connector_configurations_in_rest_responses_have_the_key_order_of_kafka_connect(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    """Responses to POST and PUT have the submitted order of keys.

    Configurations that the worker has read from the config topic have the order of Java's HashMap.
    """
    leader, other = workers
    config = {"z": "1", "a": "2", **source(tmp_path), **{f"key.{n}": str(n) for n in range(20, 0, -1)}}
    submitted = [*config, "name"]
    assert list(other.create("c", config)["config"]) == submitted
    for worker in workers:
        in_java_order = list(hash_map_order(submitted))
        assert in_java_order != submitted
        assert list(worker.request("GET", "/connectors/c")["config"]) == in_java_order
        assert list(worker.request("GET", "/connectors/c/config")) == in_java_order
        assert list(worker.request("PUT", "/connectors/c/config", config)["config"]) == submitted
    wait_for(lambda: is_running(leader, "c", 1), "the connector is running", 60)
    messages = read_topic(leader.bootstrap_servers(), "connect-configs")
    written = [json.loads(each.value() or b"{}").get("properties", {}) for each in messages]
    assert [list(each) for each in written if "key.20" in each and "task.class" not in each] == [submitted] * 3
    patched = other.request("PATCH", "/connectors/c/config", {"b": "3"})["config"]
    assert list(patched) == list(hash_map_order([*in_java_order, "b"]))


@pytest.mark.parametrize("state", ["RUNNING", "paused", "Stopped"])
def test_connector_is_created_in_the_requested_initial_state(
    workers: list[DistributedWorker], tmp_path: Path, state: str
) -> None:
    """A connector that is created paused generates no task configurations until it is resumed, as in Kafka Connect."""
    leader, other = workers
    other.create("c", source(tmp_path), initial_state=state)
    for worker in workers:
        wait_for(lambda w=worker: owners(w, "c").get(None, ("",))[0] == state.upper(), "the initial state", 60)
    if state != "RUNNING":
        assert starts(tmp_path) == {}
        assert owners(leader, "c").keys() == {None}
        leader.request("PUT", "/connectors/c/resume")
    for worker in workers:
        wait_for(lambda w=worker: is_running(w, "c", 1), "the connector is running", 60)


@pytest.mark.parametrize("state", ["STARTED", "", "RUNNING ", 1, ["RUNNING"]])
def test_creation_of_a_connector_with_an_invalid_initial_state_is_rejected(
    workers: list[DistributedWorker], tmp_path: Path, state: Any
) -> None:
    message = f"initial_state: {str(state)!r} must be one of RUNNING, PAUSED, STOPPED"
    for worker in workers:
        body = {"name": "c", "config": source(tmp_path), "initial_state": state}
        assert failure(worker, "POST", "/connectors", body) == (400, message)
    assert workers[0].request("GET", "/connectors") == []


def test_connector_with_more_tasks_than_tasks_max_fails_unless_tasks_max_enforce_is_false(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    """While the connector has failed, the tasks of its earlier configuration continue to run (KIP-1004)."""
    leader, other = workers
    many = source(tmp_path, **{"task.count": "3", "tasks.max": "2"})

    def has_failed() -> bool:
        if owners(other, "c").get(None, ("",))[0] != "FAILED":
            return False
        text = "has generated 3 tasks, which is greater than 2, the maximum number of tasks it is configured to create"
        return text in other.status("c")["connector"]["trace"]

    other.create("c", many)
    wait_for(has_failed, "the connector has failed", 60)
    assert other.status("c")["tasks"] == []
    other.request("PUT", "/connectors/c/config", {**many, "tasks.max.enforce": "false"})
    for worker in workers:
        wait_for(lambda w=worker: is_running(w, "c", 3), "three tasks are running", 60)
    other.request("PUT", "/connectors/c/config", many)
    wait_for(has_failed, "the connector has failed again", 60)
    assert [task["state"] for task in leader.status("c")["tasks"]] == ["RUNNING"] * 3


# Requests during a rebalance


def test_rest_request_during_a_rebalance_waits_until_the_rebalance_has_completed(
    broker: BrokerProcess, plugins: Path, tmp_path: Path
) -> None:
    """SIGSTOP freezes the second worker, so the rebalance completes only after this worker's session has expired."""
    topics = {f"{kind}.storage.topic": f"waiting-{kind}" for kind in ("config", "offset", "status")}
    settings = {"group.id": "waiting", **topics, "plugin.path": str(plugins)}
    with worker_group(tmp_path, broker.address, 2, settings) as [leader, other]:
        process = psutil.Process(other.pid)
        process.send_signal(signal.SIGSTOP)
        try:
            generations = leader.log().count("joined generation")
            leader.create("c", source(tmp_path))  # a new connector starts a rebalance
            assert leader.request("GET", "/connectors/c/config")["topic"] == "configured"  # reads do not wait
            assert leader.request("PATCH", "/connectors/c/config", {"topic": "d"})["config"]["topic"] == "d"
            assert leader.log().count("joined generation") > generations
            wait_for(lambda: is_running(leader, "c", 1), "the connector is running", 60)
        finally:
            process.send_signal(signal.SIGCONT)
        wait_for(lambda: is_running(other, "c", 1), "the second worker has joined again", 60)


@pytest.mark.slow
def test_configuration_change_fails_with_a_reason_while_the_broker_is_frozen_and_succeeds_afterwards(
    plugins: Path, tmp_path: Path
) -> None:
    """SIGSTOP freezes the broker. Requests succeed again after SIGCONT."""
    with running_broker(tmp_path) as own, single_worker(own, plugins, tmp_path, "timeouts") as worker:
        worker.create("c", source(tmp_path))
        wait_for(lambda: is_running(worker, "c", 1), "the connector is running", 60)
        process = psutil.Process(own.pid)
        process.send_signal(signal.SIGSTOP)
        try:
            body = json.dumps(source(tmp_path, "other")).encode()
            connection = http.client.HTTPConnection(worker.worker_id, timeout=120)
            connection.request("PUT", "/connectors/c/config", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            message = json.loads(response.read())["message"]
            connection.close()
        finally:
            process.send_signal(signal.SIGCONT)
        assert response.status == 500
        timed_out = r"Request timed out\. The worker is currently .+, which began at .+Z\."
        not_written = (
            "Failed to write to config topic; this may be due to a transient error and the request can be safely "
            "retried"
        )
        assert re.fullmatch(f"{timed_out}|{not_written}", message)

        def can_be_changed() -> bool:
            try:
                return bool(worker.request("PUT", "/connectors/c/config", source(tmp_path, "again"))["name"] == "c")
            except RestError:
                return False

        wait_for(can_be_changed, "requests succeed again", 120)


def test_requests_to_all_workers_succeed_while_connectors_are_created_and_deleted(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    """Each creation and deletion causes rebalances. All other requests wait for these rebalances and never fail."""
    errors: list[str] = []

    def change(worker: DistributedWorker, prefix: str) -> None:
        try:
            for number in range(6):
                name = f"{prefix}-{number}"
                worker.create(name, source(tmp_path), initial_state="STOPPED")
                worker.request("PATCH", f"/connectors/{name}/config", {"a": "1"})
                worker.request("PUT", f"/connectors/{name}/stop")
                worker.request("DELETE", f"/connectors/{name}/offsets")
                worker.request("DELETE", f"/connectors/{name}")
        except RestError as error:
            errors.append(f"{worker.url} {error}")

    threads = [
        threading.Thread(target=change, args=(worker, f"{n}-{m}")) for n, worker in enumerate(workers) for m in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert workers[0].request("GET", "/connectors") == []


# Standalone workers


def test_standalone_worker_supports_the_rest_requests_of_a_distributed_worker(plugins: Path, tmp_path: Path) -> None:
    file = tmp_path / "stopped.json"
    config = source(tmp_path)
    file.write_text(json.dumps({"name": "file", "config": config, "initial_state": "STOPPED"}))
    with Worker(tmp_path, {"plugin.path": str(plugins)}, [file]) as worker:
        assert worker.status("file")["connector"]["state"] == "STOPPED"
        assert starts(tmp_path) == {}
        assert worker.request("GET", "/health") == {
            "status": "healthy",
            "message": "Worker has completed startup and is ready to handle requests.",
            "failed_connectors": [],
            "failed_tasks": [],
        }
        worker.request("PUT", "/connectors/file/resume")
        worker.wait_for_state("file", "RUNNING", 60)
        response = worker.request("POST", "/connectors/file/restart?includeTasks=true")
        assert [each["state"] for each in (response["connector"], *response["tasks"])] == ["RESTARTING"] * 2
        worker.wait_for_state("file", "RUNNING", 60)
        assert failure(worker, "POST", "/connectors/none/restart") == (404, "Unknown connector: none")
        for method, path, body in (("POST", "/connectors/file/tasks", []), ("PUT", "/connectors/file/fence", None)):
            message = "Kafka Connect in standalone mode does not support this internal request."
            assert failure(worker, method, path, body) == (500, message)
        path = "/admin/loggers/headrace.cli.files"
        assert worker.request("PUT", path, {"level": "ERROR"}) == ["headrace.cli.files"]
        assert worker.request("PUT", f"{path}?scope=cluster", {"level": "DEBUG"}) == ""
        assert worker.request("GET", path)["level"] == "DEBUG"
        status, message = failure(worker, "PUT", "/connectors/file/config", {**config, "topic": None, "records": "x"})
        assert status == 400
        assert "contains the following 2 error(s):" in message
