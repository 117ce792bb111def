"""Groups the records of one `put` into runs: consecutive rows of one table with the same columns.

A run has at most `batch.size` rows. One `put` receives one or more `SinkBatch` objects, and a run may contain rows of
several `SinkBatch` objects. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from headrace.api.errors import DataError
from headrace.data.batch import SinkBatch
from headrace.data.schema import Schema, Type
from headrace.data.sink_records import SinkRecords
from headrace_connectors.common.tombstones import starts_with_tombstone
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig, ways_to_a_schema
from headrace_connectors.jdbc.writing.fields import Column, ColumnPlanner


@dataclass(frozen=True, slots=True)
class Run:
    """Rows to write, or keys of rows to delete, in the order of their records."""

    table: str
    columns: tuple[Column, ...]
    values: list[Sequence[Any]]
    """One sequence of values for each column."""
    indexes: Sequence[int]
    """The index of each row's record in the `put`."""
    is_delete: bool = False

    def __len__(self) -> int:
        return len(self.indexes)

    def part(self, start: int, end: int) -> Run:
        """Return the rows from index `start` up to, but not including, index `end`."""
        values = [column[start:end] for column in self.values]
        return Run(self.table, self.columns, values, self.indexes[start:end], self.is_delete)

    def without(self, indexes: Container[int]) -> Run:
        """Return a run without the rows of the records in `indexes`."""
        kept = [row for row, index in enumerate(self.indexes) if index not in indexes]
        values: list[Sequence[Any]] = [[column[row] for row in kept] for column in self.values]
        return Run(self.table, self.columns, values, [self.indexes[row] for row in kept], self.is_delete)


class RunBuilder:
    """Converts records to runs."""

    def __init__(self, name: str, config: JdbcSinkConfig) -> None:
        self._name = name
        self._config = config
        self._planner = ColumnPlanner(config)
        self._mode = config.pk_mode.lower()

    def build(self, records: SinkRecords) -> tuple[list[Run], dict[int, Exception]]:
        """Return the runs in the order of their records, and the errors of records that cannot become rows."""
        parts: list[Run] = []
        errors: dict[int, Exception] = {}
        start = 0
        for batch in records.batches:
            for offset, part in _uniform_parts(batch):
                indexes = range(start + offset, start + offset + len(part))
                try:
                    self._check(part)
                    parts.append(self._run(part, indexes))
                except DataError as error:
                    errors.update(dict.fromkeys(indexes, error))
            start += len(batch)
        return list(self._merge(parts)), errors

    def _merge(self, parts: list[Run]) -> Iterator[Run]:
        """Merge consecutive parts with the same table and columns, and split the result into runs of `batch.size`."""
        size = self._config.batch_size
        for _, group in groupby(parts, key=lambda part: (part.table, part.columns, part.is_delete)):
            merged = _concatenate(list(group))
            for first in range(0, len(merged), size):
                yield merged if len(merged) <= size else merged.part(first, first + size)

    def _run(self, batch: SinkBatch, indexes: range) -> Run:
        table = self._config.table_name_format.replace("${topic}", batch.topic)
        is_delete = starts_with_tombstone(batch)
        plan = self._planner.plan(table, batch.key_schema, None if is_delete else batch.value_schema)
        return Run(table, plan.columns, [read(batch) for read in plan.read], indexes, is_delete)

    def _check(self, batch: SinkBatch) -> None:
        """Raise DataError if the configuration does not allow records like those in `batch`."""
        is_tombstone = starts_with_tombstone(batch)
        if is_tombstone and not self._config.delete_enabled:
            raise self._rejected(
                batch, "requires records with a non-null Struct value and non-null Struct schema", "value"
            )
        schema = batch.value_schema
        if not is_tombstone and (schema is None or schema.type not in (Type.STRUCT, Type.STRING)):
            raise self._rejected(
                batch, "requires records with a non-null Struct value and non-null Struct schema", "value"
            )
        if self._mode == "record_key" and (batch.keys is None or batch.keys[0] is None or batch.key_schema is None):
            raise self._rejected(
                batch, "requires records with a non-null key and non-null Struct or primitive key schema", "key"
            )

    def _rejected(self, batch: SinkBatch, requirement: str, side: str) -> DataError:
        schema = batch.value_schema if side == "value" else batch.key_schema
        items = batch.values if side == "value" else batch.keys
        found = _class_name(items[0] if items else None, schema)
        timestamp = batch.timestamp_list()[0]
        deletes = str(self._config.delete_enabled).lower()
        hint = ""
        if side == "value" and found == "null":
            hint = _tombstone_hint(self._mode)
        if schema is None and found != "null":
            hint = f"; the {side} has no schema. {ways_to_a_schema(side)}"
        return DataError(
            f"Sink connector '{self._name}' is configured with 'delete.enabled={deletes}'"
            f" and 'pk.mode={self._mode}' and therefore {requirement}, but found record at "
            f"(topic='{batch.original_topic}',partition={batch.original_partition},offset={batch.original_offsets[0]},"
            f"timestamp={timestamp}) with a {found} {side} and {_schema_name(schema)} {side} schema{hint}."
        )


def _tombstone_hint(mode: str) -> str:
    """Return how to configure the sink for tombstones if `delete.enabled` is false."""
    first = "" if mode == "record_key" else "pk.mode=record_key and "
    return (
        f"; this record is a tombstone. Set {first}delete.enabled=true to delete the row with the record's key, or "
        "drop tombstones with the transform Filter and the predicate RecordIsTombstone"
    )


def _concatenate(parts: list[Run]) -> Run:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    values: list[Sequence[Any]] = [
        list(chain.from_iterable(columns)) for columns in zip(*(part.values for part in parts), strict=True)
    ]
    indexes = list(chain.from_iterable(part.indexes for part in parts))
    return Run(first.table, first.columns, values, indexes, first.is_delete)


def _class_name(value: Any, schema: Schema | None) -> str:
    if value is None:
        return "null"
    if schema is not None and schema.type is Type.STRUCT:
        return "Struct"
    names: dict[type, str] = {dict: "HashMap", list: "ArrayList", str: "String", int: "Long", float: "Double"}
    return names.get(type(value), type(value).__name__)


def _schema_name(schema: Schema | None) -> str:
    return "null" if schema is None else schema.type.value


def _uniform_parts(batch: SinkBatch) -> Iterator[tuple[int, SinkBatch]]:
    """Split the batch into parts. In each part, the values are all null or all not null, and so are the keys.

    Yields (index of the part's first record, part).
    """
    keys = batch.keys if batch.keys is not None and None in batch.keys else None
    values = batch.values if batch.has_null_values else None
    if keys is None and values is None:
        yield 0, batch
        return

    def kind(index: int) -> tuple[bool, bool]:
        return keys is not None and keys[index] is None, values is not None and values[index] is None

    for _, run in groupby(range(len(batch)), key=kind):
        indexes = list(run)
        yield indexes[0], batch.take(indexes)
