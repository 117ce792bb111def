"""The work of one Spark task: read offset ranges, convert and transform the records, write Parquet files.

Spark runs `BatchWork` in the executors' Python workers. It returns a pickled `TaskResult`; rows never leave the worker.
A worker process keeps its connection to the brokers and its converters and transforms from job to job.
"""

from __future__ import annotations

import pickle
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace.api.record_access import (
    ClusterUnavailableError,
    FailedRecord,
    OpenRecordPipeline,
    OpenRecordReader,
    RangeReadError,
    RecordPipeline,
    RecordReader,
)
from headrace.data.batch import SinkBatch
from headrace_connectors.lakehouse.column_types import SchemaError, TableColumn, UndeclaredColumnsError
from headrace_connectors.lakehouse.files.field_ids import with_field_ids
from headrace_connectors.lakehouse.files.partitioning import rows_outside_calendar
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.files.writers import FileWriters
from headrace_connectors.lakehouse.job.range_summary import RangeSummary
from headrace_connectors.lakehouse.job.results import (
    FoundColumns,
    RangeResult,
    TaskFailure,
    TaskResult,
)
from headrace_connectors.lakehouse.offsets import Range
from headrace_connectors.lakehouse.table_names import TableNames
from headrace_connectors.lakehouse.values.options import RowOptions
from headrace_connectors.lakehouse.values.rows import (
    ConvertedRows,
    RowConverter,
    columns_of,
    missing_parts,
    undeclared_text,
)

CONVERTER_STAGE = "VALUE_CONVERTER"
_DATA_EXCEPTION = "org.apache.kafka.connect.errors.DataException"


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Where records come from, and how they become batches. `run_id` is unique for a run of the task."""

    run_id: str
    reader: RecordReader
    pipeline: RecordPipeline


@dataclass(frozen=True, slots=True)
class TableRules:
    """How records become rows of tables.

    `options` has the options of the tables with a `lakehouse.table.<table>.schema`, and `default_options` those of all
    other tables. `class_name` names the sink in errors.
    """

    names: TableNames
    default_options: RowOptions
    options: dict[str, RowOptions] = field(default_factory=dict)
    class_name: str = ""

    def options_of(self, table: str) -> RowOptions:
        return self.options.get(table, self.default_options)


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A micro-batch: `tasks` has the ranges of each Spark task. Picklable; call it with the number of a task.

    A task fails if a topic does not have the id in `topic_ids` any more.
    If `stop_at_bad` is true, a task stops a range at its first bad record, because the driver repeats the batch.
    """

    source: RecordSource
    rules: TableRules
    tables: dict[str, TableTarget]
    tasks: tuple[tuple[Range, ...], ...]
    topic_ids: dict[str, str]
    store: FileStore
    writing: WriterSettings
    file_prefix: str
    stop_at_bad: bool

    def __call__(self, task: int) -> bytes:
        """Run one task and return its pickled `TaskResult`, or a `TaskFailure` that a repetition would not repair."""
        try:
            return pickle.dumps(self._run(task))
        except ClusterUnavailableError as error:
            return pickle.dumps(TaskFailure(str(error), is_retriable=True))
        except (RangeReadError, ConnectError) as error:
            return pickle.dumps(TaskFailure(str(error)))

    def _run(self, task: int) -> TaskResult:
        reader, pipeline = _open(self.source)
        reader.prepare({range_.topic for range_ in self.tasks[task]})
        name = f"{self.file_prefix}-{task}-{uuid.uuid4().hex[:12]}"
        with FileWriters(self.store, self.writing, name) as writers:
            run = RangeLoader(self.rules, self.tables, pipeline, writers, self.topic_ids)
            results = tuple(run.load(reader, range_, stop_at_bad=self.stop_at_bad) for range_ in self.tasks[task])
            files = tuple(writers.finish())
        return TaskResult(files, results, tuple(run.found), socket.gethostname(), run.read_bytes)


class RangeLoader:
    """Converts the records of ranges to rows of tables, and passes the rows to the writers.

    Without `writers`, nothing is written: the driver finds the bad records of a range in this way.
    """

    def __init__(
        self,
        rules: TableRules,
        tables: dict[str, TableTarget],
        pipeline: OpenRecordPipeline,
        writers: FileWriters | None,
        topic_ids: Mapping[str, str],
    ) -> None:
        self._rules = rules
        self._tables = tables
        self._pipeline = pipeline
        self._writers = writers
        self._topic_ids = topic_ids
        self._converters: dict[str, RowConverter] = {}
        self._used: dict[str, FoundColumns] = {}
        self.found: list[FoundColumns] = []
        """The columns of tables that do not exist. If a table is there several times, its last columns are used."""
        self.read_bytes = 0

    def load(self, reader: OpenRecordReader, range_: Range, *, stop_at_bad: bool) -> RangeResult:
        """Load one range."""
        summary = RangeSummary(range_)
        for _ in self.steps(reader, range_, summary):
            if stop_at_bad and summary.bad_count:
                break
        return summary.result()

    def steps(self, reader: OpenRecordReader, range_: Range, summary: RangeSummary) -> Iterator[None]:
        """Load a range in steps, and add what was done to `summary`. Each step is one fetch."""
        topic_id = self._topic_ids.get(range_.topic)
        for records in reader.read(range_.topic, range_.partition, range_.start, range_.end, topic_id):
            self.read_bytes += records.size_bytes
            result = self._pipeline.apply(records)
            summary.add_failed(result.errors, result.error_count, result.first_error_offset)
            for batch in result.batches:
                self._load_batch(batch, summary)
            yield

    def _load_batch(self, batch: SinkBatch, summary: RangeSummary) -> None:
        try:
            target = self._target(self._rules.names.name_of(batch.topic))
        except ValueError as error:
            self._add_all_bad(batch, str(error), None, summary)
            return
        batch = _from_offset(batch, target.next_offsets.get((batch.original_topic, batch.original_partition), 0))
        if not len(batch):
            return
        try:
            converter = self._converter(target, batch)
        except UndeclaredColumnsError as error:
            raise ConnectError(undeclared_text(batch.topic, target.name)) from error
        except SchemaError as error:
            self._add_all_bad(batch, str(error), target.name, summary)
            return
        if converter is None:
            summary.add_dropped_tombstones(target.name, len(batch))
            return
        converted = converter.convert(batch)
        for bad in converted.bad:
            failure = self._failure(batch, bad.index, bad.reason)
            summary.add_bad(failure, target.name, columns_mismatch=bad.columns_mismatch)
        rows = self._rows_in_calendar(batch, converted, target, summary)
        summary.add_rows(target.name, rows.num_rows, batch.timestamps)
        if rows.num_rows and target.location is not None and self._writers is not None:
            schema = with_field_ids(converter.schema, target.field_ids) if target.field_ids else converter.schema
            self._writers.write(target, schema, rows)

    def _rows_in_calendar(
        self, batch: SinkBatch, converted: ConvertedRows, target: TableTarget, summary: RangeSummary
    ) -> pa.RecordBatch:
        """Return the rows that have a partition. Records of years that no partition can have become bad records."""
        outside = rows_outside_calendar(converted.rows, target.layout.partition_fields)
        if not outside:
            return converted.rows
        for row in outside:
            reason = "the year of a partition column is not 1 to 9999"
            summary.add_bad(self._failure(batch, converted.indexes[row], reason), target.name)
        left_out = set(outside)
        inside = [row for row in range(converted.rows.num_rows) if row not in left_out]
        return converted.rows.take(pa.array(inside, pa.int64()))

    def _target(self, name: str) -> TableTarget:
        return self._tables.get(name) or TableTarget(name, None)

    def _converter(self, target: TableTarget, batch: SinkBatch) -> RowConverter | None:
        """Return the table's row converter, or None if the table's columns are not known yet."""
        if target.columns is None:
            self._find_columns(target, batch)
        elif target.name not in self._converters:
            self._use_columns(target, target.columns)
        return self._converters.get(target.name)

    def _use_columns(self, target: TableTarget, columns: tuple[TableColumn, ...]) -> None:
        options = self._rules.options_of(target.name)
        self._converters[target.name] = RowConverter(columns, options, target.display_name)

    def _find_columns(self, target: TableTarget, batch: SinkBatch) -> None:
        """Use the columns of this batch for a new table, if its records lack less than the record used so far.

        If the columns change, the driver repeats the job, because the task has returned both.
        """
        used = self._used.get(target.name)
        if used is not None and not any(used.missing):
            return
        options = self._rules.options_of(target.name)
        missing = missing_parts(batch, options)
        if used is not None and missing >= used.missing:
            return
        try:
            columns = columns_of(batch, options)
        except UndeclaredColumnsError:
            if used is None:
                raise
            return
        if columns is None:
            return
        position = (batch.original_topic, batch.original_partition, batch.original_offsets[0])
        found = self._used[target.name] = FoundColumns(target.name, columns, *position, missing)
        self.found.append(found)
        self._use_columns(target, columns)

    def _add_all_bad(self, batch: SinkBatch, reason: str, table: str | None, summary: RangeSummary) -> None:
        for index in range(len(batch)):
            summary.add_bad(self._failure(batch, index, reason), table)

    def _failure(self, batch: SinkBatch, index: int, reason: str) -> FailedRecord:
        return FailedRecord(
            batch.original_topic,
            batch.original_partition,
            batch.original_offsets[index],
            CONVERTER_STAGE,
            self._rules.class_name,
            _DATA_EXCEPTION,
            reason,
        )


def _from_offset(batch: SinkBatch, start: int) -> SinkBatch:
    """Return the records at or after the offset `start`. The table already has the others."""
    offsets: Sequence[int] = batch.original_offsets
    if not start or not len(offsets) or offsets[0] >= start:
        return batch
    return batch.take([index for index, offset in enumerate(offsets) if offset >= start])


_opened: dict[str, tuple[OpenRecordReader, OpenRecordPipeline]] = {}


def _open(source: RecordSource) -> tuple[OpenRecordReader, OpenRecordPipeline]:
    """Return the reader and the pipeline of a run. They stay open, because Spark reuses its Python workers."""
    if source.run_id not in _opened:
        for run_id in list(_opened):
            reader, pipeline = _opened.pop(run_id)
            reader.close()
            pipeline.close()
        _opened[source.run_id] = (source.reader.open(), source.pipeline.open())
    return _opened[source.run_id]
