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
from headrace_connectors.lakehouse.column_types import width
from headrace_connectors.lakehouse.columns import Group, select_groups
from headrace_connectors.lakehouse.layouts import Layout, Layouts, Place
from headrace_connectors.lakehouse.ranges import Position, Range
from headrace_connectors.lakehouse.tables import Table, Tables
from headrace_connectors.lakehouse.writers.base import BatchIdentity, TableSchemaError, check_columns

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
        """Load a batch; returns the rows added, by table. Raises ConnectError when it cannot be loaded whole.

        `may_commit` is asked before the tables are touched: it raises when the batch is to be given up, and is held
        while they are.
        """
        started = time.monotonic()
        missing = [range_ for range_ in batch.ranges if self._table_of(range_).lacks(range_)]
        if not missing:
            return {}
        self._learn(missing)
        _log.debug("layouts learned")
        topic_rows = self._read(rows, sorted({range_.topic for range_ in missing}))
        read_s = time.monotonic() - started
        with may_commit():
            added = self._write(batch, missing, topic_rows)
        _log_progress(batch, added, read_s, time.monotonic() - started - read_s)
        return added

    def _table_of(self, range_: Range) -> Table:
        return self._tables.of(range_.topic, [(range_.topic, range_.partition)])

    # --- layouts ----------------------------------------------------------------------------------------------------

    def _find(self, topic: str) -> Layout | None:
        return self._layouts.find(topic, self._tables.name_of(topic))

    def _learn(self, ranges: Sequence[Range]) -> None:
        """Learn the layouts of topics met the first time, from their first records in the batch."""
        unknown = [range_ for range_ in ranges if self._find(range_.topic) is None]
        if unknown:
            for place, schema, payload in self._first_payloads(unknown):
                self._layouts.learn(place, schema, payload)

    def _groups(self, topics: Iterable[str]) -> list[Group]:
        by_layout: dict[Layout, list[str]] = defaultdict(list)
        for topic in topics:
            layout = self._find(topic)
            if layout is not None:
                by_layout[layout].append(topic)
        return [
            Group(
                f"group_{number}",
                layout,
                tuple(members),
                tuple(sorted(frozenset[int]().union(*map(self._layouts.schema_ids, members)))),
                self._layouts.reads_decimals_as_numbers(layout),
            )
            for number, (layout, members) in enumerate(by_layout.items())
        ]

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, rows: Any, topics: Sequence[str]) -> list[TopicRows]:
        """Return the batch's good rows by topic, typed; when records teach a new schema text, it is read again."""
        wanted = rows.where(rows["topic"].isin(list(topics)))
        while True:
            found = list(self._collect(wanted, self._groups(topics)))
            bad = [(rows, list(self._bad_rows(rows))) for rows in found]
            if not self._learn_more(found, bad):
                break
        self._bad_records.handle([record for _, records in bad for _, record, _ in records])
        return [rows.without([row for row, _, _ in records]) for rows, records in bad]

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

    def _bad_rows(self, rows: TopicRows) -> Iterator[tuple[int, BadRecord, str | None]]:
        """Yield (row, what is wrong, its payload) for the records of a topic that are no rows."""
        layout = self._find(rows.topic)
        for row, error, payload in rows.unreadable():
            reason = error
            if reason is None and payload is not None and layout is not None:
                numeric = self._layouts.reads_decimals_as_numbers(layout)
                reason = diagnose(payload, layout, decimals_numeric=numeric)
            yield row, BadRecord(rows.place(row), reason or "unreadable"), payload
        required = self._layouts.required(rows.topic)
        for row, name in rows.missing_required(required):
            if name in self._layouts.required_in(rows.topic, rows.kafka["schema_id"][row].as_py()):
                yield row, BadRecord(rows.place(row), f"field {name}: null, though its schema is not optional"), None

    def _learn_more(
        self, found: Iterable[TopicRows], bad: Iterable[tuple[TopicRows, list[tuple[int, BadRecord, str | None]]]]
    ) -> bool:
        """Take in schemas that appeared within the batch; tell whether it has to be read again."""
        learned = False
        for rows in found:
            for row, schema in rows.unknown_schemas(self._layouts.schema_ids(rows.topic)):
                payload = None  # the layout is known or the first payloads were looked at already
                self._layouts.learn(rows.place(row), schema, payload)
                learned = True
        for rows, records in bad:
            payloads = [payload for _, _, payload in records if payload is not None]
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
            fresh = rows.from_offsets(table.committed.next_offsets)
            arrow = fresh.to_table(columns, metadata=self._metadata_columns)
            if arrow is None:
                _log.warning(
                    "%d records of topic %s have no value and no record before them had a schema: there is no table"
                    " to put them into",
                    len(fresh),
                    rows.topic,
                )
                continue
            try:
                table.writer.prepare(arrow.schema)
                if tables:
                    check_columns(table.writer.directory, tables[0].schema, arrow.schema)
            except TableSchemaError as error:
                raise TableSchemaError(f"{self._layouts.origin(rows.topic)}: {error}") from None
            tables.append(arrow)
        if not tables:
            if columns is None:
                return 0
            tables = [columns.empty_table()]
        rows = _concatenated(tables)
        position = table.position_after(ranges, batch.end.topic_ids)
        table.writer.write(batch.identity, rows, position)
        table.committed = position
        return int(rows.num_rows)


def _chunks(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Cut groups into lists that are not too wide for one select; there is one list at least."""
    chunk: list[Group] = []
    total = 0
    for group in groups:
        columns = sum(width(column.type) for column in group.layout.columns)
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
