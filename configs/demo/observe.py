"""Looks at a running demo from outside: the worker's REST API, the broker's end offsets, the tables' commits.

Nothing here is private to the demo: a foreign Kafka client, HTTP and delta-rs see what any tool would see.
"""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from deltalake import DeltaTable, QueryBuilder

SOURCE, SINK = "flights-source", "flights-lakehouse"
_BOOTSTRAP = re.compile(r"embedded broker serves at (\S+:\d+)")
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What an observer saw in one round; `rows` are those of the database, everything is by table."""

    rows: dict[str, int]
    parts: list[dict[str, Any]]
    positions: dict[str, int]
    topics: dict[str, int]
    tables: dict[str, int]

    @property
    def failure(self) -> str | None:
        """Why the pipeline stands still, when a connector or task has failed."""
        failed = [part for part in self.parts if part["state"] == "FAILED"]
        return failed[0].get("trace", "a task failed") if failed else None

    @property
    def running(self) -> bool:
        """Whether both connectors and their tasks run."""
        return len(self.parts) >= 4 and all(part["state"] == "RUNNING" for part in self.parts)

    @property
    def complete(self) -> bool:
        """Whether all runs, the source has committed every row, and the tables hold every record of their topics."""
        if not self.running or self.positions != self.rows:
            return False
        return all(self.tables[table] == self.topics[table] >= rows for table, rows in self.rows.items())


class Observer:
    """What the worker at `rest_port` has done so far with the tables of `expected_rows`."""

    def __init__(self, rest_port: int, directory: Path, log: Path, expected_rows: dict[str, int]) -> None:
        self._rest = f"http://127.0.0.1:{rest_port}"
        self._log = log
        self._log_start = log.stat().st_size
        self._lakehouse = directory / "lakehouse"
        self._rows = expected_rows
        self._consumer: Consumer | None = None
        self._answered = False
        self._topics: set[str] = set()
        self._end_offsets = dict.fromkeys(expected_rows, 0)
        self.rows_before = sum(self._tables().values())

    @property
    def expected(self) -> int:
        """Rows of the database, all tables together."""
        return sum(self._rows.values())

    def reachable(self) -> bool:
        """Whether the worker has answered at least once."""
        return self._answered

    def look(self) -> Sight:
        """One round: everything is asked for once, first what the later stages follow."""
        return Sight(self._rows, self._parts(), self._source_positions(), self.records_in_topics(), self._tables())

    def _parts(self) -> list[dict[str, Any]]:
        """The states of both connectors and all their tasks."""
        statuses = self._get("/connectors?expand=status") or {}
        found = []
        for status in (statuses[name]["status"] for name in (SOURCE, SINK) if name in statuses):
            found += [status["connector"], *status["tasks"]]
        return found

    def _source_positions(self) -> dict[str, int]:
        """The last id that the source has committed, by table; ids count from 1 without gaps."""
        body = self._get(f"/connectors/{SOURCE}/offsets") or {}
        return {
            item["partition"]["table"]: int(item["offset"].get("incrementing", 0))
            for item in body.get("offsets", [])
            if item.get("offset") and "table" in item["partition"]
        }

    def records_in_topics(self) -> dict[str, int]:
        """End offset of each topic (one partition each, nothing is deleted)."""
        consumer = self._connect()
        if consumer is None:
            return dict(self._end_offsets)
        try:
            if not all(self._end_offsets.values()):
                self._topics = set(consumer.list_topics(timeout=_TIMEOUT_S).topics)
            for topic in self._topics & self._rows.keys():
                place = TopicPartition(topic, 0)
                self._end_offsets[topic] = consumer.get_watermark_offsets(place, timeout=_TIMEOUT_S)[1]
        except KafkaException:
            return dict(self._end_offsets)  # the broker is starting or stopping: what was seen last
        return dict(self._end_offsets)

    def _tables(self) -> dict[str, int]:
        """The rows of each table, by the statistics of its commits."""
        return {table: committed_rows(self._lakehouse / table) for table in self._rows}

    def _connect(self) -> Consumer | None:
        if self._consumer is None:
            with self._log.open("rb") as log:
                log.seek(self._log_start)
                found = _BOOTSTRAP.search(log.read().decode("utf-8", "replace"))
            if found:
                settings = {"bootstrap.servers": found[1], "group.id": "demo-observer", "log_level": 0}
                self._consumer = Consumer(settings)
        return self._consumer

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self._rest + path, timeout=_TIMEOUT_S) as response:
                self._answered = True
                return json.load(response)
        except urllib.error.HTTPError:
            self._answered = True
        except (urllib.error.URLError, OSError):
            return None  # not started yet, or stopping: the caller asks again
        return None


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The counts of one table at every stage."""

    name: str
    database: int
    topic: int
    table: int
    distinct_ids: int
    distinct_offsets: int

    @property
    def read_again(self) -> int:
        """Rows that the source read more than once: after a crash, those since its last commit."""
        return self.topic - self.database

    @property
    def exact(self) -> bool:
        """Every row is there, and each record of the topic stands in the table exactly once."""
        return self.distinct_ids == self.database and self.table == self.topic == self.distinct_offsets


def check_table(directory: Path, name: str, database_rows: int, topic_records: int) -> TableCheck:
    """Read a table's identities and count."""
    columns = ["id", "_kafka_topic", "_kafka_partition", "_kafka_offset"]
    rows = DeltaTable(directory / "lakehouse" / name).to_pyarrow_table(columns=columns)
    places = rows.group_by(columns[1:]).aggregate([])
    ids = rows.group_by("id").aggregate([])
    return TableCheck(name, database_rows, topic_records, rows.num_rows, ids.num_rows, places.num_rows)


def committed_rows(table: Path) -> int:
    """The rows of a Delta table by its commits; 0 when there is none yet."""
    if not (table / "_delta_log").is_dir() or not DeltaTable.is_deltatable(str(table)):
        return 0
    return sum(DeltaTable(table).get_add_actions(flatten=True)["num_records"].to_pylist())


def query(directory: Path, sql: str, tables: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Rows of an SQL query over Delta tables."""
    builder = QueryBuilder()
    for table in tables:
        builder = builder.register(table, DeltaTable(directory / "lakehouse" / table))
    result = builder.execute(sql).read_all()
    return list(zip(*(result[name].to_pylist() for name in result.schema.names), strict=True))


def free_port(preferred: int) -> int:
    """`preferred` when nothing listens there, any free port otherwise."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            bound: int = probe.getsockname()[1]
            return bound
    raise OSError("no free port on 127.0.0.1")
