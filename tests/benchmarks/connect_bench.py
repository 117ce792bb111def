"""Compares FileStream pipelines in headrace's worker and in Kafka's worker: records per second, CPU and memory.

Kafka's worker is measured only if it is available. The pipelines are created over REST, and both workers use the same
broker. CPU time is the total of the worker's process tree: worker, fork server, connector processes and tasks.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from measured import Measurements
from process_stats import cpu_s, memory, tree
from results import Row

from support import apache
from support.broker import running_broker
from support.worker import Worker

LINE = "2026-11-21 12:00:00 INFO request served path=/a/b/c status=200 ms=%08d\n"
LINES = 2_000_000
STEADY = ", from its first records on"
"""Suffix of the rates that exclude the start of connector and task; the other rates include the start."""
TIMEOUT_S = 300.0
STRING = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
PIPELINES: dict[str, tuple[dict[str, str], bool]] = {
    "String, no SMT": (STRING, False),
    "JSON, SMTs": (
        {
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
        },
        True,
    ),
    "JSON with schemas, SMTs": (
        {
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
        },
        True,
    ),
}
SOURCE_SMTS = {
    "transforms": "hoist,insert",
    "transforms.hoist.type": "org.apache.kafka.connect.transforms.HoistField$Value",
    "transforms.hoist.field": "line",
    "transforms.insert.type": "org.apache.kafka.connect.transforms.InsertField$Value",
    "transforms.insert.static.field": "data_source",
    "transforms.insert.static.value": "test-file-source",
}
SINK_SMTS = {
    "transforms": "insert",
    "transforms.insert.type": "org.apache.kafka.connect.transforms.InsertField$Value",
    "transforms.insert.offset.field": "off",
}
WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "10000",
}


@dataclass(slots=True)
class WorkerUnderTest(Measurements):
    """A running worker and its measurements."""

    name: str
    rest: str
    pid: int

    def cpu_s(self) -> float:
        return cpu_s(tree(self.pid))

    def call(self, method: str, path: str, body: Any = None) -> None:
        """Call the worker's REST API."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.rest}{path}", data, headers, method=method)
        urllib.request.urlopen(request, timeout=60).close()


@contextmanager
def systems_under_test(address: str, directory: Path) -> Iterator[list[WorkerUnderTest]]:
    """Run headrace's worker and, if Maven and Java are available, Kafka's worker, with the broker at `address`."""
    offsets = {"offset.storage.file.filename": str(directory / "connect.offsets")}
    settings = {"bootstrap.servers": address, **WORKER, **offsets}
    with ExitStack() as stack:
        ours = stack.enter_context(Worker(directory, settings))
        found = [WorkerUnderTest("headrace", ours.url.removeprefix("http://"), ours.pid)]
        if not apache.unavailable_reason():
            theirs = stack.enter_context(
                apache.connect_standalone(
                    {**settings, "offset.storage.file.filename": str(directory / "apache.offsets")}, []
                )
            )
            found.append(WorkerUnderTest("Apache Connect", theirs.address, theirs.pid))
        yield found


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Measure every pipeline `rounds` times on each system."""
    lines = int(LINES * scale)
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        source = Path(name) / "in.txt"
        with source.open("w") as file:
            file.writelines(LINE % i for i in range(lines))
        with systems_under_test(broker.address, Path(name)) as systems:
            _wait_for_rest(systems)
            for system in systems:
                system.note("memory of the worker's processes, idle", memory(tree(system.pid)).pss_mb)
            for _ in range(rounds):
                for name, (converter, smts) in PIPELINES.items():
                    for system in systems:
                        _pipeline(system, broker.address, name, converter, smts, source, lines, report)
            return _rows(systems)


def _pipeline(
    system: WorkerUnderTest,
    address: str,
    name: str,
    converter: dict[str, str],
    smts: bool,
    source: Path,
    lines: int,
    report: Callable[[str], None],
) -> None:
    topic = f"bench-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        future.result(30)
    config = {"tasks.max": "1", "file": str(source), "topic": topic, "batch.size": "2000", **converter}
    config |= {"connector.class": "FileStreamSource", **(SOURCE_SMTS if smts else {})}
    _measure(system, f"source, {name}", f"src-{topic}", config, lines, end_offset(address, topic), report)
    target = source.with_name(topic)
    config = {"tasks.max": "1", "file": str(target), "topics": topic, **converter}
    config |= {"connector.class": "FileStreamSink", **(SINK_SMTS if smts else {})}
    _measure(system, f"sink, {name}", f"sink-{topic}", config, lines, line_count(target), report)
    target.unlink()
    for future in admin.delete_topics([topic]).values():
        future.result(30)


def _measure(
    system: WorkerUnderTest,
    what: str,
    connector: str,
    config: dict[str, str],
    records: int,
    progress: Callable[[], int],
    report: Callable[[str], None],
) -> None:
    cpu, started = system.cpu_s(), time.perf_counter()
    system.call("POST", "/connectors", {"name": connector, "config": config})
    first: tuple[float, int] | None = None  # (time, number of records) at the first poll that found records
    while (count := progress()) < records:
        if first is None and count:
            first = time.perf_counter(), count
        if time.perf_counter() - started > TIMEOUT_S:
            raise RuntimeError(f"{system.name}: {what} reached only {count} of {records} records")
        time.sleep(0.02)  # poll, because no event reports a changed end offset or file size
    ended = time.perf_counter()
    seconds = ended - started
    nanoseconds = (system.cpu_s() - cpu) * 1e9 / records
    system.call("DELETE", f"/connectors/{connector}")
    system.note(what, records / seconds / 1000)
    if first is not None and what.startswith("source"):
        system.note(f"{what}{STEADY}", (records - first[1]) / (ended - first[0]) / 1000)
    system.note(f"{what}, CPU", nanoseconds)
    report(f"{system.name}: {what}: {records / seconds / 1000:.0f} k records/s, {nanoseconds:.0f} ns/record")


def end_offset(address: str, topic: str) -> Callable[[], int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench"})

    def end() -> int:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1])
        except KafkaException:
            return 0

    return end


def line_count(path: Path) -> Callable[[], int]:
    seen = [0, 0]  # [number of bytes read, number of lines counted]

    def count() -> int:
        if path.exists():
            with path.open("rb") as file:
                file.seek(seen[0])
                while block := file.read(1 << 20):
                    seen[0] += len(block)
                    seen[1] += block.count(b"\n")
        return seen[1]

    return count


def _wait_for_rest(systems: list[WorkerUnderTest]) -> None:
    for system in systems:
        deadline = time.monotonic() + 60
        while True:
            try:
                system.call("GET", "/connectors")
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # poll, because only a response shows that the worker is ready


def _rows(systems: list[WorkerUnderTest]) -> list[Row]:
    rows = []
    for name in systems[0].measured:
        values = [system.median(name) for system in systems]
        baseline = values[1] if len(systems) > 1 else None
        if name.startswith("memory"):
            rows.append(Row("connect", name, "MB PSS", values[0], baseline, None, False))
        elif name.endswith("CPU"):
            rows.append(Row("connect", name, "ns/record", values[0], baseline, 0.3, False))
        else:
            goal = None if name.endswith(STEADY) else 5.0 if "source" in name else 2.0
            rows.append(Row("connect", name, "k records/s", values[0], baseline, goal))
    return rows
