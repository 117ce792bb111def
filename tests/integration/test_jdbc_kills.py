"""Kills the worker while the JDBC source and sinks copy a table through a topic, and compares all rows at the end."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from support import jdbc_copy, mariadb, postgres
from support.broker import running_broker
from support.jdbc_copy import TOPIC, JdbcDatabase, copy_config, positions_config, source_config
from support.topics import end_offset, read_topic
from support.worker import Worker, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

ROWS_PER_KILL = 20_000
REPEATED_PER_KILL = 5_000
"""More rows than the source reads between two commits of its offsets. It reads these rows again after a kill."""
Databases = Callable[[Path], AbstractContextManager[tuple[JdbcDatabase, JdbcDatabase]]]
"""Runs the database of the source and the database of the sinks."""


@contextmanager
def postgresql_databases(_: Path) -> Iterator[tuple[JdbcDatabase, JdbcDatabase]]:
    with postgres.running() as server:
        yield jdbc_copy.postgresql(server), jdbc_copy.postgresql(server)


@contextmanager
def mariadb_databases(_: Path) -> Iterator[tuple[JdbcDatabase, JdbcDatabase]]:
    with mariadb.running() as server:
        yield jdbc_copy.mariadb(server), jdbc_copy.mariadb(server)


@contextmanager
def sqlite_databases(directory: Path) -> Iterator[tuple[JdbcDatabase, JdbcDatabase]]:
    yield jdbc_copy.sqlite(directory / "orders.db"), jdbc_copy.sqlite(directory / "copies.db")


POSTGRES = pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or "")
MARIADB = pytest.mark.skipif(bool(mariadb.unavailable_reason()), reason=mariadb.unavailable_reason() or "")


@pytest.mark.parametrize(
    ("databases", "chunks", "kills"),
    [
        pytest.param(postgresql_databases, "4", 3, marks=[POSTGRES, pytest.mark.slow], id="postgresql-4-3"),
        pytest.param(postgresql_databases, "1", 20, marks=[POSTGRES, pytest.mark.prove], id="postgresql-1-20"),
        pytest.param(postgresql_databases, "4", 20, marks=[POSTGRES, pytest.mark.prove], id="postgresql-4-20"),
        pytest.param(mariadb_databases, "4", 20, marks=[MARIADB, pytest.mark.prove], id="mariadb-4-20"),
        pytest.param(sqlite_databases, "4", 20, marks=pytest.mark.prove, id="sqlite-4-20"),
    ],
)
def test_jdbc_source_and_sinks_copy_every_row_although_the_worker_is_killed_repeatedly(
    tmp_path: Path, databases: Databases, kills: int, chunks: str
) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    half = ROWS_PER_KILL * kills // 2
    with (
        running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker,
        databases(tmp_path) as (source, target),
    ):
        source.create_orders()
        source.fill(1, half)
        settings = {
            "bootstrap.servers": broker.address,
            "offset.storage.file.filename": str(tmp_path / "offsets"),
            "value.converter.schemas.enable": "true",
        }
        worker = Worker(tmp_path, settings, connectors(tmp_path, source, target, chunks))
        for kill in range(1, kills + 1):
            before = end_offset(broker.address, TOPIC)
            worker.launch()
            wait_for(lambda n=before: end_offset(broker.address, TOPIC) > n, "the source reads new rows", 60)
            time.sleep(moments.uniform(0, 1.5))  # the random moment of the kill is the subject of the test
            worker.kill_group()
            print(f"kill {kill}: {end_offset(broker.address, TOPIC) - before} new records")
            source.fill(half + half * (kill - 1) // kills + 1, half + half * kill // kills)
        with worker:
            wait_for(lambda: target.count("copies") == 2 * half, "all rows are in the copy", 300,
                     lambda: target.count("copies"))  # fmt: skip
            worker.request("PUT", "/connectors/source/pause")
            worker.wait_for_state("source", "PAUSED")
            end = end_offset(broker.address, TOPIC)
            wait_for(lambda: target.count("positions") == end, "all records are in the table of positions", 300)
        assert target.orders("copies") == source.orders("orders")
        records = read_topic(broker.address, TOPIC)
        ids = Counter(json.loads(each.value() or b"")["payload"]["id"] for each in records)
        assert set(ids) == set(range(1, 2 * half + 1))
        check_positions(target, len(records))
        repeated = len(records) - len(ids)
        print(f"{kills} kills: {repeated} of {len(records)} records repeat a row, {max(ids.values())} records per row")
        assert repeated <= kills * REPEATED_PER_KILL


def check_positions(target: JdbcDatabase, records: int) -> None:
    """Check that the table of positions contains each of the topic's records once."""
    offsets = [offset for (offset,) in target.query("SELECT __connect_offset FROM positions ORDER BY 1")]
    assert offsets == list(range(records))


def connectors(directory: Path, source: JdbcDatabase, target: JdbcDatabase, chunks: str) -> list[Path]:
    """Write the configuration files of a source with `initial.load.chunks` set to `chunks`, and of two sinks.

    One sink uses the row's id as the primary key. The other sink uses the record's topic, partition and offset.
    """
    slow = {"batch.max.rows": "10"}  # so that the source is still reading when the worker is killed
    return [
        write(directory, "source", source_config(source) | slow | {"initial.load.chunks": chunks, "tasks.max": "3"}),
        write(directory, "by-id", copy_config(target)),
        write(directory, "by-position", positions_config(target)),
    ]


def write(directory: Path, name: str, config: Mapping[str, str]) -> Path:
    file = directory / f"{name}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in {"name": name, **config}.items()))
    return file
