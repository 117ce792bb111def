"""Tests of a group of distributed worker processes with a broker of headrace or of Apache Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support import apache
from support.broker import running_broker
from support.distributed import DistributedWorker, is_running, owners, worker_group
from support.topics import read_topic
from support.worker import RestError, wait_for

pytestmark = pytest.mark.integration

STRING = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}


class Broker(Protocol):
    """A running broker."""

    @property
    def address(self) -> str:
        """The address for clients."""


@pytest.fixture(scope="module")
def apache_broker() -> Iterator[Broker]:
    with apache.broker(flags=apache.SHORT_RUN_FLAGS) as running:
        yield running


def apache_kafka(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Yield the Apache Kafka broker that the tests of this module share. Delete its topics after the test."""
    running: Broker = request.getfixturevalue("apache_broker")
    yield running
    admin = AdminClient({"bootstrap.servers": running.address})
    if topics := used_topics(admin):
        for deleted in admin.delete_topics(topics).values():
            deleted.result(30)
    wait_for(lambda: not used_topics(admin), "the topics are deleted")


def used_topics(admin: AdminClient) -> list[str]:
    return [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]


@pytest.fixture(
    params=[
        "headrace",
        pytest.param(
            "apache",
            marks=[
                pytest.mark.jvm,
                pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
            ],
        ),
    ]
)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "apache":
        yield from apache_kafka(request)
        return
    with running_broker(tmp_path, **{"group.initial.rebalance.delay.ms": "0"}) as running:
        yield running


@pytest.fixture
def workers(broker: Broker, tmp_path: Path) -> Iterator[list[DistributedWorker]]:
    with worker_group(tmp_path, broker.address, 2) as running:
        yield running


def file_source(directory: Path, number: int, topic: str = "lines") -> dict[str, str]:
    file = directory / f"in-{number}.txt"
    file.write_text(f"line {number}\n")
    return {"connector.class": "FileStreamSource", "file": str(file), "topic": topic, **STRING}


def everything(worker: DistributedWorker) -> dict[tuple[str, int | None], tuple[str, str]]:
    return {
        (name, task): owner
        for name in worker.request("GET", "/connectors")
        for task, owner in owners(worker, name).items()
    }


def values(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    return [message.value() for message in read_topic(bootstrap_servers, topic)]


def test_connectors_are_balanced_over_two_workers_and_continue_on_one_without_loss_or_duplicates_after_a_kill(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    first, second = workers
    for number in range(4):
        second.create(f"source-{number}", file_source(tmp_path, number))

    def all_run() -> bool:
        return all(is_running(first, f"source-{number}", 1) for number in range(4))

    def is_balanced() -> bool:
        found = everything(first)
        counts = [sum(owner == worker.worker_id for _, owner in found.values()) for worker in workers]
        return everything(second) == found and counts == [4, 4]

    wait_for(all_run, "all tasks are running")
    wait_for(is_balanced, "both workers run two connectors and two tasks")
    wait_for(lambda: len(values(first.bootstrap_servers(), "lines")) == 4, "all lines")
    for number in range(4):
        wait_for(lambda n=number: first.request("GET", f"/connectors/source-{n}/offsets")["offsets"], "the offsets")
    second.kill_group()
    wait_for(
        lambda: {owner for _, owner in everything(first).values()} == {first.worker_id} and all_run(),
        "the first worker runs everything",
        60,
    )
    for number in range(4):
        with open(tmp_path / f"in-{number}.txt", "a") as file:
            file.write(f"more {number}\n")
    wait_for(lambda: len(values(first.bootstrap_servers(), "lines")) == 8, "the lines of the new tasks")
    lines = sorted(values(first.bootstrap_servers(), "lines"), key=str)
    assert lines == [b"%s %d" % (word, number) for word in (b"line", b"more") for number in range(4)]


def test_restarted_worker_group_restores_its_connector_configurations_offsets_and_states(
    broker: Broker, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 1) as [worker]:
        worker.create("running", file_source(tmp_path, 1))
        worker.create("paused", file_source(tmp_path, 2), initial_state="PAUSED")
        worker.create("stopped", file_source(tmp_path, 3))
        worker.wait_for_state("running", "RUNNING")
        wait_for(lambda: worker.request("GET", "/connectors/running/offsets")["offsets"], "the offset")
        worker.request("PUT", "/connectors/stopped/stop")
        configs = worker.request("GET", "/connectors?expand=info")
        offsets = worker.request("GET", "/connectors/running/offsets")
    with worker_group(tmp_path, broker.address, 1) as [worker]:
        worker.wait_for_state("running", "RUNNING")
        wait_for(lambda: owners(worker, "paused").get(None, ("",))[0] == "PAUSED", "the paused connector")
        wait_for(lambda: owners(worker, "stopped").get(None, ("",))[0] == "STOPPED", "the stopped connector")
        assert worker.request("GET", "/connectors?expand=info")["running"] == configs["running"]
        assert worker.request("GET", "/connectors/running/offsets") == offsets
        assert owners(worker, "stopped").keys() == {None}


def test_rest_requests_succeed_on_every_worker_of_a_group(workers: list[DistributedWorker], tmp_path: Path) -> None:
    for worker, name in zip(workers, ("a", "b"), strict=True):
        created: Any = worker.create(name, file_source(tmp_path, 1, name))
        assert created["config"]["name"] == name
        with pytest.raises(RestError, match="already exists") as caught:
            worker.create(name, file_source(tmp_path, 1))
        assert caught.value.status == 409
    wait_for(lambda: all(is_running(workers[0], name, 1) for name in ("a", "b")), "both run")
    for worker in workers:
        for name in ("a", "b"):
            worker.request("POST", f"/connectors/{name}/restart")
            worker.request("POST", f"/connectors/{name}/tasks/0/restart")
            worker.request("POST", f"/connectors/{name}/restart?includeTasks=true")
            wait_for(lambda n=name: is_running(workers[0], n, 1), "it is running after the restarts")
    workers[0].request("PATCH", "/connectors/a/config", {"batch.size": "7"})
    workers[1].request("PATCH", "/connectors/b/config", {"batch.size": "7"})
    for name in ("a", "b"):
        wait_for(
            lambda n=name: workers[0].request("GET", f"/connectors/{n}/tasks")[0]["config"].get("batch.size") == "7",
            "the new task configuration",
        )
    workers[0].request("PUT", "/connectors/a/pause")
    workers[1].request("PUT", "/connectors/b/pause")
    for name in ("a", "b"):
        wait_for(lambda n=name: owners(workers[0], n)[0][0] == "PAUSED", "the paused task")
    workers[0].request("DELETE", "/connectors/a")
    workers[1].request("DELETE", "/connectors/b")
    wait_for(lambda: workers[0].request("GET", "/connectors") == [], "no connectors")


def test_stopping_worker_writes_the_status_unassigned_for_its_connectors_and_tasks(
    broker: Broker, tmp_path: Path
) -> None:
    with worker_group(tmp_path, broker.address, 1, {"status.storage.partitions": "1"}) as [worker]:
        worker.create("source", file_source(tmp_path, 1))
        worker.create("paused", file_source(tmp_path, 2), initial_state="PAUSED")
        wait_for(lambda: is_running(worker, "source", 1), "the source is running")
        wait_for(lambda: owners(worker, "paused").get(None, ("",))[0] == "PAUSED", "the paused connector")
    states: dict[bytes, list[tuple[str, bool]]] = {}
    for message in read_topic(broker.address, "connect-status"):
        key, value = message.key(), json.loads(message.value())
        if not key.startswith(b"status-topic-"):
            states.setdefault(key, []).append((value["state"], value["version"] is not None))
    assert states == {
        b"status-connector-source": [("RUNNING", True), ("UNASSIGNED", False)],
        b"status-task-source-0": [("RUNNING", True), ("UNASSIGNED", False)],
        b"status-connector-paused": [("PAUSED", True), ("UNASSIGNED", False)],
    }


def test_worker_exits_if_an_existing_internal_topic_is_not_compacted(broker: Broker, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("connect-offsets", 1, 1)])["connect-offsets"].result(30)
    worker = DistributedWorker(tmp_path / "worker", broker.address)
    with pytest.raises(AssertionError, match=r"required to have .cleanup\.policy=compact."):
        worker.start()
    assert worker.wait(30) == 2
