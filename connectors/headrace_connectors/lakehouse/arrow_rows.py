"""Splits a micro-batch's Arrow rows by topic, validates them and converts them to table rows.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connectors.lakehouse.envelope import NO_SCHEMA
from headrace_connectors.lakehouse.layouts import METADATA_COLUMNS, RecordPosition
from headrace_connectors.lakehouse.ranges import TopicPartition

BAD_PAYLOAD = "_headrace_bad"
"""Name of the field in a value struct that contains the payload if it could not be parsed."""
_METADATA_SOURCES = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class TopicRows:
    """The rows of one topic in a micro-batch.

    `kafka` has the columns of the Spark data source `headrace_kafka`. `values` has the parsed values. `values` is None
    if the columns of the topic's records are not known yet.
    """

    topic: str
    kafka: pa.Table
    values: pa.StructArray | None

    def __len__(self) -> int:
        return int(self.kafka.num_rows)

    def record_position(self, row: int) -> RecordPosition:
        """Return the topic, partition and offset of a row."""
        return RecordPosition(self.topic, self.kafka["partition"][row].as_py(), self.kafka["offset"][row].as_py())

    def filter(self, mask: pa.Array) -> TopicRows:
        """Return the rows for which `mask` is true."""
        values = self.values.filter(mask) if self.values is not None else None
        return TopicRows(self.topic, self.kafka.filter(mask), values)

    def unknown_schemas(self, known: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Yield (row index, schema JSON) for each schema id that is not in `known`.

        The row is the record with the lowest offset among the records with this schema.
        """
        ids = self.kafka["schema_id"]
        unknown = pc.invert(pc.is_in(ids, pa.array([NO_SCHEMA, *known], pa.int64())))
        if not pc.any(unknown).as_py():
            return
        rows = pc.indices_nonzero(unknown)
        subset = self.kafka.select(["schema_id", "offset", "schema"]).take(rows).append_column("row", rows)
        for id_ in subset["schema_id"].unique():
            of_id = subset.filter(pc.equal(subset["schema_id"], id_))
            text = of_id["schema"].drop_null()[0].as_py()
            yield of_id.sort_by("offset")["row"][0].as_py(), text

    def unreadable_rows(self) -> Iterator[tuple[int, str | None, str | None]]:
        """Yield (row index, Kafka source's error, unparsed payload) for each record that cannot become a table row."""
        errors = self.kafka["error"].combine_chunks()
        payloads = _field(self.values, BAD_PAYLOAD) if self.values is not None else pa.nulls(len(self), pa.string())
        bad = pc.or_(errors.is_valid(), payloads.is_valid())
        for row in pc.indices_nonzero(bad).to_pylist():
            yield row, errors[row].as_py(), payloads[row].as_py()

    def missing_required_values(self, columns: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield (row index, column) for each null in `columns`. Skips tombstones and unparsed payloads."""
        if self.values is None:
            return
        present = pc.and_(self.values.is_valid(), _field(self.values, BAD_PAYLOAD).is_null())
        for name in columns:
            nulls = pc.and_(present, _field(self.values, name).is_null())
            for row in pc.indices_nonzero(nulls).to_pylist():
                yield row, name

    def drop(self, rows: Sequence[int]) -> TopicRows:
        """Return all rows except those at the indexes `rows`."""
        if not rows:
            return self
        return self.filter(pc.invert(pc.is_in(pa.array(range(len(self))), pa.array(rows))))

    def rows_with_schemas(self, schema_ids: Iterable[int]) -> list[int]:
        """Return the indexes of rows whose schema id is in `schema_ids`."""
        mask = pc.is_in(self.kafka["schema_id"], pa.array(list(schema_ids), pa.int64()))
        rows: list[int] = pc.indices_nonzero(mask).to_pylist()
        return rows

    def from_offsets(self, next_offsets: Mapping[TopicPartition, int]) -> TopicRows:
        """Return the rows at or after their partition's next offset. The table does not contain these rows yet."""
        return self._filter_offsets(next_offsets, pc.less)

    def before_offsets(self, ends: Mapping[TopicPartition, int]) -> TopicRows:
        """Return the rows before each partition's end offset in `ends`. Partitions without an end keep all rows."""
        return self._filter_offsets(ends, pc.greater_equal)

    def _filter_offsets(self, offsets: Mapping[TopicPartition, int], excludes: Callable[[Any, int], Any]) -> TopicRows:
        """Remove the rows for which `excludes(row's offset, offset of the row's partition in offsets)` is true."""
        rows = self
        for (topic, partition), offset in offsets.items():
            if topic == self.topic:
                excluded = pc.and_(pc.equal(rows.kafka["partition"], partition), excludes(rows.kafka["offset"], offset))
                if pc.any(excluded).as_py():
                    rows = rows.filter(pc.invert(excluded))
        return rows

    def to_table(self, columns: pa.Schema | None, *, metadata: bool) -> pa.Table | None:
        """Return rows for the table. If `metadata` is true, the first columns are the metadata columns.

        `columns` are the columns of the table, or None if the table does not exist yet. If all records are tombstones,
        the columns of the topic's records may be unknown. The rows then have the columns of the table. If the table
        does not exist yet either, returns None.
        """
        names, arrays = self._metadata() if metadata else ([], [])
        if self.values is not None:
            # flatten() makes all fields of a null struct null, so a tombstone becomes a row of nulls.
            for field, array in zip(self.values.type, self.values.flatten(), strict=True):
                if field.name != BAD_PAYLOAD:
                    names.append(field.name)
                    arrays.append(array)
        elif columns is not None:
            for field in columns:
                if field.name not in names:
                    names.append(field.name)
                    arrays.append(pa.nulls(len(self), field.type))
        else:
            return None
        return pa.table(
            arrays, schema=pa.schema([(name, array.type) for name, array in zip(names, arrays, strict=True)])
        )

    def _metadata(self) -> tuple[list[str], list[pa.Array]]:
        return list(METADATA_COLUMNS), [self.kafka[source].combine_chunks() for source in _METADATA_SOURCES]


def _field(values: pa.StructArray, name: str) -> pa.Array:
    """Return the values of the field `name`, which are null where the struct is null."""
    return pc.struct_field(values, [values.type.get_field_index(name)])


def split_by_topic(batch: pa.Table, value_column: Mapping[str, str]) -> Iterator[TopicRows]:
    """Yield the rows of each topic in the micro-batch. `value_column` maps a topic to its struct column's name."""
    kafka = batch.select([name for name in batch.column_names if name not in set(value_column.values())])
    topics = pc.unique(batch["topic"]).to_pylist()
    for topic in sorted(topics):
        mask = pc.equal(batch["topic"], topic).combine_chunks() if len(topics) > 1 else None
        values = batch[value_column[topic]].combine_chunks() if topic in value_column else None
        rows = TopicRows(topic, kafka, values)
        yield rows if mask is None else rows.filter(mask)
