"""Runs the JDBC connector and its tasks in this process, with offsets in a dictionary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.data.batch import SourceBatch
from headrace.data.struct import from_rows
from headrace_connectors.jdbc.source import JdbcSourceConnector, JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceConfig, JdbcSourceTaskConfig

_CHECKED_ROWS = 1000


class Offsets:
    """An in-memory source offset store."""

    def __init__(self) -> None:
        self.committed: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}

    def commit(self, partition: Mapping[str, Any], offset: Mapping[str, Any]) -> None:
        self.committed[tuple(sorted(partition.items()))] = dict(offset)

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        return self.committed.get(tuple(sorted(partition.items())))

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        return [self.read(partition) for partition in partitions]


class Context:
    """A fake context for a connector and its tasks. The method `wait` returns immediately and advances the clock."""

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets
        self.props: Mapping[str, str] = {}
        self.connector_name = "shop"
        self.tolerates_errors = False
        self.reconfigurations = 0
        self.now_s = 0.0

    def wait(self, seconds: float) -> bool:
        self.now_s += seconds
        return True

    def monotonic(self) -> float:
        return self.now_s

    def request_task_reconfiguration(self) -> None:
        self.reconfigurations += 1

    def raise_error(self, error: Exception) -> None:
        raise error


def read_all(
    props: Mapping[str, str], offsets: Offsets | None = None, max_tasks: int = 1, *, checks_values: bool = True
) -> list[SourceBatch]:
    """Run the connector, read each table once, and commit each batch's offset. Return the batches.

    If `checks_values` is true, check that the values of the batches fit their schemas.
    """
    offsets = offsets or Offsets()
    settings = {"poll.interval.ms": "600000", "connection.backoff.ms": "0", **props}
    connector = JdbcSourceConnector()
    connector.context = Context(offsets)
    connector.start(JdbcSourceConfig.parse(settings))
    batches: list[SourceBatch] = []
    try:
        for task_config in connector.task_configs(max_tasks):
            batches += drain(task_config, offsets, checks_values=checks_values)
    finally:
        connector.stop()
    return batches


def drain(
    task_config: Mapping[str, str], offsets: Offsets, polls: int = 1_000_000, *, checks_values: bool = True
) -> list[SourceBatch]:
    """Poll a task at most `polls` times, and stop when it returns no batch.

    Commit the offset of each batch, and return the batches.
    """
    task = JdbcSourceTask()
    task.poll_block_s = 0.0
    task.context = Context(offsets)  # type: ignore[assignment]
    task.start(JdbcSourceTaskConfig.parse(task_config))
    found: list[SourceBatch] = []
    try:
        while len(found) < polls and (batch := task.poll()) is not None:
            offsets.commit(batch.source_partition, batch.source_offset)
            if checks_values:
                check_values(batch)
            found.append(batch)
    finally:
        task.stop()
    return found


def check_values(batch: SourceBatch) -> None:
    """Check that the values of the first rows fit the schema. Raises DataError."""
    if not batch.values:
        return  # only the offset is committed
    assert batch.value_schema is not None
    for value in from_rows(batch.value_schema, batch.values[:_CHECKED_ROWS]):
        value.validate()


def rows(batches: Iterable[SourceBatch]) -> list[tuple[Any, ...]]:
    """Return the rows of all batches."""
    return [row for batch in batches for row in batch.values]
