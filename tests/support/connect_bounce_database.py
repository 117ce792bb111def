"""Copies a SQLite table to a Delta table in long runs of the bounce test, with a JDBC source and a lakehouse sink.

The JDBC source may produce a row again after a failure. The Delta table may therefore contain a row twice, but never
two rows with the same topic, partition and offset.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from support.distributed import DistributedWorker, is_running, owners
from support.worker import wait_for

SOURCE, SINK, TABLE = "orders-source", "orders-lakehouse", "orders"
TIMEOUT_S = 300.0
_INTERVAL_S = 0.02
_ID, _POSITION = "id", ("_kafka_topic", "_kafka_partition", "_kafka_offset")


class RowWriter:
    """Inserts rows into the SQLite table, one row per transaction, until `stop` is called."""

    def __init__(self, directory: Path) -> None:
        self._database = sqlite3.connect(_file(directory), check_same_thread=False, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute(f"CREATE TABLE {TABLE} (id INTEGER PRIMARY KEY, item TEXT)")
        self._count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _write(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self._database.execute(f"INSERT INTO {TABLE} (item) VALUES (?)", (f"item {self._count}",))
            self._count += 1

    def stop(self) -> int:
        """Stop writing. Return the number of rows; their ids are 1, 2, ... up to this number."""
        self._ended.set()
        self._thread.join()
        self._database.close()
        return self._count


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The result of a check of the Delta table's rows."""

    rows: int
    missing: int
    """Ids that are not in the table."""
    repeated_positions: int
    """Combinations of topic, partition and offset that occur more than once."""


def create_pair(worker: DistributedWorker, directory: Path) -> None:
    """Create the source and the sink, and wait until they run."""
    converter = {
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
    }
    source = {
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "connection.url": f"jdbc:sqlite:{_file(directory)}",
        "table.whitelist": TABLE,
        "mode": "incrementing",
        "incrementing.column.name": _ID,
        "poll.interval.ms": "200",
        "topic.prefix": "",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "3",
    }
    sink = {
        "connector.class": "LakehouseSinkConnector",
        "topics": TABLE,
        "lakehouse.path": str(directory / "lakehouse"),
        "lakehouse.table.name.format": "${topic}",
        "lakehouse.trigger.interval.ms": "500",
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
    }
    for name, config in ((SOURCE, source), (SINK, sink)):
        worker.create(name, {**config, **converter})
        wait_for(lambda n=name: is_running(worker, n, 1), f"{name} runs", 120, lambda n=name: owners(worker, n))


def check_pair(worker: DistributedWorker, directory: Path, count: int) -> TableCheck:
    """Wait until the Delta table contains the last row, whose id is `count`. Check all rows, and return the result."""
    wait_for(
        lambda: count in _ids(directory),
        f"{SINK} has written row {count}",
        TIMEOUT_S,
        lambda: f"{owners(worker, SINK)}, {owners(worker, SOURCE)}, rows: {len(_ids(directory))}",
    )
    rows = _rows(directory, [_ID, *_POSITION])
    positions = Counter(tuple(row[name] for name in _POSITION) for row in rows)
    missing = set(range(1, count + 1)) - {row[_ID] for row in rows}
    return TableCheck(len(rows), len(missing), sum(number > 1 for number in positions.values()))


def _file(directory: Path) -> Path:
    return directory / "orders.sqlite"


def _ids(directory: Path) -> set[int]:
    return {row[_ID] for row in _rows(directory, [_ID])}


def _rows(directory: Path, columns: list[str]) -> list[dict[str, Any]]:
    try:
        table = DeltaTable(directory / "lakehouse" / TABLE)
    except TableNotFoundError:
        return []
    rows: list[dict[str, Any]] = table.to_pyarrow_dataset().to_table(columns=columns).to_pylist()
    return rows
