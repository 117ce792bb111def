"""Measures whether the cost of a record depends on the size of its table. Tables have 10,000 to 10,000,000 rows.

The JDBC source copies a SQLite table with four columns to a topic. From this topic, the S3 sink writes JSON to rclone,
and the JDBC sink inserts rows into PostgreSQL. All connectors run in one warm worker.

Larger tables are compared with the table of 100,000 rows. With 10,000 rows, the fixed cost of creating files and tables
is visible in the cost per record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from jdbc_bench import Snapshot, now, wait_for_records
from results import Row
from sink_load import Peak

from support import postgres, rclone, s3
from support.broker import running_broker
from support.worker import Worker, wait_for

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
TIMEOUT_S = 1800.0
OBJECTS = 10
TABLE = "items"


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Copy a table of each size once, after a warm-up copy of the smallest table."""
    for reason in (rclone.unavailable_reason(), postgres.unavailable_reason()):
        if reason:
            report(f"table-size left out: {reason}")
            return []
    with (
        TemporaryDirectory(prefix="headrace-bench-") as name,
        running_broker(Path(name)) as broker,
        postgres.running(fsync="on") as server,
        rclone.running(Path(name) / "buckets") as store,
    ):
        directory = Path(name)
        settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(directory / "offsets")}
        with Worker(directory, settings) as worker:
            results = []
            for number, size in enumerate((SIZES[0], *SIZES)):
                count = max(SIZES[0], int(size * scale)) // OBJECTS * OBJECTS
                results.append(_copy(worker, broker.address, server, store, f"round{number}", count, report))
    return _rows(results[1:])


class _Result:
    """The rate, CPU time per record and memory of one copy."""

    def __init__(self, count: int, first: Snapshot, done: Snapshot, memory_mb: float) -> None:
        self.count = count
        self.k_per_s = (count - first.records) / (done.at_s - first.at_s) / 1000
        self.cpu_ns = (done.cpu_s - first.cpu_s) * 1e9 / (count - first.records)
        self.memory_mb = memory_mb


def _copy(
    worker: Worker,
    address: str,
    server: postgres.Postgres,
    store: s3.S3Server,
    name: str,
    count: int,
    report: Callable[[str], None],
) -> _Result:
    """Create the sinks, then the source. Measure from the first record in the topic until both sinks are done."""
    database = Path(worker.directory) / f"{name}.sqlite"
    _fill(database, count)
    topic = f"{name}-{TABLE}"
    sinks = {f"{name}-s3": _s3_sink(store, name, topic, count), f"{name}-jdbc": _jdbc_sink(server, name, topic)}
    source = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "connection.url": f"jdbc:sqlite:{database}",
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "table.whitelist": TABLE,
        "topic.prefix": f"{name}-",
        "batch.max.rows": "10000",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
    }
    for sink, config in sinks.items():
        worker.create(sink, config)
        worker.wait_for_state(sink, "RUNNING")
    peak = Peak(worker.pid)
    try:
        worker.create(f"{name}-source", source)
        first = wait_for_records(worker, address, topic, 1)
        wait_for(lambda: _are_done(server, store, name, count), f"{name} is copied", TIMEOUT_S, worker.log)
        done = now(worker, count)
    finally:
        memory_mb = peak.stop()
    for connector in (f"{name}-source", *sinks):
        worker.request("DELETE", f"/connectors/{connector}")
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"DROP TABLE {name}")
    database.unlink()
    result = _Result(count, first, done, memory_mb)
    report(f"{count} rows: {result.k_per_s:.0f} k rows/s, {result.cpu_ns:.0f} ns/row, {result.memory_mb:.0f} MB")
    return result


def _fill(database: Path, count: int) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute(f"CREATE TABLE {TABLE} (id INTEGER PRIMARY KEY, name TEXT, price REAL, stock INTEGER)")
        connection.execute(
            f"INSERT INTO {TABLE} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
            "SELECT i, 'item number ' || i, i * 0.25, i % 1000 FROM n"
        )
    connection.close()


def _s3_sink(store: s3.S3Server, name: str, topic: str, count: int) -> dict[str, str]:
    return store.props() | {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector",
        "topics": topic,
        "format.class": "JsonFormat",
        "flush.size": str(count // OBJECTS),
        "topics.dir": name,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
    }


def _jdbc_sink(server: postgres.Postgres, name: str, topic: str) -> dict[str, str]:
    return {
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "topics": topic,
        "connection.url": server.jdbc_url,
        "connection.user": server.user,
        "table.name.format": name,
        "auto.create": "true",
        "pk.mode": "record_value",
        "pk.fields": "id",
        "consumer.override.max.poll.records": "10000",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
    }


def _are_done(server: postgres.Postgres, store: s3.S3Server, name: str, count: int) -> bool:
    found = store.client().list_objects_v2(Bucket=s3.BUCKET, Prefix=f"{name}/").get("KeyCount", 0)
    if found < OBJECTS:
        return False
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        try:
            return connection.execute(f"SELECT max(id) FROM {name}").fetchone() == (count,)
        except psycopg.errors.UndefinedTable:
            return False  # the sink has not created it yet


def _rows(results: list[_Result]) -> list[Row]:
    compared = results[1]
    rows = []
    for result in results:
        is_larger = result.count > compared.count
        what = f"JDBC source to S3 and PostgreSQL, {result.count:,} rows"
        rows += [
            Row("table-size", f"{what}, CPU of the worker after the first record", "ns/row", result.cpu_ns,
                compared.cpu_ns if is_larger else None, 1.1 if is_larger else None, more_is_better=False),
            Row("table-size", f"{what}, growth of memory at its peak", "MB", result.memory_mb,
                compared.memory_mb if is_larger else None, more_is_better=False),
            Row("table-size", f"{what}, rate", "k rows/s", result.k_per_s),
        ]  # fmt: skip
    return rows
