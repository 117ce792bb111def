"""Kills the worker while the JDBC source and sinks copy a table through a topic, and compares all rows at the end."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support import postgres
from support.broker import running_broker
from support.topics import read_topic
from support.worker import Worker, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]

ROWS_PER_KILL = 20_000
ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, item text, price double precision)"
FILL = "INSERT INTO orders SELECT n, 'item ' || n, n / 7.0 FROM generate_series(%s::bigint, %s) n"
DIFFERENT = (
    "SELECT count(*) FROM orders o FULL JOIN copies c USING (id, item, price) WHERE o.id IS NULL OR c.id IS NULL"
)
POSITIONS = 'SELECT count(DISTINCT (__connect_topic, __connect_partition, __connect_offset)), count(*) FROM "every"'


@pytest.mark.parametrize(
    ("chunks", "kills"),
    [
        pytest.param("4", 3, marks=pytest.mark.slow),
        pytest.param("1", 20, marks=pytest.mark.prove),
        pytest.param("4", 20, marks=pytest.mark.prove),
    ],
)
def test_jdbc_source_and_sinks_copy_every_row_although_the_worker_is_killed_repeatedly(
    tmp_path: Path, kills: int, chunks: str
) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    half = ROWS_PER_KILL * kills // 2
    with (
        running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker,
        postgres.running() as server,
        psycopg.connect(server.conninfo, autocommit=True) as database,
    ):
        database.execute(ORDERS)
        database.execute(FILL, (1, half))
        settings = {
            "bootstrap.servers": broker.address,
            "offset.storage.file.filename": str(tmp_path / "offsets"),
            "value.converter.schemas.enable": "true",
        }
        worker = Worker(tmp_path, settings, connectors(tmp_path, server, chunks))
        for kill in range(1, kills + 1):
            worker.start()
            time.sleep(moments.uniform(0.3, 2.5))  # the random moment of the kill is the subject of the test
            worker.kill_group()
            database.execute(FILL, (half + half * (kill - 1) // kills + 1, half + half * kill // kills))
        with worker:
            wait_for(lambda: copied(database) == 2 * half, "all rows are in the copy", 120, lambda: copied(database))
            wait_for(lambda: positions(database) >= 2 * half, "all records are in the table of positions", 120)
        assert database.execute(DIFFERENT).fetchone() == (0,)
        assert len(set(database.execute(POSITIONS).fetchone() or ())) == 1, "a record is in the table twice"
        records = read_topic(broker.address, "t-orders")
        assert {json.loads(each.value() or b"")["payload"]["id"] for each in records} == set(range(1, 2 * half + 1))
        assert positions(database) == len(records)


def copied(database: psycopg.Connection[Any]) -> int:
    return rows_of(database, "copies")


def positions(database: psycopg.Connection[Any]) -> int:
    return rows_of(database, "every")


def rows_of(database: psycopg.Connection[Any], table: str) -> int:
    """Return the number of rows of a table, or 0 if the table does not exist yet."""
    if database.execute("SELECT to_regclass(%s)", (f'"{table}"',)).fetchone() == (None,):
        return 0
    (count,) = database.execute(f'SELECT count(*) FROM "{table}"').fetchone() or (0,)  # type: ignore[call-overload]
    return int(count)


def connectors(directory: Path, server: postgres.Postgres, chunks: str) -> list[Path]:
    """Write the configuration files of a source with `initial.load.chunks` set to `chunks`, and of two sinks.

    One sink uses the row's id as the primary key. The other sink uses the record's topic, partition and offset.
    """
    common = {"connection.url": server.jdbc_url, "connection.user": server.user, "connection.attempts": "10"}
    source = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "table.whitelist": "orders",
        "topic.prefix": "t-",
        "poll.interval.ms": "100",
        "batch.max.rows": "500",
        "initial.load.chunks": chunks,
        "tasks.max": "3",
    }
    sink = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "topics": "t-orders",
        "auto.create": "true",
        "insert.mode": "upsert",
        "consumer.override.session.timeout.ms": "3000",
        "consumer.override.heartbeat.interval.ms": "500",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.metadata.max.age.ms": "500",
    }
    by_id = {"table.name.format": "copies", "pk.mode": "record_value", "pk.fields": "id"}
    by_position = {"table.name.format": "every", "pk.mode": "kafka"}
    return [
        write(directory, "source", common | source),
        write(directory, "by-id", common | sink | by_id),
        write(directory, "by-position", common | sink | by_position),
    ]


def write(directory: Path, name: str, config: Mapping[str, str]) -> Path:
    file = directory / f"{name}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in {"name": name, **config}.items()))
    return file
