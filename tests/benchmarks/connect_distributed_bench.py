"""Compares headrace's connect-distributed with Apache Kafka's: startup, memory, pipelines, failover, REST.

Both workers use the same broker, and their connectors are created with the same REST requests. Within each round, the
workers are measured one after the other. CPU time and memory (PSS) include the descendants of a worker. Memory is
measured with `task.isolation=connector`, because Kafka's worker runs all tasks in one process. Everything else is
measured with the default `task.isolation`.

The pipelines consist of FileStream connectors: one connector with one task ("one task"), or several connectors at once
that move the same total number of records ("worker").
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka.admin import AdminClient, NewTopic
from connect_bench import LINE, TIMEOUT_S, end_offset, line_count
from distributed_workers import GroupWorker, System, running_worker, settings, systems, wait_until
from fresh_topic import DELETE_DELAY_MS
from measured import alternate
from process_stats import wait_until_idle
from results import Row

from support.broker import running_broker

AREA = "connect-distributed"
LINES = 2_000_000
CONNECTORS_OF_WORKER = 4
STARTS_PER_ROUND = 3
MEMORY_TASKS = (0, 10, 100)
TASKS_PER_SINK = 10
SETTLE_S = 5.0
CONNECTORS = 200
REST_TASKS = 100
REST_RECORDS_PER_S = 10_000
REST_SECONDS = 30.0
REST_LIMIT_MS = 50.0
_APPENDS_PER_S = 10

_KAFKA = "org.apache.kafka.connect."
_JSON = {"value.converter": f"{_KAFKA}json.JsonConverter"}
FORMATS = {
    "String": {"value.converter": f"{_KAFKA}storage.StringConverter"},
    "JSON": {**_JSON, "value.converter.schemas.enable": "false"},
    "JSON with schemas": {**_JSON, "value.converter.schemas.enable": "true"},
}
_STRING_SMTS = (
    ("InsertHeader", {"header": "a", "value.literal": "1"}),
    ("DropHeaders", {"headers": "b"}),
    ("InsertHeader", {"header": "c", "value.literal": "2"}),
    ("InsertHeader", {"header": "d", "value.literal": "3"}),
    ("RegexRouter", {"regex": "no-such-topic", "replacement": "x"}),
)
_SOURCE_SMTS = (
    ("HoistField$Value", {"field": "line"}),
    ("InsertField$Value", {"static.field": "data_source", "static.value": "test-file-source"}),
    ("InsertField$Value", {"static.field": "host", "static.value": "bench"}),
    ("ReplaceField$Value", {"renames": "line:text"}),
    ("ReplaceField$Value", {"exclude": "host"}),
)
_SINK_SMTS = (
    ("InsertField$Value", {"offset.field": "off"}),
    ("ReplaceField$Value", {"renames": "data_source:source"}),
    ("InsertField$Value", {"partition.field": "part"}),
    ("InsertField$Value", {"topic.field": "topic"}),
    ("ReplaceField$Value", {"exclude": "part"}),
)


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Measure everything `rounds` times on each system. Within each round, the systems alternate."""
    compared = systems()
    delay = {"log_segment_delete_delay_ms": DELETE_DELAY_MS}  # files of deleted topics would fill the page cache
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name), **delay) as broker:
        for number in range(rounds):
            for start in range(STARTS_PER_ROUND):
                for system in alternate(compared, start):
                    _startup(system, broker.address, report)
            for system in alternate(compared, number):
                _memory(system, broker.address, scale, report)
            _pipelines(alternate(compared, number), broker.address, Path(name), int(LINES * scale), report)
            for system in alternate(compared, number):
                _restart_work(system, broker.address, Path(name), max(2, int(CONNECTORS * min(1, scale))), report)
            for system in alternate(compared, number):
                _rest(system, broker.address, scale, report)
    return [_row(name, compared) for name in compared[0].measured] + _limits(compared)


def _startup(system: System, address: str, report: Callable[[str], None]) -> None:
    """Measure the startup of a worker whose internal topics do not exist."""
    with running_worker(system, settings(address)) as worker:
        system.note("start to healthy REST [s]", worker.ready_s)
        report(f"{system.name}: ready after {worker.ready_s:.2f} s")


def _memory(system: System, address: str, scale: float, report: Callable[[str], None]) -> None:
    """Measure the memory of a worker with each number of idle tasks in MEMORY_TASKS."""
    with (
        TemporaryDirectory(prefix="headrace-bench-") as name,
        running_worker(system, settings(address, task_isolation="connector")) as worker,
    ):
        running = 0
        for tasks in MEMORY_TASKS:
            while running < tasks:
                _create_idle_sink(worker, address, Path(name))
                running += TASKS_PER_SINK
            worker.wait_until_running(running + running // TASKS_PER_SINK)
            time.sleep(SETTLE_S)
            system.note(f"memory with {tasks} idle tasks [MB PSS]", worker.pss_mb())
            report(f"{system.name}: {tasks} idle tasks: {worker.pss_mb():.0f} MB")


def _create_idle_sink(worker: GroupWorker, address: str, directory: Path) -> None:
    topic = _create_topic(address, TASKS_PER_SINK)
    config = {"connector.class": "FileStreamSink", "tasks.max": str(TASKS_PER_SINK), "topics": topic}
    worker.call("POST", "/connectors", {"name": topic, "config": {**config, "file": str(directory / topic)}})


def _pipelines(
    compared: Sequence[System], address: str, directory: Path, lines: int, report: Callable[[str], None]
) -> None:
    """Measure all pipelines. All workers are running, but only one worker at a time moves records.

    All workers are idle at the start of each pipeline.
    """
    with ExitStack() as stack:
        workers = [(system, stack.enter_context(running_worker(system, settings(address)))) for system in compared]
        for format_name, converter in FORMATS.items():
            for smts in (0, 2, 5):
                for connectors in (1, CONNECTORS_OF_WORKER):
                    for system, worker in workers:
                        wait_until_idle(other.pid for _, other in workers)
                        scope = "one task" if connectors == 1 else "worker"
                        what = f"{format_name}, {smts} SMTs, {scope}"
                        source = _input_file(directory, lines // connectors)
                        _pipeline(system, worker, address, what, converter, smts, connectors, source, report)


def _pipeline(
    system: System,
    worker: GroupWorker,
    address: str,
    what: str,
    converter: dict[str, str],
    smts: int,
    connectors: int,
    source: Path,
    report: Callable[[str], None],
) -> None:
    """Measure `connectors` sources that write one topic each, and then `connectors` sinks that read these topics.

    Each connector uses the converter configuration `converter` and the first `smts` transforms. `what` describes
    the pipeline in the results.
    """
    is_string = converter == FORMATS["String"]
    topics = [_create_topic(address) for _ in range(connectors)]
    records = connectors * source.stat().st_size // len(LINE % 0)
    config = {"connector.class": "FileStreamSource", "file": str(source), "batch.size": "2000", **converter}
    config |= _transforms((_STRING_SMTS if is_string else _SOURCE_SMTS)[:smts])
    configs = {f"source-{topic}": {**config, "topic": topic} for topic in topics}
    _measure(system, worker, f"source, {what}", configs, records, [end_offset(address, t) for t in topics], report)
    files = [source.with_name(topic) for topic in topics]
    config = {"connector.class": "FileStreamSink", "tasks.max": "1", **converter}
    config |= _transforms((_STRING_SMTS if is_string else _SINK_SMTS)[:smts])
    configs = {f"sink-{file.name}": {**config, "topics": file.name, "file": str(file)} for file in files}
    _measure(system, worker, f"sink, {what}", configs, records, [line_count(file) for file in files], report)
    for file in files:
        file.unlink()
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    for future in admin.delete_topics(topics).values():
        future.result(30)


def _measure(
    system: System,
    worker: GroupWorker,
    what: str,
    configs: dict[str, dict[str, str]],
    records: int,
    progress: Sequence[Callable[[], int]],
    report: Callable[[str], None],
) -> None:
    cpu, started = worker.cpu_s(), time.perf_counter()
    for name, config in configs.items():
        worker.call("POST", "/connectors", {"name": name, "config": config})
    wait_until(lambda: sum(count() for count in progress) >= records, f"{system.name}: {what}", TIMEOUT_S)
    seconds = time.perf_counter() - started
    nanoseconds = (worker.cpu_s() - cpu) * 1e9 / records
    worker.delete_all()
    system.note(f"{what} [k records/s]", records / seconds / 1000)
    system.note(f"{what}, CPU [ns/record]", nanoseconds)
    report(f"{system.name}: {what}: {records / seconds / 1000:.0f} k records/s, {nanoseconds:.0f} ns/record")


def _transforms(smts: Sequence[tuple[str, dict[str, str]]]) -> dict[str, str]:
    config = {"transforms": ",".join(f"t{number}" for number in range(len(smts)))} if smts else {}
    for number, (name, keys) in enumerate(smts):
        config[f"transforms.t{number}.type"] = f"{_KAFKA}transforms.{name}"
        config |= {f"transforms.t{number}.{key}": value for key, value in keys.items()}
    return config


def _restart_work(
    system: System, address: str, directory: Path, connectors: int, report: Callable[[str], None]
) -> None:
    """Measure how long two workers take to start connectors, and to restart them after one worker is killed."""
    source = _input_file(directory, 1)
    properties = settings(address, scheduled_rebalance_max_delay_ms="0")
    with running_worker(system, properties) as survivor, running_worker(system, properties) as victim:
        config = {"connector.class": "FileStreamSource", "file": str(source), "topic": _create_topic(address)}
        started = time.perf_counter()
        for number in range(connectors):
            survivor.call("POST", "/connectors", {"name": f"c-{number}", "config": config})
        survivor.wait_until_running(2 * connectors)
        created = time.perf_counter()
        victim.kill()
        wait_until(lambda: survivor.states() == [("RUNNING", survivor.rest)] * (2 * connectors), "work moved", 300)
        ended = time.perf_counter()
    system.note(f"create {connectors} connectors until they run [s]", created - started)
    system.note(f"kill one of two workers until all {connectors} connectors run [s]", ended - created)
    system.note(f"create {connectors} connectors, kill a worker, all running again [s]", ended - started)
    report(
        f"{system.name}: {connectors} connectors created in {created - started:.1f} s, moved in {ended - created:.1f} s"
    )


def _rest(system: System, address: str, scale: float, report: Callable[[str], None]) -> None:
    """Measure REST requests while tasks move records from files that grow steadily."""
    tasks = max(1, int(REST_TASKS * min(1.0, scale * 4)))
    seconds = max(5.0, REST_SECONDS * min(1.0, scale))
    topic = _create_topic(address)
    with (
        TemporaryDirectory(prefix="headrace-bench-") as name,
        running_worker(system, settings(address)) as worker,
        _growing_files(Path(name), tasks) as files,
    ):
        for number, file in enumerate(files):
            config = {"connector.class": "FileStreamSource", "file": str(file), "topic": topic}
            worker.call("POST", "/connectors", {"name": f"c-{number}", "config": config})
        worker.wait_until_running(2 * tasks)
        time.sleep(SETTLE_S)
        moved, started, latencies = end_offset(address, topic), time.perf_counter(), []
        first = moved()
        while time.perf_counter() - started < seconds:
            for path in (f"/connectors/c-{len(latencies) % tasks}/status", "/connectors", "/connectors/c-0/config"):
                sent = time.perf_counter()
                worker.call("GET", path)
                latencies.append((time.perf_counter() - sent) * 1000)
                time.sleep(0.01)
        rate = (moved() - first) / (time.perf_counter() - started)
    p99 = statistics.quantiles(latencies, n=100)[98]
    system.note(
        f"REST p50 while {tasks} tasks move {REST_RECORDS_PER_S:,} records/s [ms]", statistics.median(latencies)
    )
    system.note(f"REST p99 while {tasks} tasks move {REST_RECORDS_PER_S:,} records/s [ms]", p99)
    system.note(f"records moved by {tasks} tasks during the REST requests [records/s]", rate)
    report(f"{system.name}: REST p99 {p99:.1f} ms ({len(latencies)} requests), {rate:,.0f} records/s")


@contextmanager
def _growing_files(directory: Path, count: int) -> Iterator[list[Path]]:
    """Create `count` files and yield their paths.

    While the block runs, a thread appends REST_RECORDS_PER_S lines per second, distributed over all files.
    """
    files = [directory / f"{number}.txt" for number in range(count)]
    lines = (LINE % 0) * (REST_RECORDS_PER_S // _APPENDS_PER_S // count)
    stopped = threading.Event()
    for file in files:
        file.touch()

    def append() -> None:
        next_s = time.monotonic()
        with ExitStack() as stack:
            opened = [stack.enter_context(file.open("a")) for file in files]
            while not stopped.wait(max(0.0, next_s - time.monotonic())):
                next_s += 1 / _APPENDS_PER_S
                for each in opened:
                    each.write(lines)
                    each.flush()

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield files
    finally:
        stopped.set()
        thread.join()


def _input_file(directory: Path, lines: int) -> Path:
    file = directory / f"in-{lines}.txt"
    if not file.exists():
        with file.open("w") as output:
            output.writelines(LINE % number for number in range(lines))
    return file


def _create_topic(address: str, partitions: int = 1) -> str:
    topic = f"bench-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)
    return topic


def _row(name: str, compared: Sequence[System]) -> Row:
    values = [system.median(name) for system in compared]
    what, _, unit = name.rpartition(" [")
    goal, more_is_better = _goal(what)
    return Row(AREA, what, unit.rstrip("]"), values[0], values[1] if len(values) > 1 else None, goal, more_is_better)


def _goal(what: str) -> tuple[float | None, bool]:
    """Return (goal, whether larger values are better) for the measurement `what`.

    The goal is for the ratio of headrace's value to Kafka's value.
    """
    if what.endswith("CPU"):
        return 0.3, False
    if what.startswith("source"):
        return (2.0 if "String" in what else 4.0), True
    if what.startswith("sink"):
        return 2.0, True
    if what.startswith("records"):
        return None, True
    goals = {"start": 0.2, "memory": 0.5, "create": 1.0}
    goal = goals.get(what.split()[0]) if "until they run" not in what else None
    return goal, False


def _limits(compared: Sequence[System]) -> list[Row]:
    ours = compared[0]
    names = [name for name in ours.measured if name.startswith("REST p99")]
    return [
        Row(
            AREA,
            f"{name.partition(' [')[0]} (the baseline is the limit)",
            "ms",
            ours.median(name),
            REST_LIMIT_MS,
            1.0,
            False,
        )
        for name in names
    ]
