"""Measures memory and idle CPU of a worker with 1, 100 and 500 idle file tasks, for each value of `task.isolation`.

There are two loads: FileStreamSink connectors with up to 100 tasks each, where each task has one partition, and
FileStreamSource connectors, which have one task each. `task.isolation=connector` is measured with the sinks only,
because a connector with one task uses the same processes with `connector` as with `process`.

Memory is the PSS of the worker and all its descendants. The broker is not included.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka.admin import AdminClient, NewTopic
from measured import Measurements
from process_stats import cpu_s, memory, tree
from results import Row

from support.broker import running_broker
from support.worker import Worker, wait_for

TASK_COUNTS = (1, 100, 500)
TASKS_PER_SINK = 100
STRING = "org.apache.kafka.connect.storage.StringConverter"
SETTLE_S = 10.0
"""The wait after the start of the last task, so that the first commits and fetches are not measured."""
IDLE_S = 20.0
START_TIMEOUT_S = 300.0
LIMITS_MB = {("process", 100): 900.0, ("connector", 500): 1000.0, ("thread", 500): 1000.0}


@dataclass(slots=True)
class Load(Measurements):
    """The measurements of one kind of connector with one value of `task.isolation`."""

    kind: str
    isolation: str

    @property
    def name(self) -> str:
        return f"task.isolation={self.isolation}, FileStream{self.kind.capitalize()}"


LOADS = (
    ("sink", "process"),
    ("sink", "connector"),
    ("sink", "thread"),
    ("source", "process"),
    ("source", "thread"),
)


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Measure each load `rounds` times with each number of tasks. A `scale` below 1 reduces the numbers of tasks."""
    loads = [Load(kind, isolation) for kind, isolation in LOADS]
    counts = sorted({max(1, round(count * min(1.0, scale))) for count in TASK_COUNTS})
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        for _ in range(rounds):
            for count in counts:
                for load in loads:
                    _measure(load, count, broker.address, report)
    return [row for load in loads for count in counts for row in _rows(load, count)]


def _measure(load: Load, tasks: int, address: str, report: Callable[[str], None]) -> None:
    with _idle_worker(load.kind, load.isolation, tasks, address) as (worker, start_s):
        processes = tree(worker.pid)
        cpu, started = cpu_s(processes), time.perf_counter()
        time.sleep(IDLE_S)
        percent = 100 * (cpu_s(processes) - cpu) / (time.perf_counter() - started)
        pss_mb = memory(processes).pss_mb
    load.note(f"{tasks} memory", pss_mb)
    load.note(f"{tasks} cpu", percent)
    load.note(f"{tasks} start", start_s)
    report(
        f"{load.name}: {tasks} tasks in {len(processes)} processes: {pss_mb:.0f} MB, {percent:.1f}% of a core, "
        f"running {start_s:.1f} s after the first request"
    )


@contextmanager
def _idle_worker(kind: str, isolation: str, tasks: int, address: str) -> Iterator[tuple[Worker, float]]:
    """Run a worker with `tasks` idle tasks. `isolation` is the value of `task.isolation`.

    Yield the worker, and the seconds from the first request until all tasks were running.
    """
    with TemporaryDirectory(prefix="headrace-bench-") as name:
        directory = Path(name)
        settings = {
            "bootstrap.servers": address,
            "task.isolation": isolation,
            "key.converter": STRING,
            "value.converter": STRING,
            "offset.storage.file.filename": str(directory / "connect.offsets"),
        }
        with Worker(directory, settings) as worker:
            connectors = _connectors(kind, tasks, directory, address)
            started = time.perf_counter()
            for connector, config in connectors.items():
                worker.create(connector, config)
            wait_for(lambda: _running_tasks(worker) == tasks, f"{tasks} tasks are running", START_TIMEOUT_S)
            start_s = time.perf_counter() - started
            time.sleep(SETTLE_S)
            yield worker, start_s


def _connectors(kind: str, tasks: int, directory: Path, address: str) -> dict[str, dict[str, str]]:
    """Return the configurations of connectors with `tasks` tasks in total. For sinks, create the topics first.

    `kind` is "source" or "sink".
    """
    stamp = time.time_ns()
    if kind == "source":
        source = directory / "in.txt"
        source.write_text("a line\n")
        config = {"connector.class": "FileStreamSource", "file": str(source), "topic": f"in-{stamp}"}
        return {f"source-{number}": config for number in range(tasks)}
    sizes = [min(TASKS_PER_SINK, tasks - first) for first in range(0, tasks, TASKS_PER_SINK)]
    topics = {f"out-{stamp}-{number}": size for number, size in enumerate(sizes)}
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, size, 1) for topic, size in topics.items()]).values():
        future.result(60)
    return {
        f"sink-{stamp}-{number}": {
            "connector.class": "FileStreamSink",
            "tasks.max": str(size),
            "topics": topic,
            "file": str(directory / f"{topic}.txt"),
        }
        for number, (topic, size) in enumerate(topics.items())
    }


def _running_tasks(worker: Worker) -> int:
    found = worker.request("GET", "/connectors?expand=status")
    tasks = [task for each in found.values() for task in each["status"]["tasks"]]
    failed = [task for task in tasks if task["state"] == "FAILED"]
    assert not failed, f"a task failed: {json.dumps(failed[0])}"
    return sum(task["state"] == "RUNNING" for task in tasks)


def _rows(load: Load, tasks: int) -> list[Row]:
    count = f"{tasks} idle task{'s' if tasks > 1 else ''}"
    limit = LIMITS_MB.get((load.isolation, tasks))
    memory_name = f"{load.name}, {count}: memory" + (" (the baseline is the limit)" if limit else "")
    goal = 1.0 if limit else None
    return [
        Row("isolation", memory_name, "MB PSS", load.median(f"{tasks} memory"), limit, goal, False),
        Row("isolation", f"{load.name}, {count}: CPU", "% of a core", load.median(f"{tasks} cpu"), None, None, False),
        Row("isolation", f"{load.name}, {count}: all running", "s", load.median(f"{tasks} start"), None, None, False),
    ]
