"""Tests of the REST API of two real workers: offsets, restarts, topics, errors, forwarding and internal requests.

All tests of the file share the broker and the workers. Each test creates its own connectors, and the fixture `workers`
deletes them. Most tests send each request to both workers: the leader executes it, and the other worker forwards it to
the leader.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from support.broker import BrokerProcess, running_broker
from support.distributed import DistributedWorker, is_running, owners, worker_group
from support.rest_plugins import starts, stops, sunk, write_plugins
from support.topics import read_topic, write_topic
from support.worker import RestError, wait_for

pytestmark = pytest.mark.integration

TEXT = {"key.converter": "StringConverter", "value.converter": "StringConverter"}
NOT_STOPPED = (
    "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the specified "
    "connector by issuing a 'PUT' request to the '/connectors/c/stop' endpoint"
)
ALTERED = "The offsets for this connector have been altered successfully"
RESET = "The offsets for this connector have been reset successfully"
FRAMEWORK_MANAGED = (
    "The Connect framework-managed offsets for this connector have been {0} successfully. However, if this connector "
    "manages offsets externally, they will need to be manually {0} in the system that the connector uses."
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def group(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DistributedWorker]]:
    directory = tmp_path_factory.mktemp("workers")
    settings = {"plugin.path": str(write_plugins(directory))}
    with worker_group(directory, broker.address, 2, settings) as running:
        yield running


@pytest.fixture
def workers(group: list[DistributedWorker], tmp_path: Path) -> Iterator[list[DistributedWorker]]:
    """Yield the workers of the group. The first worker is the leader, because it was started first.

    The fixture depends on `tmp_path`, so that the connectors are deleted before the directory that they use.
    """
    yield group
    for name in group[0].request("GET", "/connectors"):
        path = f"/connectors/{quote(name, safe='')}"
        group[0].request("PUT", f"{path}/stop")
        group[0].request("PATCH", f"{path}/config", {"alter.result": "true"})
        _retry_while_tasks_leave(lambda p=path: group[0].request("DELETE", f"{p}/offsets"), RESET)
        group[0].request("DELETE", path)
    for worker in group:
        wait_for(lambda w=worker: w.request("GET", "/connectors") == [], "no connectors")


def source(directory: Path, topic: str = "", **more: str) -> dict[str, str]:
    config = {"connector.class": "RestSource", "directory": str(directory), "topic": topic or directory.name}
    return {**config, **TEXT, **more}


def sink(directory: Path, topic: str = "", **more: str) -> dict[str, str]:
    config = {"connector.class": "RestSink", "directory": str(directory), "topics": topic or directory.name}
    return {**config, **TEXT, **more}


def failure(worker: DistributedWorker, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Return status and message of the error response to a request."""
    with pytest.raises(RestError) as caught:
        worker.request(method, path, body)
    assert caught.value.body["error_code"] == caught.value.status
    assert caught.value.body.keys() == {"error_code", "message"}
    return caught.value.status, caught.value.body["message"]


def send(
    worker: DistributedWorker, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
) -> tuple[int, Any]:
    """Send a request whose body may be any bytes. Return the status and the JSON value of the response."""
    address = urlsplit(worker.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=100)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content) if content else None
    finally:
        connection.close()


def offsets(worker: DistributedWorker, name: str = "c") -> list[tuple[Any, Any]]:
    found = worker.request("GET", f"/connectors/{name}/offsets")["offsets"]
    return sorted(((each["partition"], each["offset"]) for each in found), key=str)


def pair(partition: Any, offset: Any) -> dict[str, Any]:
    return {"partition": partition, "offset": offset}


def wait_until_running(worker: DistributedWorker, name: str = "c", tasks: int = 1) -> None:
    wait_for(lambda: is_running(worker, name, tasks), f"{name} is running", 40, lambda: owners(worker, name))


def stop(worker: DistributedWorker, name: str = "c") -> None:
    worker.request("PUT", f"/connectors/{name}/stop")
    wait_for(lambda: owners(worker, name).get(None, ("",))[0] == "STOPPED", f"{name} is stopped", 40)


# Offsets (KIP-875)


def test_offset_requests_for_an_unknown_connector_return_404(workers: list[DistributedWorker]) -> None:
    body = {"offsets": [pair({"a": 1}, None)]}
    for worker in workers:
        for method, each in (("GET", None), ("PATCH", body), ("DELETE", None)):
            assert failure(worker, method, "/connectors/none/offsets", each) == (404, "Connector none not found")


def test_connector_offsets_can_be_changed_only_while_the_connector_is_stopped(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    leader, other = workers
    other.create("c", source(tmp_path, **{"alter.result": "true"}))
    wait_until_running(leader)
    wait_for(lambda: offsets(leader) == [({"task": 0}, {"n": 2})], "the offset of the last record")
    change = {"offsets": [pair({"task": 0}, {"n": 0})]}
    for state in ("resume", "pause"):
        other.request("PUT", f"/connectors/c/{state}")
        for worker in workers:
            assert failure(worker, "PATCH", "/connectors/c/offsets", change) == (400, NOT_STOPPED)
            assert failure(worker, "DELETE", "/connectors/c/offsets") == (400, NOT_STOPPED)
    other.request("PUT", "/connectors/c/stop")  # no waiting: the tasks stop before the offsets change
    assert other.request("PATCH", "/connectors/c/offsets", change) == {"message": ALTERED}
    for worker in workers:
        wait_for(lambda w=worker: offsets(w) == [({"task": 0}, {"n": 0})], "the altered offset")


def test_offset_change_of_a_stopping_connector_waits_until_its_tasks_have_stopped_on_all_workers(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    """The tasks produce all the time and commit their last offsets when they stop.

    The change must wait for these commits.
    """
    leader, other = workers
    endless = {"tasks.max": "2", "records": "1000000000", "stop.seconds": "0.5", "alter.result": "true"}
    other.create("c", source(tmp_path, **endless))
    wait_for(lambda: len(offsets(leader)) == 2, "the offsets of both tasks", 60)
    wait_for(lambda: len({owners(leader, "c")[task][1] for task in (0, 1)}) == 2, "each worker runs a task", 60)
    before = stops(tmp_path)
    other.request("PUT", "/connectors/c/stop")
    change = {"offsets": [pair({"task": 0}, {"n": -1}), pair({"task": 1}, {"n": -1})]}
    assert other.request("PATCH", "/connectors/c/offsets", change) == {"message": ALTERED}
    assert sorted((stops(tmp_path) - before).elements()) == ["c-0", "c-1"]
    for worker in workers:
        expected = [({"task": task}, {"n": -1}) for task in (0, 1)]
        wait_for(lambda w=worker, e=expected: offsets(w) == e, "the altered offsets")


@pytest.mark.parametrize("number", [0, 1], ids=["sent to the leader", "forwarded to the leader"])
def test_offsets_of_a_stopped_source_connector_are_altered_and_reset_over_rest(
    workers: list[DistributedWorker], tmp_path: Path, number: int
) -> None:
    worker, topic = workers[number], f"{tmp_path.name}-{number}"
    worker.create("c", source(tmp_path, topic, **{"tasks.max": "2"}))
    all_read = [({"task": 0}, {"n": 2}), ({"task": 1}, {"n": 2})]
    wait_for(lambda: offsets(worker) == all_read, "the offsets of all records", 40)
    stop(worker)
    change = {"offsets": [pair({"task": 0}, {"n": 1}), pair({"task": 1}, None)]}
    message = FRAMEWORK_MANAGED.format("altered")
    assert worker.request("PATCH", "/connectors/c/offsets", change) == {"message": message}
    wait_for(lambda: offsets(worker) == [({"task": 0}, {"n": 1})], "the altered offsets")
    worker.request("PATCH", "/connectors/c/config", {"alter.result": "true"})
    assert worker.request("PATCH", "/connectors/c/offsets", change) == {"message": ALTERED}
    worker.request("PUT", "/connectors/c/resume")
    wait_for(lambda: offsets(worker) == all_read, "the offsets of all records again", 40)
    produced = sorted(message.value() for message in read_topic(worker.bootstrap_servers(), topic))
    assert produced == sorted([b"0", b"1", b"2"] * 2 + [b"2"] + [b"0", b"1", b"2"])
    stop(worker)
    for _ in range(2):  # a reset without offsets succeeds, too
        assert worker.request("DELETE", "/connectors/c/offsets") == {"message": RESET}
        wait_for(lambda: offsets(worker) == [], "no offsets")


def test_offset_change_that_the_connector_rejects_returns_400_with_the_connectors_error(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    workers[1].create("c", source(tmp_path, **{"alter.result": "error"}), initial_state="STOPPED")
    change = {"offsets": [pair({"task": 0}, {"n": 1})]}
    assert failure(workers[1], "PATCH", "/connectors/c/offsets", change) == (400, "these offsets are not acceptable")
    assert offsets(workers[1]) == []


@pytest.mark.parametrize("group_id", ["connect-c", "another-group"])
def test_offsets_of_a_stopped_sink_connector_are_altered_and_reset_over_rest(
    workers: list[DistributedWorker], tmp_path: Path, group_id: str
) -> None:
    leader, other = workers
    topic = f"{tmp_path.name}-{group_id}"
    write_topic(leader.bootstrap_servers(), topic, [(None, b"%d" % n) for n in range(5)])
    config = sink(tmp_path, topic)
    if group_id != "connect-c":
        config["consumer.override.group.id"] = group_id
    other.create("c", config)
    partition = {"kafka_topic": topic, "kafka_partition": 0}
    for worker in workers:
        wait_for(lambda w=worker: offsets(w) == [(partition, {"kafka_offset": 5})], "all records are committed", 40)
    stop(other)
    message = FRAMEWORK_MANAGED.format("altered")
    for worker, new in ((leader, 3), (other, "2")):  # numbers may be strings
        change = {"offsets": [pair({"kafka_topic": topic, "kafka_partition": "0"}, {"kafka_offset": new})]}
        _retry_while_tasks_leave(lambda w=worker, c=change: w.request("PATCH", "/connectors/c/offsets", c), message)
        assert offsets(worker) == [(partition, {"kafka_offset": int(new)})]
    altered = (tmp_path / "altered").read_text().splitlines()
    assert altered[-1] == repr([((topic, 0), {"kafka_offset": 2})])
    other.request("PUT", "/connectors/c/resume")
    values = [value for name, value in sunk(tmp_path) if name == topic]
    assert values == ["0", "1", "2", "3", "4"]
    wait_for(lambda: [value for _, value in sunk(tmp_path)][5:] == ["2", "3", "4"], "the records from offset 2", 40)
    wait_for(lambda: offsets(other) == [(partition, {"kafka_offset": 5})], "all records are committed again", 40)
    stop(other)
    other.request("PATCH", "/connectors/c/config", {"alter.result": "true"})
    for worker in workers:  # the second reset finds no group
        _retry_while_tasks_leave(lambda w=worker: w.request("DELETE", "/connectors/c/offsets"), RESET)
        assert offsets(worker) == []
    assert (tmp_path / "altered").read_text().splitlines()[-2:] == [repr([((topic, 0), None)]), "[]"]


def _retry_while_tasks_leave(request: Any, message: str) -> None:
    """Retry the request until the stopped tasks have left their consumer group, as the error message recommends."""

    def succeeds() -> bool:
        try:
            response = request()
        except RestError as error:
            if "this operation can be safely retried" not in error.body["message"]:
                raise
            return False
        return bool(response == {"message": message})

    wait_for(succeeds, "the tasks have left the consumer group", 40)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": []}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": [{}]}, "The partition for a sink connector offset cannot be null or missing"),
        ({"offsets": [pair(None, None)]}, "The partition for a sink connector offset cannot be null or missing"),
        (
            {"offsets": [pair({}, None)]},
            "The partition for a sink connector offset must contain the keys 'kafka_topic' and 'kafka_partition'",
        ),
        (
            {"offsets": [pair({"kafka_topic": None, "kafka_partition": 0}, None)]},
            "Kafka topic names must be valid strings and may not be null",
        ),
        (
            {"offsets": [pair({"kafka_topic": "t", "kafka_partition": None}, None)]},
            "Kafka partitions must be valid numbers and may not be null",
        ),
        (
            {"offsets": [pair({"kafka_topic": "t", "kafka_partition": "not a number"}, None)]},
            "Failed to parse the following Kafka partition value in the provided offsets: 'not a number'. Partition "
            "values for sink connectors need to be integers.",
        ),
        (
            {"offsets": [pair({"kafka_topic": "t", "kafka_partition": 1}, {})]},
            "The offset for a sink connector should either be null or contain the key 'kafka_offset'",
        ),
        (
            {"offsets": [pair({"kafka_topic": "t", "kafka_partition": 1}, {"kafka_offset": 1.5})]},
            "Failed to parse the following Kafka offset value in the provided offsets: '1.5'. Offset values for sink "
            "connectors need to be integers.",
        ),
    ],
)
def test_invalid_sink_offsets_are_rejected(
    workers: list[DistributedWorker], tmp_path: Path, body: Any, message: str
) -> None:
    workers[0].create("c", sink(tmp_path), initial_state="STOPPED")
    for worker in workers:
        assert failure(worker, "PATCH", "/connectors/c/offsets", body) == (400, message)
    assert not (tmp_path / "altered").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "Partitions / offsets need to be provided for an alter offsets request"),
        ({"key": []}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": {}}, "Partitions / offsets need to be provided for an alter offsets request"),
        ({"offsets": [123]}, "An offset must have the form {partition: {…}, offset: {…} or null}: 123"),
        ({"offsets": [{"key": 1}]}, "An offset must have the form {partition: {…}, offset: {…} or null}: {'key': 1}"),
        (
            {"offsets": [{"partition": []}]},
            "An offset must have the form {partition: {…}, offset: {…} or null}: {'partition': []}",
        ),
        ({"offsets": [{}]}, "The partition for a source connector offset cannot be null or missing"),
        (
            {"offsets": [pair({"a": {"b": 1}}, None)]},
            "Offsets may only contain primitive types as values, but field a contains MAP",
        ),
        (
            {"offsets": [pair({"a": 1}, {"b": [1]})]},
            "Offsets may only contain primitive types as values, but field b contains ARRAY",
        ),
    ],
)
def test_invalid_source_offsets_are_rejected(
    workers: list[DistributedWorker], tmp_path: Path, body: Any, message: str
) -> None:
    workers[0].create("c", source(tmp_path), initial_state="STOPPED")
    for worker in workers:
        assert failure(worker, "PATCH", "/connectors/c/offsets", body) == (400, message)


def test_sink_offsets_cannot_be_changed_while_the_consumer_group_has_a_member(
    workers: list[DistributedWorker], broker: BrokerProcess, tmp_path: Path
) -> None:
    """Another consumer joins the consumer group of a stopped connector, like a sink task that is still running."""
    write_topic(broker.address, tmp_path.name, [(None, b"0")])
    workers[0].create("c", sink(tmp_path), initial_state="STOPPED")
    zombie = Consumer({"bootstrap.servers": broker.address, "group.id": "connect-c", "auto.offset.reset": "earliest"})
    try:
        zombie.subscribe([tmp_path.name])
        wait_for(lambda: zombie.poll(0.1) is not None, "the zombie has received a record", 40)
        text = (
            "Failed to {0} consumer group offsets for connector c either because its tasks haven't stopped completely "
            "yet or the connector was resumed before the request to {0} its offsets could be successfully completed. "
            "If the connector is in a stopped state, this operation can be safely retried. If it doesn't eventually "
            "succeed, the Connect cluster may need to be restarted to get rid of the zombie sink tasks."
        )
        partition = {"kafka_topic": tmp_path.name, "kafka_partition": 0}
        for worker in workers:
            for offset in ({"kafka_offset": 0}, None):
                body = {"offsets": [pair(partition, offset)]}
                assert failure(worker, "PATCH", "/connectors/c/offsets", body) == (500, text.format("alter"))
            assert failure(worker, "DELETE", "/connectors/c/offsets") == (500, text.format("reset"))
    finally:
        zombie.close()


# Restarts (KIP-745)


def test_restart_of_an_unknown_connector_or_task_returns_404(workers: list[DistributedWorker], tmp_path: Path) -> None:
    workers[0].create("c", source(tmp_path), initial_state="STOPPED")
    for worker in workers:
        for query in ("", "?includeTasks=true", "?onlyFailed=true", "?includeTasks=true&onlyFailed=true"):
            path = f"/connectors/none/restart{query}"
            assert failure(worker, "POST", path) == (404, "Unknown connector: none")
        path = "/connectors/none/tasks/0/restart"
        assert failure(worker, "POST", path) == (404, "Unknown connector: none")
        assert failure(worker, "POST", "/connectors/c/tasks/0/restart") == (404, "Unknown task: c-0")
        assert failure(worker, "GET", "/connectors/c/tasks/0/status") == (404, "No status found for task c-0")


def test_every_worker_returns_the_metrics_of_a_task_that_any_worker_runs(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):  # the tasks are distributed to both workers
        workers[0].create(name, sink(tmp_path))
        wait_until_running(workers[0], name)
    assert len({owners(workers[0], name)[0][1] for name in ("a", "b", "c")}) == 2
    for name in ("a", "b", "c"):
        path = f"/connectors/{name}/tasks/0/status"
        for worker in workers:
            found = worker.request("GET", f"{path}?metrics=true")
            assert found.pop("metrics")["running-ratio"] > 0
            assert found == worker.request("GET", path)


RESTARTS = {  # the states in the response, and the instances that are started again, for a failed task c-1
    "?includeTasks=true": (["RESTARTING", "RESTARTING", "RESTARTING"], ["c", "c-0", "c-1"]),
    "?onlyFailed=true": (["RUNNING", "RUNNING", "FAILED"], []),
    "?includeTasks=true&onlyFailed=true": (["RUNNING", "RUNNING", "RESTARTING"], ["c-1"]),
    "?includeTasks=TRUE&onlyFailed=True": (["RUNNING", "RUNNING", "RESTARTING"], ["c-1"]),
}


@pytest.mark.parametrize("query", RESTARTS)
@pytest.mark.parametrize("number", [0, 1], ids=["sent to the leader", "forwarded to the leader"])
def test_restart_request_restarts_only_the_connector_and_tasks_that_its_query_parameters_select(
    workers: list[DistributedWorker], tmp_path: Path, query: str, number: int
) -> None:
    worker = workers[number]
    states, restarted = RESTARTS[query]
    worker.create("c", source(tmp_path, **{"tasks.max": "2"}))
    wait_until_running(worker, tasks=2)
    for each in workers:
        wait_until_running(each, tasks=2)
    before = starts(tmp_path)
    (tmp_path / "failing").write_text("c-1")
    for each in workers:
        each.wait_for_task_state("c", 1, "FAILED", 25)
    assert "c-1 fails on request" in worker.status("c")["tasks"][1]["trace"]
    (tmp_path / "failing").unlink()

    response = worker.request("POST", f"/connectors/c/restart{query}")
    shown = [response["connector"], *response["tasks"]]
    assert [each["state"] for each in shown] == states
    assert response["name"] == "c"
    assert response["type"] == "source"
    assert "c-1 fails on request" in response["tasks"][1]["trace"]
    wait_for(
        lambda: sorted((starts(tmp_path) - before).elements()) == restarted,
        f"exactly {restarted} are started again",
        60,
        lambda: starts(tmp_path) - before,
    )
    if "c-1" in restarted:
        wait_until_running(worker, tasks=2)
    else:
        assert worker.status("c")["tasks"][1]["state"] == "FAILED"


@pytest.mark.parametrize("number", [0, 1], ids=["sent to the leader", "forwarded to the leader"])
def test_restart_of_a_failed_connector_starts_it_again(
    workers: list[DistributedWorker], tmp_path: Path, number: int
) -> None:
    worker = workers[number]
    (tmp_path / "failing").write_text("c")
    worker.create("c", source(tmp_path))

    def has_failed() -> bool:
        return all(owners(each, "c").get(None, ("",))[0] == "FAILED" for each in workers)

    wait_for(has_failed, "the connector has failed", 40)
    path = "/connectors/c/restart?onlyFailed=true"
    before = starts(tmp_path)["c"]
    response = worker.request("POST", path)
    assert response["connector"]["state"] == "RESTARTING"
    assert response["tasks"] == []
    wait_for(lambda: starts(tmp_path)["c"] == before + 1, "the connector is started again", 40)
    wait_for(has_failed, "the connector has failed again", 40)
    status, message = failure(worker, "POST", "/connectors/c/restart")
    assert (status, message.partition(": c: ")[0]) == (500, "Failed to start connector")
    (tmp_path / "failing").unlink()
    assert worker.request("POST", "/connectors/c/restart") == ""  # 204 No Content
    wait_until_running(worker)


# Active topics (KIP-558)


def test_every_worker_shows_the_active_topics_of_a_connector_until_they_are_reset(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    """Each connector is stopped before the reset, because a running connector adds its topic again."""
    leader, other = workers
    other.create("c", source(tmp_path, "active"))
    other.create("d", sink(tmp_path, "active"))
    for worker in workers:
        for name in ("c", "d"):
            expected = {name: {"topics": ["active"]}}
            wait_for(
                lambda w=worker, n=name, e=expected: w.request("GET", f"/connectors/{n}/topics") == e, "the topic", 60
            )
    for name in ("c", "d"):
        stop(leader, name)
        other.request("PUT", f"/connectors/{name}/topics/reset")
    for worker in workers:
        for name in ("c", "d"):
            expected = {name: {"topics": []}}
            wait_for(
                lambda w=worker, n=name, e=expected: w.request("GET", f"/connectors/{n}/topics") == e, "no topics", 60
            )
    assert leader.request("GET", "/connectors/none/topics") == {"none": {"topics": []}}


# Transforms, errors and topic creation


def test_filter_transform_drops_the_records_that_match_its_predicate(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    for topic in ("foo", "bar"):
        write_topic(workers[0].bootstrap_servers(), topic, [(None, b"%d" % n) for n in range(4)] + [(None, None)])
    chain = {
        "transforms": "drop,tombstones",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "is-bar",
        "transforms.tombstones.type": "Filter",
        "transforms.tombstones.predicate": "has-value",
        "transforms.tombstones.negate": "true",
        "predicates": "is-bar,has-value",
        "predicates.is-bar.type": "TopicNameMatches",
        "predicates.is-bar.pattern": "ba.",
        "predicates.has-value.type": "HasHeaderKey",
        "predicates.has-value.name": "h",
    }
    workers[1].create("c", sink(tmp_path, "foo,bar", **chain))
    wait_for(lambda: len(sunk(tmp_path)) == 5, "the records of foo", 40)
    end = [({"kafka_topic": topic, "kafka_partition": 0}, {"kafka_offset": 5}) for topic in ("bar", "foo")]
    wait_for(lambda: offsets(workers[0]) == end, "the dropped records are committed, too", 40)
    assert sorted(sunk(tmp_path), key=str) == sorted([("foo", str(n)) for n in range(4)] + [("foo", None)], key=str)


def test_failed_records_go_to_the_dead_letter_queue_with_context_headers(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    topic, dead = tmp_path.name, f"{tmp_path.name}-dead"
    values = [b"1", b"bad", b"late", b"reported", b"2"]
    write_topic(workers[0].bootstrap_servers(), topic, [(b"key", value) for value in values])
    errors = {
        "errors.tolerance": "all",
        "errors.retry.timeout": "10000",
        "errors.deadletterqueue.topic.name": dead,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        "transforms": "fail",
        "transforms.fail.type": "FailBad",
    }
    workers[1].create("c", sink(tmp_path, topic, **errors))
    end = [({"kafka_topic": topic, "kafka_partition": 0}, {"kafka_offset": 5})]
    wait_for(lambda: offsets(workers[0]) == end, "all records are committed", 40, lambda: workers[0].status("c"))
    assert [value for _, value in sunk(tmp_path)] == ["1", "late", "2"]
    records = {message.value(): message for message in read_topic(workers[0].bootstrap_servers(), dead)}
    assert records.keys() == {b"bad", b"reported"}
    for value, stage, text in ((b"bad", b"TRANSFORMATION", b"is bad"), (b"reported", b"TASK_PUT", b"does not like")):
        assert records[value].key() == b"key"
        headers = dict(records[value].headers() or [])
        assert headers["h"] == b"1"  # the record's own header
        prefix = "__connect.errors."
        context = {name.removeprefix(prefix): each for name, each in headers.items() if name.startswith(prefix)}
        assert context.keys() == {
            "topic", "partition", "offset", "connector.name", "task.id", "stage", "class.name", "exception.class.name",
            "exception.message", "exception.stacktrace",
        }  # fmt: skip
        assert (context["topic"], context["partition"]) == (topic.encode(), b"0")
        assert context["offset"] == b"%d" % values.index(value)
        assert (context["connector.name"], context["task.id"]) == (b"c", b"0")
        assert context["stage"] == stage
        assert text in context["exception.message"]
        assert text in context["exception.stacktrace"].splitlines()[0]


def test_topic_of_a_source_is_created_with_the_configs_of_the_first_matching_topic_creation_group(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    creation = {
        "topic.creation.groups": "wide,compacted",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
        "topic.creation.wide.include": "wide.*",
        "topic.creation.wide.exclude": "wide-not",
        "topic.creation.wide.partitions": "5",
        "topic.creation.compacted.include": ".*-log,wide-log",
        "topic.creation.compacted.cleanup.policy": "compact",
    }
    expected = {"wide-log": (5, "delete"), "a-log": (1, "compact"), "wide-not": (1, "delete")}
    admin = AdminClient({"bootstrap.servers": workers[0].bootstrap_servers()})
    for name in expected:
        workers[1].create(name, source(tmp_path, name, **creation))
        wait_for(lambda n=name: bool(offsets(workers[1], n)), "the records are in the topic", 40)
    found = {}
    for name in expected:
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, name)
        policy = admin.describe_configs([resource])[resource].result(30)["cleanup.policy"].value
        found[name] = (len(admin.list_topics(name, timeout=30).topics[name].partitions), policy)
    assert found == expected


# Requests and their errors


@pytest.mark.parametrize(
    ("method", "path", "message"),
    [
        ("GET", "/connectors/none", "Connector none not found"),
        ("GET", "/connectors/none/config", "Connector none not found"),
        ("GET", "/connectors/none/tasks", "Connector none not found"),
        ("GET", "/connectors/none/status", "No status found for connector none"),
        ("DELETE", "/connectors/none", "Connector none not found"),
        ("PATCH", "/connectors/none/config", "Connector none not found"),
        ("PUT", "/connectors/none/pause", "Unknown connector none"),
        ("PUT", "/connectors/none/resume", "Unknown connector none"),
        ("PUT", "/connectors/none/stop", "Unknown connector none"),
        ("GET", "/none", "HTTP 404 Not Found"),
        ("GET", "/connectors/none/none", "HTTP 404 Not Found"),
    ],
)
def test_requests_for_unknown_connectors_and_paths_return_404(
    workers: list[DistributedWorker], method: str, path: str, message: str
) -> None:
    for worker in workers:
        assert failure(worker, method, path, {} if method == "PATCH" else None) == (404, message)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/connectors"),
        ("PATCH", "/connectors"),
        ("POST", "/connectors/c"),
        ("POST", "/connectors/c/config"),
        ("GET", "/connectors/c/restart"),
        ("POST", "/connectors/c/pause"),
        ("GET", "/connectors/c/stop"),
        ("PUT", "/connectors/c/offsets"),
        ("POST", "/connectors/c/topics/reset"),
        ("POST", "/"),
    ],
)
def test_unsupported_http_method_returns_405(workers: list[DistributedWorker], method: str, path: str) -> None:
    for worker in workers:
        assert failure(worker, method, path, {}) == (405, "HTTP 405 Method Not Allowed")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The request's body is not valid JSON: Input data was truncated"),
        (b"{", "The request's body is not valid JSON: Input data was truncated"),
        (b"name=c", "The request's body is not valid JSON: JSON is malformed: invalid character (byte 4)"),
        (b'{"a":1}}', "The request's body is not valid JSON: JSON is malformed: trailing characters (byte 8)"),
        (b"[]", "The request's body must be a JSON object"),
        (b"null", "The request's body must be a JSON object"),
        (b'"c"', "The request's body must be a JSON object"),
    ],
)
def test_request_body_that_is_not_a_json_object_returns_400(
    workers: list[DistributedWorker], body: bytes, message: str
) -> None:
    for worker in workers:
        for method, path in (("POST", "/connectors"), ("PUT", "/connectors/c/config")):
            expected = {"error_code": 400, "message": message}
            headers = {"Content-Type": "application/json"}
            assert send(worker, method, path, body, headers) == (400, expected)


@pytest.mark.parametrize(
    "name", ["a/b", "100%", "%2F", "zażółć gęślą 🐍", "a b+c", "..", "?x=1#y", 'quo"te', "back\\slash", "semi;colon"]
)
def test_connector_name_may_contain_special_characters(
    workers: list[DistributedWorker], tmp_path: Path, name: str
) -> None:
    path = f"/connectors/{quote(name, safe='')}"
    leader, other = workers
    config = source(tmp_path, "named")
    assert other.create(name, config)["name"] == name
    for worker in workers:
        wait_until_running(worker, quote(name, safe=""))
        assert worker.request("GET", "/connectors") == [name]
        assert worker.request("GET", path)["config"]["name"] == name
        worker.request("POST", f"{path}/restart")
        worker.request("POST", f"{path}/tasks/0/restart")
        worker.request("PATCH", f"{path}/config", {"batch": worker.url})
    leader.request("PUT", f"{path}/pause")
    wait_for(lambda: owners(leader, quote(name, safe="")).get(0, ("",))[0] == "PAUSED", "the task is paused", 40)
    stop(other, quote(name, safe=""))
    other.request("DELETE", f"{path}/offsets")
    other.request("DELETE", path)
    assert leader.request("GET", "/connectors") == []


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "Invalid value  for configuration name: String may not be empty"),
        (None, "Invalid value  for configuration name: String may not be empty"),
        ("  ", "Invalid value  for configuration name: String may not be empty"),
        (
            "a\nb\x7f",
            "Invalid value a\nb\x7f for configuration name: String may not contain control sequences but had the "
            "following ASCII chars: 10, 127",
        ),
    ],
)
def test_connector_name_that_is_empty_or_contains_control_characters_is_rejected(
    workers: list[DistributedWorker], tmp_path: Path, name: str | None, error: str
) -> None:
    for worker in workers:
        body = {"name": name, "config": source(tmp_path)}
        status, message = failure(worker, "POST", "/connectors", body)
        assert status == 400
        assert message.splitlines()[0].endswith("contains the following 1 error(s):")
        assert error in message


def test_configuration_whose_connector_name_differs_from_the_name_in_the_request_is_rejected(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    mismatch = "Connector name configuration (other) doesn't match connector name in the URL (c)"
    config = source(tmp_path, name="other")
    for worker in workers:
        assert failure(worker, "PUT", "/connectors/c/config", config) == (400, mismatch)
        assert failure(worker, "POST", "/connectors", {"name": "c", "config": config}) == (400, mismatch)
        nameless = "Connector name configuration (other) doesn't match connector name in the URL ()"
        assert failure(worker, "POST", "/connectors", {"config": config}) == (400, nameless)
    assert workers[0].request("GET", "/connectors") == []


def test_creation_of_a_connector_that_exists_returns_409(workers: list[DistributedWorker], tmp_path: Path) -> None:
    workers[1].create("c", source(tmp_path), initial_state="STOPPED")
    for worker in workers:
        body = {"name": "c", "config": source(tmp_path)}
        assert failure(worker, "POST", "/connectors", body) == (409, "Connector c already exists")


def test_concurrent_changes_and_deletions_of_a_connector_succeed_or_return_404(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    """PUT creates a deleted connector again. The response to PUT always contains the submitted configuration."""
    results: list[tuple[str, int, Any]] = []

    def repeat(worker: DistributedWorker, method: str, path: str, config: dict[str, str] | None) -> None:
        body = None if config is None else json.dumps(config).encode()
        results.extend((method, *send(worker, method, path, body)) for _ in range(15))

    config = source(tmp_path, "raced", **{"tasks.max": "1"})
    threads = [
        threading.Thread(target=repeat, args=(workers[0], "PUT", "/connectors/c/config", config)),
        threading.Thread(target=repeat, args=(workers[1], "DELETE", "/connectors/c", None)),
        threading.Thread(target=repeat, args=(workers[1], "PATCH", "/connectors/c/config", {"tasks.max": "2"})),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 45
    for method, status, body in results:
        if method == "PUT":
            assert status in (200, 201)
            assert body["config"] == {"name": "c", **config}
        elif status == 404:
            assert body == {"error_code": 404, "message": "Connector c not found"}
        else:
            assert status == (204 if method == "DELETE" else 200), body
    workers[1].request("PUT", "/connectors/c/config", config)
    wait_until_running(workers[0])


def test_json_numbers_and_booleans_in_a_connector_configuration_are_stored_as_the_submitted_text(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    text = json.dumps({**source(tmp_path), "records": 0, "a.flag": True})[:-1] + ', "a.number": 1e3, "b.number": 1.50}'
    status, body = send(workers[1], "PUT", "/connectors/c/config", text.encode())
    assert status == 201
    stored = workers[0].request("GET", "/connectors/c/config")
    for config in (body["config"], stored):
        keys = ("records", "a.flag", "a.number", "b.number")
        assert [config[key] for key in keys] == ["0", "true", "1e3", "1.50"]


# Internal requests (KIP-507)


def test_internal_rest_requests_without_a_valid_signature_are_rejected(
    workers: list[DistributedWorker], broker: BrokerProcess, tmp_path: Path
) -> None:
    workers[1].create("c", source(tmp_path), initial_state="STOPPED")
    keys = [
        json.loads(message.value() or b"")
        for message in read_topic(broker.address, "connect-configs")
        if message.key() == b"session-key"
    ]
    key = base64.b64decode(keys[-1]["key"])

    def signed(body: bytes, algorithm: str = "HmacSHA256", digest: str = "sha256") -> dict[str, str]:
        mac = hmac.new(key, body, getattr(hashlib, digest)).digest()
        return {
            "X-Connect-Authorization": base64.b64encode(mac).decode(),
            "X-Connect-Request-Signature-Algorithm": algorithm,
        }

    unsupported = (
        "This worker does not support the 'HmacSHA1' key signing algorithm used by other workers. This worker is "
        "currently configured to use: [HmacSHA256]. Check that all workers' configuration files permit the same set "
        "of signature algorithms, and correct any misconfigured worker and restart it."
    )
    for worker in workers:
        for method, path, body in (("POST", "/connectors/c/tasks", b"[]"), ("PUT", "/connectors/c/fence", b"")):
            cases: list[tuple[Mapping[str, str], int, str]] = [
                ({}, 400, "Internal request missing required signature"),
                (signed(b"other"), 403, "Internal request contained invalid signature."),
                (signed(body, "HmacSHA1", "sha1"), 400, unsupported),
            ]
            for headers, status, message in cases:
                expected = {"error_code": status, "message": message}
                assert send(worker, method, path, body, headers) == (status, expected)
        assert send(worker, "POST", "/connectors/c/tasks", b"[]", signed(b"[]")) == (204, None)
        for body, message in (
            (b"{}", "The request's body must be a list of task configurations"),
            (b"[1]", "The request's body must be a list of task configurations"),
            (b'[{"a":"b"}]', "Cannot submit non-empty set of task configs for stopped connector c"),
        ):
            expected = {"error_code": 400, "message": message}
            assert send(worker, "POST", "/connectors/c/tasks", body, signed(body)) == (400, expected)
        missing = {"error_code": 404, "message": "Connector none not found"}
        assert send(worker, "POST", "/connectors/none/tasks", b"[]", signed(b"[]")) == (404, missing)
        assert send(worker, "PUT", "/connectors/none/fence", b"", signed(b"")) == (404, missing)
        disabled = {"error_code": 500, "message": "exactly.once.source.support is disabled on this worker"}
        assert send(worker, "PUT", "/connectors/c/fence", b"", signed(b"")) == (500, disabled)


def test_forwarded_request_returns_409_if_the_receiving_worker_is_not_the_leader(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    workers[0].create("c", source(tmp_path), initial_state="STOPPED")
    message = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
    assert failure(workers[1], "DELETE", "/connectors/c?forward=false") == (409, message)
    workers[1].request("DELETE", "/connectors/c?forward=true")
    assert workers[0].request("GET", "/connectors") == []


@pytest.mark.parametrize("state", ["pause", "resume"])
def test_pause_and_resume_are_executed_by_the_leader(
    workers: list[DistributedWorker], tmp_path: Path, state: str
) -> None:
    """Only the leader writes a target state.

    If another worker wrote a target state while the leader deletes the connector, the state would never be deleted.
    """
    workers[0].create("c", source(tmp_path), initial_state="PAUSED")
    path = f"/connectors/c/{state}"
    assert failure(workers[1], "PUT", f"{path}?forward=false")[0] == 409
    workers[1].request("PUT", path)
    expected = {"pause": "PAUSED", "resume": "RUNNING"}[state]
    wait_for(lambda: owners(workers[1], "c").get(None, ("",))[0] == expected, f"c is {expected}", 40)


# Loggers (KIP-495, KIP-976)


def test_log_level_request_applies_to_one_worker_or_to_all_workers_depending_on_its_scope(
    workers: list[DistributedWorker],
) -> None:
    first, second = workers
    name = "headrace.rest.openapi"
    path = f"/admin/loggers/{name}"
    assert failure(first, "PUT", path, {}) == (400, "Desired 'level' parameter was not specified in request.")
    for scope in ("", "?scope=worker", "?scope=cluster"):
        assert failure(first, "PUT", f"{path}{scope}", {"level": "LOUD"}) == (404, "invalid log level 'LOUD'.")
    assert first.request("PUT", path, {"level": "debug"}) == [name]
    set_by_worker = first.request("GET", path)
    assert set_by_worker["level"] == "DEBUG"
    assert set_by_worker["last_modified"] > 0
    assert second.request("GET", path) == {"level": "INFO", "last_modified": None}
    assert second.request("PUT", f"{path}?scope=cluster", {"level": "ERROR"}) == ""
    for worker in workers:
        wait_for(lambda w=worker: w.request("GET", "/admin/loggers").get(name, {}).get("level") == "ERROR", "the level")
    assert first.request("GET", path)["last_modified"] >= set_by_worker["last_modified"]
    assert name in first.request("PUT", "/admin/loggers/headrace.rest?scope=unknown", {"level": "INFO"})
    assert first.request("GET", path)["level"] == "INFO"
    assert second.request("GET", path)["level"] == "ERROR"


# Workers that stop; these tests have groups of their own


def test_requests_forwarded_to_a_leader_that_stops_or_is_killed_wait_for_the_next_leader(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings = {
        "group.id": "leaders",
        "config.storage.topic": "leaders-configs",
        "offset.storage.topic": "leaders-offsets",
        "status.storage.topic": "leaders-status",
        "plugin.path": str(write_plugins(tmp_path)),
    }
    with worker_group(tmp_path, broker.address, 3, settings) as [first, second, third]:
        third.create("c", source(tmp_path), initial_state="STOPPED")
        first.kill_group()
        assert send(third, "PUT", "/connectors/c/config", json.dumps(source(tmp_path, a="1")).encode())[0] == 200
        assert third.request("PATCH", "/connectors/c/config", {"a": "2"})["config"]["a"] == "2"
        leader, other = (second, third) if _leads(second) else (third, second)
        stopping = threading.Thread(target=leader.__exit__, args=(None, None, None))
        stopping.start()
        for number in range(20):  # the leader stops meanwhile
            assert send(other, "PUT", "/connectors/c/stop")[0] == 204
            path = "/connectors/c/config"
            assert other.request("PATCH", path, {"a": str(number)})["config"]["a"] == str(number)
        stopping.join()
        other.request("DELETE", "/connectors/c")


def test_create_and_delete_requests_succeed_while_leaders_stop_one_after_another(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """A worker does not repeat a POST or DELETE that the leader may have executed.

    Nevertheless, all requests succeed.
    """
    settings = {
        "group.id": "successors",
        "config.storage.topic": "successors-configs",
        "offset.storage.topic": "successors-offsets",
        "status.storage.topic": "successors-status",
        "plugin.path": str(write_plugins(tmp_path)),
    }
    with worker_group(tmp_path, broker.address, 3, settings) as [first, second, third]:
        leaders_stopped = threading.Event()
        results: list[tuple[str, int, Any]] = []

        def create_and_delete() -> None:
            number = 0
            while not leaders_stopped.is_set() or number == 0:
                number += 1
                body = json.dumps({"name": f"c{number}", "config": source(tmp_path), "initial_state": "STOPPED"})
                results.append(("POST", *send(third, "POST", "/connectors", body.encode())))
                results.append(("DELETE", *send(third, "DELETE", f"/connectors/c{number}")))

        requests = threading.Thread(target=create_and_delete)
        requests.start()
        for leader in (first, second) if _leads(first) else (second, first):
            leader.__exit__(None, None, None)
        leaders_stopped.set()
        requests.join()
        assert [each for each in results if each[1] != (201 if each[0] == "POST" else 204)] == []


def _leads(worker: DistributedWorker) -> bool:
    """Return whether the worker is the leader, according to the last assignment in its log."""
    return f"leader {worker.url}/;" in worker.log().rpartition("joined generation")[2]


def test_restart_of_a_connector_returns_409_while_it_is_unassigned_after_its_worker_was_killed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The delay of the scheduled rebalance is longer than the test, so the lost connectors stay unassigned."""
    settings = {
        "group.id": "gone",
        "config.storage.topic": "gone-configs",
        "offset.storage.topic": "gone-offsets",
        "status.storage.topic": "gone-status",
        "scheduled.rebalance.max.delay.ms": "600000",
        "plugin.path": str(write_plugins(tmp_path)),
    }
    with worker_group(tmp_path, broker.address, 2, settings) as [first, second]:
        for name in ("c", "d"):
            first.create(name, source(tmp_path))
        for name in ("c", "d"):
            wait_until_running(first, name)
        wait_for(lambda: {owners(first, n)[None][1] for n in ("c", "d")} == {first.worker_id, second.worker_id}, "each")
        [lost] = [name for name in ("c", "d") if owners(first, name)[None][1] == second.worker_id]
        second.kill_group()
        message = (
            "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
        )
        assert failure(first, "POST", f"/connectors/{lost}/restart") == (409, message)
        response = first.request("POST", f"/connectors/{lost}/restart?includeTasks=true")
        assert response["connector"] == {**response["connector"], "state": "RESTARTING", "worker_id": second.worker_id}
