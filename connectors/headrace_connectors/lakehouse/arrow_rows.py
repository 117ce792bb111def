"""The rows of a batch in Arrow: split by topic, checked, and made into a table's rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace_connectors.lakehouse.envelope import NO_SCHEMA
from headrace_connectors.lakehouse.layouts import METADATA_COLUMNS, Place
from headrace_connectors.lakehouse.ranges import TopicPartition

BAD = "_headrace_bad"
"""The field of a value struct that holds a payload that could not be read."""
_METADATA_SOURCES = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class TopicRows:
    """One topic's rows: the source's columns, and the typed values (None while the topic's layout is unknown)."""

    topic: str
    kafka: pa.Table
    values: pa.StructArray | None

    def __len__(self) -> int:
        return int(self.kafka.num_rows)

    def place(self, row: int) -> Place:
        """Where the record of a row stands."""
        return Place(self.topic, self.kafka["partition"][row].as_py(), self.kafka["offset"][row].as_py())

    def filter(self, mask: pa.Array) -> TopicRows:
        """Return the rows where the mask holds."""
        values = self.values.filter(mask) if self.values is not None else None
        return TopicRows(self.topic, self.kafka.filter(mask), values)

    def unknown_schemas(self, known: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Yield the first row of each schema that is not known, in offset order, with the schema's text."""
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

    def unreadable(self) -> Iterator[tuple[int, str | None, str | None]]:
        """Yield (row, the source's error, the payload that did not parse) for each record that is no row."""
        errors = self.kafka["error"].combine_chunks()
        payloads = _field(self.values, BAD) if self.values is not None else pa.nulls(len(self), pa.string())
        bad = pc.or_(errors.is_valid(), payloads.is_valid())
        for row in pc.indices_nonzero(bad).to_pylist():
            yield row, errors[row].as_py(), payloads[row].as_py()

    def missing_required(self, columns: Iterable[str]) -> Iterator[tuple[int, str]]:
        """Yield (row, column) for nulls in columns that have none, tombstones and unreadable payloads left out."""
        if self.values is None:
            return
        present = pc.and_(self.values.is_valid(), _field(self.values, BAD).is_null())
        for name in columns:
            nulls = pc.and_(present, _field(self.values, name).is_null())
            for row in pc.indices_nonzero(nulls).to_pylist():
                yield row, name

    def without(self, rows: Sequence[int]) -> TopicRows:
        """Return all but some rows."""
        if not rows:
            return self
        return self.filter(pc.invert(pc.is_in(pa.array(range(len(self))), pa.array(rows))))

    def refused(self, schema_ids: Iterable[int]) -> list[int]:
        """Return the rows whose schema has one of these ids."""
        mask = pc.is_in(self.kafka["schema_id"], pa.array(list(schema_ids), pa.int64()))
        rows: list[int] = pc.indices_nonzero(mask).to_pylist()
        return rows

    def from_offsets(self, next_offsets: Mapping[TopicPartition, int]) -> TopicRows:
        """Return the rows at or after each partition's next offset: those that a table has not."""
        return self._without_partly(next_offsets, pc.less)

    def before_offsets(self, ends: Mapping[TopicPartition, int]) -> TopicRows:
        """Return the rows before each partition's end, where it has one."""
        return self._without_partly(ends, pc.greater_equal)

    def _without_partly(self, offsets: Mapping[TopicPartition, int], compare: Callable[[Any, int], Any]) -> TopicRows:
        rows = self
        for (topic, partition), offset in offsets.items():
            if topic == self.topic:
                outside = pc.and_(pc.equal(rows.kafka["partition"], partition), compare(rows.kafka["offset"], offset))
                if pc.any(outside).as_py():
                    rows = rows.filter(pc.invert(outside))
        return rows

    def to_table(self, columns: pa.Schema | None, *, metadata: bool) -> pa.Table | None:
        """Return the rows as the table has them: metadata columns, then the value's.

        `columns` is what the table has, for rows without any value (tombstones only); None when nothing is known.
        """
        names, arrays = self._metadata() if metadata else ([], [])
        if self.values is not None:
            # flatten() hands a null struct's nullness down to its fields: a tombstone is a row of nulls.
            for field, array in zip(self.values.type, self.values.flatten(), strict=True):
                if field.name != BAD:
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
    """Return a field's values, null where the struct is null."""
    return pc.struct_field(values, [values.type.get_field_index(name)])


def split_by_topic(batch: pa.Table, value_column: Mapping[str, str]) -> Iterator[TopicRows]:
    """Yield the rows of each topic that the batch has; `value_column` names the struct column of a topic's values."""
    kafka = batch.select([name for name in batch.column_names if name not in set(value_column.values())])
    topics = pc.unique(batch["topic"]).to_pylist()
    for topic in sorted(topics):
        mask = pc.equal(batch["topic"], topic).combine_chunks() if len(topics) > 1 else None
        values = batch[value_column[topic]].combine_chunks() if topic in value_column else None
        rows = TopicRows(topic, kafka, values)
        yield rows if mask is None else rows.filter(mask)
