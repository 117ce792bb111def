"""Loads micro-batches from Spark into the tables. Spark calls the loader in the task's process (`foreachBatch`).

Spark reads and parses the records of all topics and returns them as Arrow. This is usually one job. The loader
appends them to the topics' tables together with the offsets of the micro-batch. It relies only on
the offsets that the tables contain, and ignores rows below these offsets. Therefore, if Spark repeats
a micro-batch, the loader adds only the missing rows, even after a crash between the commits of two
tables.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace_connectors.lakehouse.arrow_rows import TopicRows, split_by_topic
from headrace_connectors.lakehouse.bad_records import BadRecord, BadRecordHandler, describe_bad_payload
from headrace_connectors.lakehouse.column_types import leaf_count, leaf_types
from headrace_connectors.lakehouse.columns import TopicGroup, select_groups
from headrace_connectors.lakehouse.layouts import (
    METADATA_COLUMNS,
    LayoutVariant,
    RecordLayout,
    RecordLayouts,
    RecordPosition,
)
from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, Range, truncate_ranges
from headrace_connectors.lakehouse.tables import Table, Tables
from headrace_connectors.lakehouse.writers.base import (
    BatchIdentity,
    TableSchemaError,
    check_columns,
    check_types,
    leaf_type_texts,
)

LEAF_COLUMNS_MAX = 400
"""Maximum number of leaf columns in one select. For more columns, several selects parse a cached micro-batch."""

logger = logging.getLogger(__name__)
FirstPayloads = Callable[[Sequence[Range]], Iterable[tuple[RecordPosition, str, str | None]]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The identity, end offset and offset ranges of a micro-batch, from Spark's checkpoint."""

    identity: BatchIdentity
    end: KafkaSourceOffset
    ranges: tuple[Range, ...]


class BatchLoader:
    """Loads micro-batches one at a time, on the thread on which Spark calls `foreachBatch`."""

    def __init__(
        self,
        layouts: RecordLayouts,
        tables: Tables,
        bad_records: BadRecordHandler,
        first_payloads: FirstPayloads,
        *,
        metadata_columns: bool,
    ) -> None:
        self._layouts = layouts
        self._tables = tables
        self._bad_records = bad_records
        self._first_payloads = first_payloads
        self._metadata_columns = metadata_columns

    def load(
        self, rows: Any, batch: MicroBatch, commit_guard: Callable[[], AbstractContextManager[Any]]
    ) -> dict[str, int]:
        """Load a micro-batch and return the number of rows added to each table.

        Raises ConnectError if the micro-batch cannot be loaded. If a bad record must fail the task, the loader first
        loads records and then raises BadRecordError. From a partition with bad records, the loader loads only the
        records before the first bad record.

        The loader calls `commit_guard` before it writes the tables. `commit_guard` raises an exception if the
        micro-batch must be cancelled. Otherwise, `commit_guard` returns a context manager. The loader holds this
        context manager while it writes the tables.
        """
        started = time.monotonic()
        added: dict[str, int] = {}
        missing = self._missing_ranges(batch.ranges)
        if not missing:
            return added
        topics = sorted({range_.topic for range_ in missing})
        self._read_table_columns(topics)
        self._learn_layouts(missing)
        logger.debug("Batch %d: determined the columns of new topics from their first records", batch.identity.batch_id)
        topic_rows, bad = self._read(rows, topics)
        self._check_foreign_tables(topics)
        bad_record_error = self._bad_records.handle(bad)
        if bad_record_error is not None:
            first_bad_offsets = bad_record_error.first_bad_offsets
            missing = self._missing_ranges(truncate_ranges(missing, first_bad_offsets))
            topic_rows = [part.before_offsets(first_bad_offsets) for part in topic_rows]
        read_s = time.monotonic() - started
        if missing:
            with commit_guard():
                added = self._write(batch, missing, topic_rows)
            _log_progress(batch, added, read_s, time.monotonic() - started - read_s)
        if bad_record_error is not None:
            raise bad_record_error
        return added

    def _missing_ranges(self, ranges: Iterable[Range]) -> list[Range]:
        return [range_ for range_ in ranges if self._table_of(range_).is_missing(range_)]

    def _table_of(self, range_: Range) -> Table:
        return self._tables.open(range_.topic, [(range_.topic, range_.partition)])

    # --- layouts ----------------------------------------------------------------------------------------------------

    def _layout_of(self, topic: str) -> RecordLayout | None:
        return self._layouts.layout_of(topic, self._tables.name_of(topic))

    def _learn_layouts(self, ranges: Sequence[Range]) -> None:
        """Learn the record layouts of new topics from the topics' first records in the micro-batch."""
        unknown = [
            range_
            for range_ in ranges
            if self._layout_of(range_.topic) is None and not self._layouts.rejected_schemas(range_.topic)
        ]
        if unknown:
            # Sort by topic. If several topics share a new table, the table gets the columns of the first topic.
            for position, schema, payload in sorted(self._first_payloads(unknown), key=lambda found: found[0].topic):
                self._layouts.learn_schema(position.topic, self._tables.name_of(position.topic), schema, payload)

    def _read_table_columns(self, topics: Iterable[str]) -> None:
        """Read the columns of existing tables. Raises TableSchemaError if the configuration does not match a table."""
        for topic in topics:
            table = self._tables.open(topic)
            columns = table.writer.columns()
            if columns is None:
                continue
            if self._metadata_columns:
                absent = [name for name in METADATA_COLUMNS if name not in columns.names]
                if absent:
                    raise TableSchemaError(
                        f"table {table.writer.directory} has no column {absent[0]}: the table was created with"
                        " lakehouse.metadata.columns=false, or by another tool; set lakehouse.metadata.columns=false"
                        " or another table name (lakehouse.table.name.format)"
                    )
                columns = pa.schema([field for field in columns if field.name not in METADATA_COLUMNS])
            types = leaf_type_texts(columns)
            self._layouts.set_table_columns(table.name, types)
            layout = self._layout_of(topic)
            if layout is not None:
                check_types(table.writer.directory, types, leaf_types(layout.columns))

    def _check_foreign_tables(self, topics: Iterable[str]) -> None:
        """Raise TableSchemaError if another tool created a topic's table and none of the topic's records match it.

        In this case the configuration is wrong, so the records must not be skipped as bad records.
        """
        for topic in topics:
            table = self._tables.open(topic)
            rejected = self._layouts.rejected_schemas(topic).values()
            reasons = [schema.reason for schema in rejected if schema.columns_mismatch]
            if reasons and self._layout_of(topic) is None and not table.is_ours and table.writer.columns() is not None:
                raise TableSchemaError(
                    f"topic {topic}: {reasons[0]}; table {table.name} was not created by this connector: set another"
                    " table name (lakehouse.table.name.format), or change the table's columns"
                )

    def _groups(self, topics: Iterable[str]) -> list[TopicGroup]:
        by_layouts: dict[tuple[RecordLayout, ...], list[tuple[str, tuple[LayoutVariant, ...]]]] = defaultdict(list)
        for topic in topics:
            variants = self._layouts.variants(topic, self._tables.name_of(topic))
            if variants:
                by_layouts[tuple(variant.layout for variant in variants)].append((topic, variants))
        groups = []
        for number, (layouts, members) in enumerate(by_layouts.items()):
            of_member = zip(*(variants for _, variants in members), strict=True)
            merged = [frozenset[int]().union(*(variant.schema_ids for variant in same)) for same in of_member]
            groups.append(
                TopicGroup(
                    f"group_{number}",
                    tuple(map(LayoutVariant, layouts, merged)),
                    tuple(topic for topic, _ in members),
                    self._layouts.reads_decimals_as_numbers(layouts[0]),
                )
            )
        return groups

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, rows: Any, topics: Sequence[str]) -> tuple[list[TopicRows], list[BadRecord]]:
        """Return the valid rows by topic, and the bad records.

        If records have new schemas, Spark parses the micro-batch again with the new schemas.
        """
        selected = rows.where(rows["topic"].isin(list(topics)))
        while True:
            found = [
                part.from_offsets(self._tables.open(part.topic).committed.next_offsets)
                for part in self._collect(selected, self._groups(topics))
            ]
            learned = self._learn_schemas(found)
            bad = [self._find_bad_rows(rows) for rows in found]
            if not self._learn_decimal_formats(found, bad) and not learned:
                break
        good = [part.drop(list(records)) for part, records in zip(found, bad, strict=True)]
        return good, [record for records in bad for record, _ in records.values()]

    def _collect(self, rows: Any, groups: Sequence[TopicGroup]) -> Iterator[TopicRows]:
        """Run Spark and yield the rows of each topic.

        One Spark job parses all topic groups. If the job's select would have too many columns, several
        jobs parse a cached copy of the micro-batch instead.
        """
        chunks = list(_chunks(groups))
        if len(chunks) == 1:
            yield from _rows_of(select_groups(rows, chunks[0]).toArrow(), chunks[0])
            return
        cached = rows.persist()
        try:
            grouped = {topic for group in groups for topic in group.topics}
            yield from _rows_of(select_groups(cached.where(~cached["topic"].isin(list(grouped))), []).toArrow(), [])
            for chunk in chunks:
                topics = [topic for group in chunk for topic in group.topics]
                yield from _rows_of(select_groups(cached.where(cached["topic"].isin(topics)), chunk).toArrow(), chunk)
        finally:
            cached.unpersist()

    def _find_bad_rows(self, rows: TopicRows) -> dict[int, tuple[BadRecord, str | None]]:
        """Return the bad records of a topic and their unparsed payloads, by row index."""
        bad: dict[int, tuple[BadRecord, str | None]] = {}
        layout, rejected = self._layout_of(rows.topic), self._layouts.rejected_schemas(rows.topic)
        for row, error, payload in rows.unreadable_rows():
            reason = error
            if reason is None and payload is not None and layout is not None:
                numeric = self._layouts.reads_decimals_as_numbers(layout)
                reason = describe_bad_payload(payload, layout, decimals_numeric=numeric)
            bad[row] = BadRecord(rows.record_position(row), reason or "the value cannot be parsed"), payload
        for row in rows.rows_with_schemas(rejected) if rejected else ():
            schema = rejected[rows.kafka["schema_id"][row].as_py()]
            bad[row] = BadRecord(rows.record_position(row), schema.reason, schema.columns_mismatch), None
        required = self._layouts.required_columns(rows.topic)
        for row, name in rows.missing_required_values(required):
            if name in self._layouts.required_in_schema(rows.topic, rows.kafka["schema_id"][row].as_py()):
                reason = f"field {name} is null, but its schema is not optional"
                bad.setdefault(row, (BadRecord(rows.record_position(row), reason), None))
        return bad

    def _learn_schemas(self, found: Iterable[TopicRows]) -> bool:
        """Add new schemas to the record layouts. Returns whether the micro-batch must be parsed again."""
        learned = False
        for rows in found:
            known = self._layouts.schema_ids(rows.topic) | self._layouts.rejected_schemas(rows.topic).keys()
            for _, schema in rows.unknown_schemas(known):
                payload = None  # `_learn_layouts` has already determined the encoding of decimals
                table = self._tables.name_of(rows.topic)
                learned = self._layouts.learn_schema(rows.topic, table, schema, payload) or learned
        return learned

    def _learn_decimal_formats(
        self, found: Iterable[TopicRows], bad: Iterable[dict[int, tuple[BadRecord, str | None]]]
    ) -> bool:
        """Determine the encoding of decimals from the payloads that Spark could not parse.

        Returns whether Spark must parse the micro-batch again, with another encoding.
        """
        learned = False
        for rows, records in zip(found, bad, strict=True):
            payloads = [payload for _, payload in records.values() if payload is not None]
            learned = any(self._layouts.learn_decimal_format(rows.topic, payload) for payload in payloads) or learned
        return learned

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, batch: MicroBatch, ranges: Sequence[Range], topic_rows: Sequence[TopicRows]) -> dict[str, int]:
        by_table: dict[str, list[Range]] = defaultdict(list)
        for range_ in ranges:
            by_table[self._tables.name_of(range_.topic)].append(range_)
        rows_of = {rows.topic: rows for rows in topic_rows}
        added: dict[str, int] = {}
        for name, table_ranges in sorted(by_table.items()):
            topics = sorted({range_.topic for range_ in table_ranges})
            parts = [rows_of[topic] for topic in topics if topic in rows_of]
            added[name] = self._append(batch, self._table_of(table_ranges[0]), table_ranges, parts)
        return added

    def _append(self, batch: MicroBatch, table: Table, ranges: Sequence[Range], parts: Sequence[TopicRows]) -> int:
        columns = table.writer.columns()
        tables: list[pa.Table] = []
        for rows in parts:
            arrow = rows.to_table(columns, metadata=self._metadata_columns)
            if arrow is None:
                logger.warning(
                    "Topic %s: dropping %d tombstones, because the topic's table does not exist yet and no earlier"
                    " record had a schema from which to create the table",
                    rows.topic,
                    len(rows),
                )
                continue
            table.writer.prepare(arrow.schema)
            if tables:
                check_columns(table.writer.directory, tables[0].schema, arrow.schema)
            tables.append(arrow)
        if not tables:
            if columns is None:
                return 0
            tables = [columns.empty_table()]
        rows = _concatenated(tables)
        table.write(batch.identity, rows, table.offset_after(ranges, batch.end.topic_ids))
        return int(rows.num_rows)


def _chunks(groups: Sequence[TopicGroup]) -> Iterator[list[TopicGroup]]:
    """Split `groups` into lists with at most LEAF_COLUMNS_MAX columns each.

    A topic group with more columns is the only element of its list.
    """
    chunk: list[TopicGroup] = []
    total = 0
    for group in groups:
        columns = sum(leaf_count(column.type) for variant in group.variants for column in variant.layout.columns)
        if chunk and total + columns > LEAF_COLUMNS_MAX:
            yield chunk
            chunk, total = [], 0
        chunk.append(group)
        total += columns
    yield chunk


def _rows_of(arrow: pa.Table, groups: Sequence[TopicGroup]) -> Iterator[TopicRows]:
    return split_by_topic(arrow, {topic: group.name for group in groups for topic in group.topics})


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate the rows of topics that share a table, in the column order of the first topic."""
    names = tables[0].column_names
    return pa.concat_tables([table.select(names) for table in tables])


def _log_progress(batch: MicroBatch, added: dict[str, int], read_s: float, write_s: float) -> None:
    rows = sum(added.values())
    tables = ", ".join(f"{name} +{count:,}" for name, count in added.items() if count)
    logger.info(
        "Committed batch %d: %s rows in %.1f s (%s rows/s; reading took %.1f s, committing took %.1f s): %s",
        batch.identity.batch_id,
        f"{rows:,}",
        read_s + write_s,
        f"{rows / max(read_s + write_s, 1e-3):,.0f}",
        read_s,
        write_s,
        tables or "offsets only",
    )
