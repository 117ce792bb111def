"""JDBC source: rows a second from SQLite and PostgreSQL into a topic, JSON without schemas, one task."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition
from process_stats import cpu_s, tree
from results import Row

from support import postgres
from support.broker import running_broker
from support.worker import Worker

sys.path.append(str(Path(__file__).parents[2] / "configs" / "demo"))
from prepare_database import prepare

TABLE = "flights"
TIMEOUT_S = 300.0


def run(rounds: int, scale: float, say: Callable[[str], None]) -> list[Row]:
    """The flights table, `rounds` times from each database."""
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        database = Path(name) / "flights.sqlite"
        rows = prepare(database)[TABLE]
        settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(Path(name) / "offsets")}
        with Worker(Path(name), settings) as worker:
            sqlite = {"connection.url": f"jdbc:sqlite:{database}"}
            results = _measure("SQLite", worker, broker.address, sqlite, rows, rounds, say)
            if postgres.missing():
                say(f"PostgreSQL left out: {postgres.missing()}")
                return results
            with postgres.running() as server:
                _copy(database, server)
                config = {"connection.url": server.jdbc_url, "connection.user": server.user}
                return results + _measure("PostgreSQL", worker, broker.address, config, rows, rounds, say)


def _measure(
    name: str,
    worker: Worker,
    address: str,
    database: dict[str, str],
    rows: int,
    rounds: int,
    say: Callable[[str], None],
) -> list[Row]:
    rates, costs = [], []
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
        cpu, began = cpu_s(tree(worker.pid)), time.perf_counter()
        worker.create(connector, config)
        _await_records(address, f"{prefix}{TABLE}", rows)
        seconds = time.perf_counter() - began
        costs.append((cpu_s(tree(worker.pid)) - cpu) * 1e9 / rows)
        rates.append(rows / seconds / 1000)
        worker.request("DELETE", f"/connectors/{connector}")
        say(f"{name}: {rates[-1]:.0f} k rows/s, {costs[-1]:.0f} ns/row")
    return [
        Row("jdbc", f"source, {name}, incrementing, 20 columns", "k rows/s", statistics.median(rates)),
        Row("jdbc", f"source, {name}, CPU of worker and task", "ns/row", statistics.median(costs), None, None, False),
    ]


def _await_records(address: str, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            known = topic in consumer.list_topics(timeout=5).topics
            if known and consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)[1] >= count:
                return
        except KafkaException:
            pass  # the topic is being created
        if time.monotonic() > deadline:
            raise RuntimeError(f"{topic} did not reach {count} records")
        time.sleep(0.02)  # polling what a foreign client sees


def _copy(database: Path, server: postgres.Postgres) -> None:
    import sqlite3

    source = sqlite3.connect(database)
    columns = source.execute(f"PRAGMA table_info({TABLE})").fetchall()
    types = {"INTEGER": "integer", "REAL": "double precision", "TEXT": "text"}
    definition = ", ".join(
        f'"{name}" {types[kind]}{" PRIMARY KEY" if key else ""}' for _, name, kind, _, _, key in columns
    )
    with psycopg.connect(server.conninfo) as target, target.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} ({definition})")
        with cursor.copy(f"COPY {TABLE} FROM STDIN") as copy:
            for row in source.execute(f"SELECT * FROM {TABLE}"):
                copy.write_row(row)
    source.close()
