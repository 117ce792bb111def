"""Measures the JDBC source: rows per second from SQLite and PostgreSQL to a topic, with one task, schemaless JSON."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Consumer, KafkaException, TopicPartition
from process_stats import cpu_s, tree
from results import Row

from support import data_sets, postgres
from support.broker import running_broker
from support.worker import Worker

sys.path.append(str(Path(__file__).parents[2] / "configs" / "demo"))
from prepare_database import prepare

TABLE = "flights"
TIMEOUT_S = 300.0


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Copy the flights table `rounds` times from each database."""
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        database = Path(name) / "flights.sqlite"
        rows = prepare(database)[TABLE]
        settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(Path(name) / "offsets")}
        with Worker(Path(name), settings) as worker:
            sqlite = {"connection.url": f"jdbc:sqlite:{database}"}
            results = _measure("SQLite", worker, broker.address, sqlite, rows, rounds, report)
            if postgres.unavailable_reason():
                report(f"PostgreSQL left out: {postgres.unavailable_reason()}")
                return results
            with postgres.running() as server:
                data_sets.load_flights(server, Path(name))
                config = {"connection.url": server.jdbc_url, "connection.user": server.user}
                return results + _measure("PostgreSQL", worker, broker.address, config, rows, rounds, report)


def _measure(
    name: str,
    worker: Worker,
    address: str,
    database: dict[str, str],
    rows: int,
    rounds: int,
    report: Callable[[str], None],
) -> list[Row]:
    measured = []
    for number in range(rounds):
        prefix, connector = f"{name}-{number}-".lower(), f"{name}-{number}"
        config = {
            "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
            "mode": "incrementing",
            "incrementing.column.name": "id",
            "table.whitelist": TABLE,
            "topic.prefix": prefix,
            "batch.max.rows": "10000",
            **database,
        }
        start = _now(worker, 0)
        worker.create(connector, config)
        first = _wait_for_records(worker, address, f"{prefix}{TABLE}", 1)
        last = _wait_for_records(worker, address, f"{prefix}{TABLE}", rows)
        measured.append(Figures.between(start, first, last))
        worker.request("DELETE", f"/connectors/{connector}")
        report(f"{name}: {measured[-1]}")
    whole, steady, first_s, whole_cpu, steady_cpu = map(statistics.median, zip(*map(astuple, measured), strict=True))
    what = f"source, {name}, incrementing, 20 columns"
    return [
        Row("jdbc", f"{what}, the connector's start included", "k rows/s", whole),
        Row("jdbc", f"{what}, after the first record", "k rows/s", steady),
        Row("jdbc", f"source, {name}, from creation to the first record", "s", first_s, None, None, False),
        Row("jdbc", f"source, {name}, CPU of worker and task, start included", "ns/row", whole_cpu, None, None, False),
        Row("jdbc", f"source, {name}, CPU after the first record", "ns/row", steady_cpu, None, None, False),
    ]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The number of records in the topic, and the CPU seconds of the worker's process tree, at one time."""

    at_s: float
    records: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one round: for the whole round, and from the first record to the last record."""

    whole_k_rows_s: float
    steady_k_rows_s: float
    first_record_s: float
    whole_cpu_ns: float
    steady_cpu_ns: float

    @classmethod
    def between(cls, start: Snapshot, first: Snapshot, last: Snapshot) -> Figures:
        """Calculate the results from three snapshots."""
        steady = last.records - first.records
        return cls(
            last.records / (last.at_s - start.at_s) / 1000,
            steady / (last.at_s - first.at_s) / 1000,
            first.at_s - start.at_s,
            (last.cpu_s - start.cpu_s) * 1e9 / last.records,
            (last.cpu_s - first.cpu_s) * 1e9 / steady,
        )

    def __str__(self) -> str:
        return (
            f"{self.whole_k_rows_s:.0f} k rows/s and {self.whole_cpu_ns:.0f} ns/row, "
            f"first record after {self.first_record_s:.2f} s, "
            f"then {self.steady_k_rows_s:.0f} k rows/s and {self.steady_cpu_ns:.0f} ns/row"
        )


def _now(worker: Worker, records: int) -> Snapshot:
    return Snapshot(time.perf_counter(), records, cpu_s(tree(worker.pid)))


def _wait_for_records(worker: Worker, address: str, topic: str, count: int) -> Snapshot:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            if topic in consumer.list_topics(timeout=5).topics:
                found = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1]
                if found >= count:
                    return _now(worker, found)
        except KafkaException:
            pass  # the topic does not exist yet
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} did not reach {count} records")
        time.sleep(0.01)  # poll, because no event reports a changed end offset
