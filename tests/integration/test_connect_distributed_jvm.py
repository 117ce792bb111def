"""Compares headrace's distributed workers with those of Apache Kafka, byte by byte, and lets them share a group.

The same REST requests are sent to a worker of Apache Kafka and to a worker of headrace, each with its own topics.
Partition, order, key and value of the records in the internal topics must be equal, with these exceptions:

- Timestamps, session keys, worker ids, versions and stack traces differ. `_normalized` replaces them.
- Generations differ: both workers rebalance when the set of connectors or tasks changes, but Apache Kafka also
  rebalances when the configuration of a task changes.
- Records with different keys in the status topic may be in a different order, because Apache Kafka's worker starts and
  stops instances in concurrent threads.
- Records in the status topic may be repeated. Apache Kafka's tasks write the record of an active topic again and again
  until they have read it back. Its leader does the same with the tombstone of a status.
- The status UNASSIGNED may lack the version, because Apache Kafka's worker writes the version only if the connector or
  task still exists at that time.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headrace.herder.assignment import EMPTY, Assignment
from headrace.herder.group_protocol import (
    CONFIG_MISMATCH,
    GroupAssignment,
    Version,
    WorkerMetadata,
    encode_assignment,
    encode_metadata,
)
from support import apache
from support.apache_worker import ApacheWorker
from support.distributed import DistributedWorker, is_running, owners
from support.topics import read_topic
from support.worker import RestError, wait_for

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]

TIMEOUT_S = 60
OFFSETS_PARTITIONS = 5
# Keys and values whose JSON has escapes, and more keys than a HashMap of 16 buckets has room for.
UNUSUAL = {
    "名 \U0001f600": '\x1b[0m \x7f \\ / " \t\n é \U0001f600 ',
    **{f"comment.{number}": str(number) for number in range(20)},
}
FILE_CONNECTOR = "org.apache.kafka.connect.file.FileStream{}Connector"
STRINGS = dict.fromkeys(("key.converter", "value.converter"), "org.apache.kafka.connect.storage.StringConverter")
ORACLE = Path(__file__).parents[1] / "support" / "ConnectProtocolOracle.java"

Record = tuple[bytes, bytes | None]


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with apache.broker(flags=apache.SHORT_RUN_FLAGS) as running:
        yield running.address


def settings(group: str, **more: str) -> dict[str, str]:
    """Return the settings of the workers of a group. Each group has its own internal topics."""
    topics = {f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")}
    return {"group.id": group, **topics, "status.storage.partitions": "1", "offset.flush.interval.ms": "200", **more}


def file_source(file: Path, topic: str, **more: str) -> dict[str, str]:
    config = {"connector.class": FILE_CONNECTOR.format("Source"), "tasks.max": "1", "file": str(file), "topic": topic}
    return config | STRINGS | more


def file_sink(file: Path, topics: str, tasks: int = 1) -> dict[str, str]:
    config = {"connector.class": FILE_CONNECTOR.format("Sink"), "tasks.max": str(tasks), "file": str(file)}
    return config | {"topics": topics} | STRINGS


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def append(file: Path, *lines: str) -> None:
    with file.open("a") as output:
        output.writelines(f"{line}\n" for line in lines)


# The records of the internal topics


@dataclass
class Scenario:
    """Sends REST requests to one worker. After each request, it waits for the expected statuses in the status topic.

    The topic keeps all statuses, so the test also finds statuses that the worker replaced immediately.
    """

    worker: DistributedWorker
    directory: Path
    expected: dict[str, list[str]] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.worker.settings["group.id"]

    def step(self, request: Callable[[], Any], **statuses: str) -> Any:
        """Send a request and wait until the status topic contains `statuses`.

        Each keyword is a name in `KEYS`, and its value lists the expected states in order.
        """
        result = request()
        for name, states in statuses.items():
            self.expected.setdefault(KEYS[name], []).extend(states.split())
        wait_for(self._is_reached, f"the statuses {self.expected}", TIMEOUT_S, lambda: f"but found {self.found()}")
        return result

    def found(self) -> dict[str, list[str]]:
        """Return the states of each connector and task, in the order of the status topic."""
        states: dict[str, list[str]] = {}
        for key, value in status_records(self.worker):
            state = re.search(rb'"state":"([A-Z]+)"', value or b"")
            text = "deleted" if value is None else "used" if state is None else state[1].decode()
            states.setdefault(key.decode(), []).append(text)
        return states

    def _is_reached(self) -> bool:
        return self.found() == self.expected

    def request(self, method: str, path: str, body: Any = None) -> Callable[[], Any]:
        return lambda: self.worker.request(method, path, body)

    def create(self, name: str, config: Mapping[str, str], **more: str) -> Callable[[], Any]:
        return lambda: self.worker.create(name, config, **more)

    def run(self) -> None:
        """Send all kinds of requests that write to the internal topics."""
        topic, file = f"{self.group}-lines", self.directory / INPUT
        source, partition = file_source(file, "lines-a", **UNUSUAL), {"filename": str(file)}
        self.step(self.create("a", source), a="RUNNING", a0="RUNNING", a_topic="used")
        self.await_offset("a", 8)
        self.step(self.request("PUT", "/connectors/a/pause"), a="PAUSED", a0="PAUSED")
        self.step(self.request("PUT", "/connectors/a/resume"), a="RUNNING", a0="RUNNING")
        self.step(self.request("POST", "/connectors/a/restart"), a="UNASSIGNED RUNNING")
        self.step(self.request("POST", "/connectors/a/tasks/0/restart"), a0="UNASSIGNED RUNNING")
        restarted = "UNASSIGNED RESTARTING RUNNING"
        self.step(self.request("POST", "/connectors/a/restart?includeTasks=true"), a=restarted, a0=restarted)
        patch = self.request("PATCH", "/connectors/a/config", {"batch.size": "7"})
        self.step(patch, a="UNASSIGNED RUNNING", a0="UNASSIGNED RUNNING")
        config = {**source, "name": "a", "batch.size": "8"}
        put = self.request("PUT", "/connectors/a/config", config)
        self.step(put, a="UNASSIGNED RUNNING", a0="UNASSIGNED RUNNING")
        self.step(put, a="UNASSIGNED RUNNING")
        self.step(self.request("POST", "/connectors/a/restart?includeTasks=true&onlyFailed=true"))
        self.step(self.request("PUT", "/connectors/a/pause"), a="PAUSED", a0="PAUSED")
        restarted = "UNASSIGNED RESTARTING PAUSED"
        self.step(self.request("POST", "/connectors/a/restart?includeTasks=true"), a=restarted, a0=restarted)
        self.step(self.request("PUT", "/connectors/a/resume"), a="RUNNING", a0="RUNNING")
        self.step(self.request("PUT", "/connectors/a/stop"), a="STOPPED", a0="UNASSIGNED deleted")
        offsets = [{"partition": partition, "offset": {"position": 4}}]
        self.step(self.request("PATCH", "/connectors/a/offsets", {"offsets": offsets}))
        self.step(self.request("DELETE", "/connectors/a/offsets"))
        self.step(self.request("PUT", "/connectors/a/resume"), a="RUNNING", a0="RUNNING")
        self.await_offset("a", 8)
        self.step(self.request("PUT", "/connectors/a/topics/reset"), a_topic="deleted")
        level = {"level": "DEBUG"}
        self.step(self.request("PUT", "/admin/loggers/org.apache.kafka.connect?scope=cluster", level))
        self.step(self.create("paused", source, initial_state="PAUSED"), paused="PAUSED")
        restart = self.request("POST", "/connectors/paused/restart?includeTasks=true")
        self.step(restart, paused="UNASSIGNED RESTARTING PAUSED")
        patch = self.request("PATCH", "/connectors/paused/config", {"batch.size": "9", "comment.0": None})
        self.step(patch, paused="UNASSIGNED PAUSED")
        self.step(self.create("stopped", source, initial_state="STOPPED"), stopped="STOPPED")
        bad = file_sink(self.directory / "missing" / "out.txt", "lines-bad", 2)
        failed = self.request("POST", "/connectors/bad/restart?includeTasks=true&onlyFailed=true")
        self.step(self.create("bad", bad), bad="RUNNING", bad0="FAILED", bad1="FAILED")
        self.step(failed, bad0="RESTARTING FAILED", bad1="RESTARTING FAILED")
        fewer = self.request("PATCH", "/connectors/bad/config", {"tasks.max": "1"})
        self.step(fewer, bad="UNASSIGNED RUNNING", bad0="FAILED", bad1="deleted")
        self.step(self.request("DELETE", "/connectors/bad"), bad="UNASSIGNED deleted", bad0="deleted")
        self.step(self.request("DELETE", "/connectors/a"), a="UNASSIGNED deleted", a0="UNASSIGNED deleted")
        # These two run until the worker stops, and the next worker continues with them.
        self.step(
            self.create("source", file_source(file, topic)), source="RUNNING", source0="RUNNING", source_topic="used"
        )
        sink = self.create("sink", file_sink(self.directory / f"out-{self.group}.txt", topic))
        self.step(sink, sink="RUNNING", sink0="RUNNING", sink_topic="used")
        more = self.request("PATCH", "/connectors/sink/config", {"tasks.max": "2"})
        self.step(more, sink="UNASSIGNED RUNNING", sink0="UNASSIGNED RUNNING", sink1="RUNNING")
        fewer = self.request("PATCH", "/connectors/sink/config", {"tasks.max": "1"})
        self.step(fewer, sink="UNASSIGNED RUNNING", sink0="UNASSIGNED RUNNING", sink1="UNASSIGNED deleted")
        self.await_offset("source", 8)

    def await_offset(self, name: str, position: int) -> None:
        """Wait until `position` is the committed offset of the FileStreamSource `name`."""
        path = f"/connectors/{name}/offsets"

        def is_committed() -> bool:
            return [each["offset"] for each in self.worker.request("GET", path)["offsets"]] == [{"position": position}]

        wait_for(is_committed, f"the offset {position} of {name} is committed", TIMEOUT_S)


KEYS = {
    **{name: f"status-connector-{name}" for name in ("a", "bad", "paused", "stopped", "source", "sink")},
    **{
        f"{name}{number}": f"status-task-{name}-{number}"
        for name in ("a", "bad", "source", "sink")
        for number in (0, 1)
    },
    "a_topic": "status-topic-lines-a:connector-a",
    "source_topic": "status-topic-GROUP-lines:connector-source",
    "sink_topic": "status-topic-GROUP-lines:connector-sink",
}


def status_records(worker: DistributedWorker) -> list[Record]:
    """Return the records of the status topic, without repetitions of tombstones and of active-topic records."""
    records: list[Record] = []
    last: dict[bytes, bytes | None] = {}
    for message in read_topic(worker.bootstrap_servers(), worker.settings["status.storage.topic"]):
        key, value = message.key(), _normalized(message.value(), worker)
        key = key.replace(worker.settings["group.id"].encode(), b"GROUP")
        is_repeatable = value is None or key.startswith(b"status-topic-")
        if not is_repeatable or key not in last or last[key] != value:
            records.append((key, value))
        last[key] = value
    return records


def _normalized(value: bytes | None, worker: DistributedWorker) -> bytes | None:
    if value is None:
        return None
    for old, new in (
        (re.escape(worker.worker_id.encode()), b"WORKER"),
        (re.escape(worker.settings["group.id"].encode()), b"GROUP"),
        (rb'"(creation-timestamp|discoverTimestamp)":\d{13}(?=})', rb'"\1":TIME'),
        (rb'"key":"[A-Za-z0-9+/]{43}="', b'"key":"KEY"'),
        (rb'"generation":\d+', b'"generation":GENERATION'),
        (rb'"version":"[^"]+"', b'"version":"VERSION"'),
        (rb'("UNASSIGNED".*"version":)"VERSION"', rb"\1null"),
        (rb'"trace":"(?:[^"\\]|\\.)+"', b'"trace":"TRACE"'),
    ):
        value = re.sub(old, new, value)
    return value


@dataclass(frozen=True)
class Recorded:
    """The records that one worker has written, and the settings and directory that the next worker uses to continue."""

    configs: list[Record]
    offsets: list[tuple[int, Record]]
    statuses: dict[bytes, list[bytes | None]]
    settings: dict[str, str]
    directory: Path

    def output(self) -> list[str]:
        return lines_of(self.directory / f"out-{self.settings['group.id']}.txt")


def record(kind: type[DistributedWorker], kafka: str, directory: Path, group: str) -> Recorded:
    """Run the scenario with a worker, stop the worker cleanly, and return the records of its internal topics.

    `kind` is the worker's class, and `kafka` is the address of the Apache Kafka broker.
    """
    own = settings(group)
    with kind(directory / group, kafka, own) as worker:
        scenario = Scenario(worker, directory)
        scenario.run()
        out = directory / f"out-{group}.txt"
        wait_for(lambda: lines_of(out) == LINES, "all lines are in the output", TIMEOUT_S)
    configs = [
        (message.key(), _normalized(message.value(), worker))
        for message in read_topic(kafka, own["config.storage.topic"])
    ]
    offsets = [
        (partition, (message.key(), message.value()))
        for partition in range(OFFSETS_PARTITIONS)
        for message in read_topic(kafka, own["offset.storage.topic"], partition)
    ]
    statuses: dict[bytes, list[bytes | None]] = {}
    for key, value in status_records(worker):
        statuses.setdefault(key, []).append(value)
    return Recorded(configs, offsets, statuses, own, directory)


LINES = ["one", "two"]
INPUT = "in é 名 \U0001f600.txt"
APACHE, HEADRACE = "group-of-apache", "group-of-headrace"


@pytest.fixture(scope="module")
def recorded(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    # Both workers read the same file, because its path determines the partition in the offsets topic.
    directory = tmp_path_factory.mktemp("records")
    append(directory / INPUT, *LINES)
    kinds = {APACHE: ApacheWorker, HEADRACE: DistributedWorker}
    return {group: record(kind, kafka, directory, group) for group, kind in kinds.items()}


def _without_rewritten_tasks(configs: list[Record]) -> list[Record]:
    """Remove the task configurations that only headrace writes. The remaining records must equal Kafka's records.

    If a connector's configuration is written again unchanged, headrace also writes the task configurations again.
    Without these new records, the compacted topic would contain only task configurations that precede the connector's
    configuration. A worker that starts would then ignore the tasks (KAFKA-17719). The leader may write the task
    configurations at any time after the connector's configuration.
    """
    records: list[Record] = []
    last: dict[bytes, bytes | None] = {}
    rewritten: set[bytes] = set()
    for key, value in configs:
        is_repeated = value is not None and last.get(key) == value
        if not (is_repeated and key in rewritten):
            records.append((key, value))
        rewritten.discard(key)
        if is_repeated and key.startswith(b"connector-"):
            name = key.removeprefix(b"connector-")
            rewritten |= {b"task-" + name + b"-0", b"commit-" + name}
        last[key] = value
    return records


def test_workers_of_headrace_and_kafka_write_the_same_records_to_the_config_topic(
    recorded: dict[str, Recorded],
) -> None:
    configs = _without_rewritten_tasks(recorded[HEADRACE].configs)
    assert configs == recorded[APACHE].configs
    assert len(configs) == len(recorded[HEADRACE].configs) - 2, "the configuration was repeated once, with one task"
    keys = [key.decode() for key, _ in recorded[APACHE].configs]
    for prefix in ("session-key", "connector-", "task-", "commit-", "target-state-", "restart-", "logger-cluster-"):
        assert any(key.startswith(prefix) for key in keys), f"no record with the key {prefix} was compared"


def test_workers_of_headrace_and_kafka_write_the_same_records_to_the_offsets_topic(
    recorded: dict[str, Recorded],
) -> None:
    assert recorded[HEADRACE].offsets == recorded[APACHE].offsets
    values = [value for _, (key, value) in recorded[APACHE].offsets if key.startswith(b'["a",')]
    assert values == [b'{"position":8}', b'{"position":4}', None, b'{"position":8}']


def test_workers_of_headrace_and_kafka_write_the_same_records_to_the_status_topic(
    recorded: dict[str, Recorded],
) -> None:
    assert recorded[HEADRACE].statuses == recorded[APACHE].statuses


# One worker after the other, and both at the same time


@pytest.mark.parametrize(("first", "second"), [(APACHE, DistributedWorker), (HEADRACE, ApacheWorker)])
def test_headrace_and_kafka_workers_continue_from_each_others_internal_topics_without_loss_or_duplicates(
    kafka: str, recorded: dict[str, Recorded], first: str, second: type[DistributedWorker]
) -> None:
    before = recorded[first]
    file = before.directory / INPUT
    append(file, f"after {first}")
    with second(before.directory / f"after-{first}", kafka, before.settings) as worker:
        wait_for(lambda: before.output() == lines_of(file), "the new line is in the output", TIMEOUT_S, before.output)
        append(file, f"more after {first}")
        wait_for(lambda: before.output() == lines_of(file), "one more line is in the output", TIMEOUT_S, before.output)
        assert sorted(worker.request("GET", "/connectors")) == ["paused", "sink", "source", "stopped"]
        for name, state in {"paused": "PAUSED", "stopped": "STOPPED"}.items():
            wait_for(lambda n=name, s=state: owners(worker, n) == {None: (s, worker.worker_id)}, name, TIMEOUT_S)
        wait_for(lambda: is_running(worker, "source", 1) and is_running(worker, "sink", 1), "both run", TIMEOUT_S)
        # The sinks of both groups have the same name, and so the same consumer group with both topics.
        committed = {"kafka_topic": f"{first}-lines", "kafka_partition": 0}, {"kafka_offset": len(lines_of(file))}

        def is_committed() -> bool:
            offsets = worker.request("GET", "/connectors/sink/offsets")["offsets"]
            return committed in [(each["partition"], each["offset"]) for each in offsets]

        wait_for(is_committed, f"the sink's offset is {committed}", TIMEOUT_S)
    assert before.output() == lines_of(file)


def everything(worker: DistributedWorker) -> dict[tuple[str, int | None], tuple[str, str]]:
    names = request(worker, "GET", "/connectors")
    return {(name, task): owner for name in names for task, owner in owners(worker, name).items()}


def owned_by(worker: DistributedWorker, *owned: DistributedWorker) -> bool:
    """Return whether all connectors and tasks run on the workers `owned`, at least one of them on each worker."""
    found = everything(worker)
    states, workers = {state for state, _ in found.values()}, {owner for _, owner in found.values()}
    return len(found) == 11 and states == {"RUNNING"} and workers == {each.worker_id for each in owned}


@pytest.mark.parametrize(
    ("protocol", "first", "second"),
    [
        ("sessioned", ApacheWorker, DistributedWorker),
        ("sessioned", DistributedWorker, ApacheWorker),
        ("compatible", DistributedWorker, ApacheWorker),
        ("eager", ApacheWorker, DistributedWorker),
    ],
)
def test_headrace_and_kafka_workers_share_a_group(
    kafka: str, tmp_path: Path, protocol: str, first: type[DistributedWorker], second: type[DistributedWorker]
) -> None:
    """The first worker leads the group. When the second worker stops, the first worker continues all connectors."""
    group = f"mixed-{protocol}-{first.__name__}"
    own = settings(group, **{"connect.protocol": protocol, "rebalance.timeout.ms": "20000"})
    files, out = [tmp_path / f"in-{number}.txt" for number in range(4)], tmp_path / "out.txt"
    with ExitStack() as stack:
        leader = stack.enter_context(first(tmp_path / "first", kafka, own))
        with second(tmp_path / "second", kafka, own) as follower:
            both = leader, follower
            for number, file in enumerate(files):
                append(file, f"first of {number}")
                config = file_source(file, f"{group}-lines")
                request(both[number % 2], "POST", "/connectors", {"name": f"source-{number}", "config": config})
            sink = file_sink(out, f"{group}-lines", 2)
            request(follower, "POST", "/connectors", {"name": "sink", "config": sink})
            for worker in both:
                wait_for(lambda w=worker: owned_by(w, *both), "both run", TIMEOUT_S, lambda w=worker: everything(w))
            assert everything(leader) == everything(follower)
            wait_for(lambda: len(lines_of(out)) == 4, "the lines of all sources", TIMEOUT_S)
            if protocol == "sessioned":
                for worker in both:
                    with pytest.raises(RestError, match="signature") as caught:
                        worker.request("POST", "/connectors/source-0/tasks", [])
                    assert caught.value.status == 400
            for number, worker in enumerate((*both, *both) if protocol == "sessioned" else both):
                change_through(worker, f"source-{number}", str(100 + number))
            wait_for(lambda: owned_by(leader, *both), "both run", TIMEOUT_S, lambda: everything(leader))
        for number, file in enumerate(files):
            append(file, f"second of {number}")
        wait_for(lambda: owned_by(leader, leader), "the first runs all", TIMEOUT_S, lambda: everything(leader))
        expected = sorted(f"{place} of {number}" for place in ("first", "second") for number in range(4))
        wait_for(lambda: len(lines_of(out)) >= len(expected), "the new lines", TIMEOUT_S, lambda: lines_of(out))
        for number in range(4):
            committed = [
                {"partition": {"filename": str(files[number])}, "offset": {"position": files[number].stat().st_size}}
            ]
            offsets = f"/connectors/source-{number}/offsets"
            wait_for(lambda p=offsets, c=committed: leader.request("GET", p)["offsets"] == c, offsets, TIMEOUT_S)
    assert sorted(lines_of(out)) == expected


def request(worker: DistributedWorker, method: str, path: str, body: Any = None) -> Any:
    """Send a request. Repeat it if Apache Kafka's worker responds that a rebalance is in progress or expected."""
    response = None

    def is_sent() -> bool:
        nonlocal response
        try:
            response = worker.request(method, path, body)
        except RestError as error:
            if "rebalance" not in str(error.body):
                raise
            return False
        return True

    wait_for(is_sent, f"{method} {path} is not rejected because of a rebalance", TIMEOUT_S)
    return response


def change_through(worker: DistributedWorker, name: str, batch_size: str) -> None:
    """Pause, resume and restart a connector, and set its `batch.size`. Send all requests to `worker`.

    The worker forwards a request if another worker leads the group or runs the connector.
    """
    request(worker, "PUT", f"/connectors/{name}/pause")
    wait_for(lambda: {state for state, _ in owners(worker, name).values()} == {"PAUSED"}, f"{name} pauses", TIMEOUT_S)
    request(worker, "PUT", f"/connectors/{name}/resume")
    wait_for(lambda: is_running(worker, name, 1), f"{name} resumes", TIMEOUT_S)
    request(worker, "POST", f"/connectors/{name}/restart")
    request(worker, "POST", f"/connectors/{name}/tasks/0/restart")
    request(worker, "PATCH", f"/connectors/{name}/config", {"batch.size": batch_size})

    def is_changed() -> bool:
        [task] = request(worker, "GET", f"/connectors/{name}/tasks")
        return bool(task["config"].get("batch.size") == batch_size) and is_running(worker, name, 1)

    wait_for(is_changed, f"the task of {name} has the new configuration", TIMEOUT_S)


# The group protocol


@pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not on the path: a JDK 17 is needed")
def test_kafkas_classes_encode_group_protocol_messages_to_the_same_bytes_as_headrace() -> None:
    names = [f"connector-{number}" for number in range(20)]
    requests = []
    for count in (0, 1, 3, 8, 9, 12, 20):  # hash sets of up to 8, 11 and more connectors have different tables
        tasks = frozenset((name, task) for name in names[:count] for task in range(3)) | {("only-a-task", 3)}
        revoked = Assignment(frozenset({"b"}), frozenset({("c", 1)}))
        held = GroupAssignment(
            "m-1", "http://h:8083/", 5, Assignment(frozenset(names[:count]), tasks), revoked, 300_000
        )
        failed = GroupAssignment("m-1", "http://h:8083/", 5, EMPTY, error=CONFIG_MISMATCH)
        for version in Version:
            requests += [("assignment", version, encode_assignment(each, version)) for each in (held, failed)]
            states = [WorkerMetadata("http://h:8083/", -1), WorkerMetadata("http://h:8083/", 5, held)]
            requests += [("metadata", version, encode_metadata(each, version)) for each in states]
    lines = "".join(f"{kind} {int(version)} {data.hex()}\n" for kind, version, data in requests)
    command = ["java", *apache.SHORT_RUN_FLAGS, "-cp", apache.classpath(), str(ORACLE)]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
    responses = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(responses) == len(requests), done.stderr[-2000:]
    for (kind, version, data), (encoded, fields) in zip(requests, responses, strict=True):
        assert encoded == data.hex(), f"{kind} with version {version}: {fields}"
    assert responses[3 * 4 + 4][1] == "0 m-1 http://h:8083/ 5 1 4 1 1 300000"  # one connector, version 1
