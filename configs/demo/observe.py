"""Observes the running demo through the worker's REST API, the broker's end offsets and the tables' commits.

It uses only public interfaces: HTTP, a Kafka client and delta-rs.
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
_BOOTSTRAP = re.compile(r"started an embedded broker at (\S+:\d+)")
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The state of the pipeline at one point in time.

    `states` has the REST status of the source connector, the sink connector and their tasks. All other attributes have
    counts by table: rows in the database, committed source offsets, records in topics, and rows in lakehouse tables.
    """

    database_rows: dict[str, int]
    states: list[dict[str, Any]]
    source_offsets: dict[str, int]
    topic_records: dict[str, int]
    table_rows: dict[str, int]

    @property
    def failure(self) -> str | None:
        """The error trace of a failed connector or task, or None if no connector and no task has failed."""
        failed = [state for state in self.states if state["state"] == "FAILED"]
        return failed[0].get("trace", "a task failed") if failed else None

    @property
    def is_running(self) -> bool:
        """Whether the source connector, the sink connector and their tasks are running."""
        return len(self.states) >= 4 and all(state["state"] == "RUNNING" for state in self.states)

    @property
    def is_complete(self) -> bool:
        """Whether all tasks are running, the source has committed all rows, and the tables contain all records."""
        if not self.is_running or self.source_offsets != self.database_rows:
            return False
        return all(
            self.table_rows[table] == self.topic_records[table] >= rows for table, rows in self.database_rows.items()
        )


class Observer:
    """Queries the state of the pipeline whose worker listens on `rest_port`."""

    def __init__(self, rest_port: int, directory: Path, log: Path, expected_rows: dict[str, int]) -> None:
        self._rest = f"http://127.0.0.1:{rest_port}"
        self._log = log
        self._log_start = log.stat().st_size
        self._lakehouse = directory / "lakehouse"
        self._rows = expected_rows
        self._consumer: Consumer | None = None
        self._has_responded = False
        self._topics: set[str] = set()
        self._end_offsets = dict.fromkeys(expected_rows, 0)
        self.rows_before = sum(self._tables().values())

    @property
    def expected(self) -> int:
        """The number of rows in all tables of the database."""
        return sum(self._rows.values())

    def has_responded(self) -> bool:
        """Whether the worker has responded to at least one request."""
        return self._has_responded

    def query_status(self) -> PipelineStatus:
        """Query the state of the pipeline, one stage after another: database, source, topics, tables."""
        return PipelineStatus(
            self._rows, self._states(), self._source_offsets(), self.records_in_topics(), self._tables()
        )

    def _states(self) -> list[dict[str, Any]]:
        """Return the states of the source connector, the sink connector and all their tasks."""
        statuses = self._get("/connectors?expand=status") or {}
        found = []
        for status in (statuses[name]["status"] for name in (SOURCE, SINK) if name in statuses):
            found += [status["connector"], *status["tasks"]]
        return found

    def _source_offsets(self) -> dict[str, int]:
        """Return the last committed id of each table. It is the number of rows that were read: ids are 1, 2, 3, ..."""
        body = self._get(f"/connectors/{SOURCE}/offsets") or {}
        return {
            item["partition"]["table"]: int(item["offset"].get("incrementing", 0))
            for item in body.get("offsets", [])
            if item.get("offset") and "table" in item["partition"]
        }

    def records_in_topics(self) -> dict[str, int]:
        """Return each topic's end offset. It is the number of records: topics have one partition and no retention."""
        consumer = self._connect()
        if consumer is None:
            return dict(self._end_offsets)
        try:
            if not all(self._end_offsets.values()):
                self._topics = set(consumer.list_topics(timeout=_TIMEOUT_S).topics)
            for topic in self._topics & self._rows.keys():
                partition = TopicPartition(topic, 0)
                self._end_offsets[topic] = consumer.get_watermark_offsets(partition, timeout=_TIMEOUT_S)[1]
        except KafkaException:
            return dict(self._end_offsets)  # the broker is starting or stopping: return the last known offsets
        return dict(self._end_offsets)

    def _tables(self) -> dict[str, int]:
        """Return the number of rows in each Delta table, from the statistics in its transaction log."""
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
                self._has_responded = True
                return json.load(response)
        except urllib.error.HTTPError:
            self._has_responded = True
        except (urllib.error.URLError, OSError):
            return None  # the worker is starting or stopping: the caller retries
        return None


@dataclass(frozen=True, slots=True)
class TableCheck:
    """The row counts of one table at every stage of the pipeline."""

    name: str
    database: int
    topic: int
    table: int
    distinct_ids: int
    distinct_offsets: int

    @property
    def reread(self) -> int:
        """The number of rows that the source has read again after crashes: the rows after its last committed offset."""
        return self.topic - self.database

    @property
    def is_exact(self) -> bool:
        """Whether the table has every row of the database, and each record of the topic exactly once."""
        return self.distinct_ids == self.database and self.table == self.topic == self.distinct_offsets


def check_table(directory: Path, name: str, database_rows: int, topic_records: int) -> TableCheck:
    """Count the rows, distinct ids and distinct offsets in the table `name`.

    The result also contains `database_rows` and `topic_records`.
    """
    columns = ["id", "_kafka_topic", "_kafka_partition", "_kafka_offset"]
    rows = DeltaTable(directory / "lakehouse" / name).to_pyarrow_table(columns=columns)
    offsets = rows.group_by(columns[1:]).aggregate([])
    ids = rows.group_by("id").aggregate([])
    return TableCheck(name, database_rows, topic_records, rows.num_rows, ids.num_rows, offsets.num_rows)


def committed_rows(table: Path) -> int:
    """Return the number of rows in a Delta table according to its commits, or 0 if the table does not exist yet."""
    if not (table / "_delta_log").is_dir() or not DeltaTable.is_deltatable(str(table)):
        return 0
    return sum(DeltaTable(table).get_add_actions(flatten=True)["num_records"].to_pylist())


def query(directory: Path, sql: str, tables: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """Run an SQL query on Delta tables and return its rows."""
    builder = QueryBuilder()
    for table in tables:
        builder = builder.register(table, DeltaTable(directory / "lakehouse" / table))
    result = builder.execute(sql).read_all()
    return list(zip(*(result[name].to_pylist() for name in result.schema.names), strict=True))


def free_port(preferred: int) -> int:
    """Return the port `preferred` if it is free, otherwise any free port."""
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
