"""One micro-batch, from Spark to the tables: what runs in `foreachBatch`, in the task's process.

A batch is read, parsed and typed by Spark in one job for all its topics, comes here as Arrow, and is appended to each
table with the offsets it covers. The tables' own offsets are the truth: whatever Spark hands over, rows below a table's
committed offsets are left out, so a batch that is repeated, or was cut short between two tables, adds what is missing
and nothing else.
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
from headrace_connectors.lakehouse.bad_records import BadRecord, BadRecords, diagnose
from headrace_connectors.lakehouse.column_types import leaf_types, width
from headrace_connectors.lakehouse.columns import Group, select_groups
from headrace_connectors.lakehouse.layouts import METADATA_COLUMNS, Layout, Layouts, Place, Variant
from headrace_connectors.lakehouse.ranges import Position, Range, cut
from headrace_connectors.lakehouse.tables import Table, Tables
from headrace_connectors.lakehouse.writers.base import (
    BatchIdentity,
    TableSchemaError,
    check_columns,
    check_types,
    leaf_type_texts,
)

WIDTH_MAX = 400
"""Leaf columns of one select; a batch of more topics than fit is parsed in several, from a cached copy."""

_log = logging.getLogger(__name__)
FirstPayloads = Callable[[Sequence[Range]], Iterable[tuple[Place, str, str | None]]]


@dataclass(frozen=True, slots=True)
class Batch:
    """What Spark's checkpoint says about a batch."""

    identity: BatchIdentity
    end: Position
    ranges: tuple[Range, ...]


class BatchLoader:
    """Loads batches, one after the other, on the thread that Spark calls back on."""

    def __init__(
        self,
        layouts: Layouts,
        tables: Tables,
        bad_records: BadRecords,
        first_payloads: FirstPayloads,
        *,
        metadata_columns: bool,
    ) -> None:
        self._layouts = layouts
        self._tables = tables
        self._bad_records = bad_records
        self._first_payloads = first_payloads
        self._metadata_columns = metadata_columns

    def load(self, rows: Any, batch: Batch, may_commit: Callable[[], AbstractContextManager[Any]]) -> dict[str, int]:
        """Load a batch; returns the rows added, by table. Raises ConnectError when it cannot be loaded.

        Raises StoppingRecordError once everything before the first record of each partition that is no row is loaded.
        `may_commit` is asked before the tables are touched: it raises when the batch is to be given up, and is held
        while they are.
        """
        started = time.monotonic()
        added: dict[str, int] = {}
        missing = self._lacking(batch.ranges)
        if not missing:
            return added
        topics = sorted({range_.topic for range_ in missing})
        self._adopt_tables(topics)
        self._learn(missing)
        _log.debug("layouts learned")
        topic_rows, bad = self._read(rows, topics)
        self._check_fitting(topics)
        stopping = self._bad_records.handle(bad)
        if stopping is not None:
            missing = self._lacking(cut(missing, stopping.ends))
            topic_rows = [part.before_offsets(stopping.ends) for part in topic_rows]
        read_s = time.monotonic() - started
        if missing:
            with may_commit():
                added = self._write(batch, missing, topic_rows)
            _log_progress(batch, added, read_s, time.monotonic() - started - read_s)
        if stopping is not None:
            raise stopping
        return added

    def _lacking(self, ranges: Iterable[Range]) -> list[Range]:
        return [range_ for range_ in ranges if self._table_of(range_).lacks(range_)]

    def _table_of(self, range_: Range) -> Table:
        return self._tables.of(range_.topic, [(range_.topic, range_.partition)])

    # --- layouts ----------------------------------------------------------------------------------------------------

    def _find(self, topic: str) -> Layout | None:
        return self._layouts.find(topic, self._tables.name_of(topic))

    def _learn(self, ranges: Sequence[Range]) -> None:
        """Learn the layouts of topics met the first time, from their first records in the batch."""
        unknown = [
            range_ for range_ in ranges if self._find(range_.topic) is None and not self._layouts.refused(range_.topic)
        ]
        if unknown:
            # By topic: where several share a table that is not there yet, it gets the columns of the first.
            for place, schema, payload in sorted(self._first_payloads(unknown), key=lambda found: found[0].topic):
                self._layouts.learn(place.topic, self._tables.name_of(place.topic), schema, payload)

    def _adopt_tables(self, topics: Iterable[str]) -> None:
        """Take in the columns of tables that exist. Raises TableSchemaError when the configuration does not fit one."""
        for topic in topics:
            table = self._tables.of(topic)
            columns = table.writer.columns()
            if columns is None:
                continue
            if self._metadata_columns:
                absent = [name for name in METADATA_COLUMNS if name not in columns.names]
                if absent:
                    raise TableSchemaError(
                        f"table {table.writer.directory} has no column {absent[0]}: it was made with"
                        " lakehouse.metadata.columns=false, or by another tool; set that key to false, or name another"
                        " table (lakehouse.table.name.format)"
                    )
                columns = pa.schema([field for field in columns if field.name not in METADATA_COLUMNS])
            types = leaf_type_texts(columns)
            self._layouts.adopt(table.name, types)
            layout = self._find(topic)
            if layout is not None:
                check_types(table.writer.directory, types, leaf_types(layout.columns))

    def _check_fitting(self, topics: Iterable[str]) -> None:
        """Raise TableSchemaError for a table of someone else's that no record so far fits: that is no bad record."""
        for topic in topics:
            table = self._tables.of(topic)
            reasons = [refusal.reason for refusal in self._layouts.refused(topic).values() if refusal.other_columns]
            if reasons and self._find(topic) is None and not table.is_ours and table.writer.columns() is not None:
                raise TableSchemaError(
                    f"topic {topic}: {reasons[0]}; this connector has loaded nothing into that table"
                    " yet: name another one (lakehouse.table.name.format), or give it the records' columns"
                )

    def _groups(self, topics: Iterable[str]) -> list[Group]:
        by_layouts: dict[tuple[Layout, ...], list[tuple[str, tuple[Variant, ...]]]] = defaultdict(list)
        for topic in topics:
            variants = self._layouts.variants(topic, self._tables.name_of(topic))
            if variants:
                by_layouts[tuple(variant.layout for variant in variants)].append((topic, variants))
        groups = []
        for number, (layouts, members) in enumerate(by_layouts.items()):
            of_member = zip(*(variants for _, variants in members), strict=True)
            merged = [frozenset[int]().union(*(variant.schema_ids for variant in same)) for same in of_member]
            groups.append(
                Group(
                    f"group_{number}",
                    tuple(map(Variant, layouts, merged)),
                    tuple(topic for topic, _ in members),
                    self._layouts.reads_decimals_as_numbers(layouts[0]),
                )
            )
        return groups

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, rows: Any, topics: Sequence[str]) -> tuple[list[TopicRows], list[BadRecord]]:
        """Return the batch's good rows by topic, typed, and the bad records.

        When records teach a new schema text, the batch is read again.
        """
        wanted = rows.where(rows["topic"].isin(list(topics)))
        while True:
            found = [
                part.from_offsets(self._tables.of(part.topic).committed.next_offsets)
                for part in self._collect(wanted, self._groups(topics))
            ]
            learned = self._learn_schemas(found)
            bad = [self._bad_rows(rows) for rows in found]
            if not self._learn_decimals(found, bad) and not learned:
                break
        good = [part.without(list(records)) for part, records in zip(found, bad, strict=True)]
        return good, [record for records in bad for record, _ in records.values()]

    def _collect(self, wanted: Any, groups: Sequence[Group]) -> Iterator[TopicRows]:
        """Run Spark's job: one for all groups, or several on a cached copy when they are too wide together."""
        chunks = list(_chunks(groups))
        if len(chunks) == 1:
            yield from _rows_of(select_groups(wanted, chunks[0]).toArrow(), chunks[0])
            return
        cached = wanted.persist()
        try:
            grouped = {topic for group in groups for topic in group.topics}
            yield from _rows_of(select_groups(cached.where(~cached["topic"].isin(list(grouped))), []).toArrow(), [])
            for chunk in chunks:
                topics = [topic for group in chunk for topic in group.topics]
                yield from _rows_of(select_groups(cached.where(cached["topic"].isin(topics)), chunk).toArrow(), chunk)
        finally:
            cached.unpersist()

    def _bad_rows(self, rows: TopicRows) -> dict[int, tuple[BadRecord, str | None]]:
        """Return, by row, what is wrong with the records of a topic that are no rows, and their payload."""
        bad: dict[int, tuple[BadRecord, str | None]] = {}
        layout, refused = self._find(rows.topic), self._layouts.refused(rows.topic)
        for row, error, payload in rows.unreadable():
            reason = error
            if reason is None and payload is not None and layout is not None:
                numeric = self._layouts.reads_decimals_as_numbers(layout)
                reason = diagnose(payload, layout, decimals_numeric=numeric)
            bad[row] = BadRecord(rows.place(row), reason or "unreadable"), payload
        for row in rows.refused(refused) if refused else ():
            refusal = refused[rows.kafka["schema_id"][row].as_py()]
            bad[row] = BadRecord(rows.place(row), refusal.reason, refusal.other_columns), None
        required = self._layouts.required(rows.topic)
        for row, name in rows.missing_required(required):
            if name in self._layouts.required_in(rows.topic, rows.kafka["schema_id"][row].as_py()):
                reason = f"field {name}: null, though its schema is not optional"
                bad.setdefault(row, (BadRecord(rows.place(row), reason), None))
        return bad

    def _learn_schemas(self, found: Iterable[TopicRows]) -> bool:
        """Take in schemas that appeared within the batch; tell whether there are rows to read by them."""
        learned = False
        for rows in found:
            known = self._layouts.schema_ids(rows.topic) | self._layouts.refused(rows.topic).keys()
            for _, schema in rows.unknown_schemas(known):
                payload = None  # the layout is known or the first payloads were looked at already
                table = self._tables.name_of(rows.topic)
                learned = self._layouts.learn(rows.topic, table, schema, payload) or learned
        return learned

    def _learn_decimals(
        self, found: Iterable[TopicRows], bad: Iterable[dict[int, tuple[BadRecord, str | None]]]
    ) -> bool:
        """Look how decimals are written in payloads that could not be read; tell whether to read them again."""
        learned = False
        for rows, records in zip(found, bad, strict=True):
            payloads = [payload for _, payload in records.values() if payload is not None]
            learned = any(self._layouts.learn_decimals(rows.topic, payload) for payload in payloads) or learned
        return learned

    # --- writing ----------------------------------------------------------------------------------------------------

    def _write(self, batch: Batch, ranges: Sequence[Range], topic_rows: Sequence[TopicRows]) -> dict[str, int]:
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

    def _append(self, batch: Batch, table: Table, ranges: Sequence[Range], parts: Sequence[TopicRows]) -> int:
        columns = table.writer.columns()
        tables: list[pa.Table] = []
        for rows in parts:
            arrow = rows.to_table(columns, metadata=self._metadata_columns)
            if arrow is None:
                _log.warning(
                    "%d records of topic %s have no value and no record before them had a schema: there is no table"
                    " to put them into",
                    len(rows),
                    rows.topic,
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
        position = table.position_after(ranges, batch.end.topic_ids)
        table.write(batch.identity, rows, position)
        return int(rows.num_rows)


def _chunks(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Cut groups into lists that are not too wide for one select; there is one list at least."""
    chunk: list[Group] = []
    total = 0
    for group in groups:
        columns = sum(width(column.type) for variant in group.variants for column in variant.layout.columns)
        if chunk and total + columns > WIDTH_MAX:
            yield chunk
            chunk, total = [], 0
        chunk.append(group)
        total += columns
    yield chunk


def _rows_of(arrow: pa.Table, groups: Sequence[Group]) -> Iterator[TopicRows]:
    return split_by_topic(arrow, {topic: group.name for group in groups for topic in group.topics})


def _concatenated(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several topics of one table, in the first one's column order."""
    names = tables[0].column_names
    return pa.concat_tables([table.select(names) for table in tables])


def _log_progress(batch: Batch, added: dict[str, int], read_s: float, write_s: float) -> None:
    rows = sum(added.values())
    tables = ", ".join(f"{name} +{count:,}" for name, count in added.items() if count)
    _log.info(
        "Committed batch %d: %s rows in %.1f s (%s rows/s; Spark %.1f s, tables %.1f s): %s",
        batch.identity.batch_id,
        f"{rows:,}",
        read_s + write_s,
        f"{rows / max(read_s + write_s, 1e-3):,.0f}",
        read_s,
        write_s,
        tables or "offsets only",
    )
