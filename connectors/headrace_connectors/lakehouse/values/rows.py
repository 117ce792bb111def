"""Converts batches of records to rows of a table, as Arrow.

`columns_of` determines the columns of a new table, and `RowConverter` converts records to rows of a table with known
columns. The columns of a record must be those of the table: the same names and types, in any order. Nullability does
not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.data.batch import SinkBatch
from headrace.data.columns import ColumnarValues, Columns, Lines, Shared
from headrace.data.schema import Schema, Type
from headrace_connectors.lakehouse.column_types import (
    SchemaError,
    TableColumn,
    UndeclaredColumnsError,
    check_names,
    describe_changes,
    leaf_types,
)
from headrace_connectors.lakehouse.values.arrow_types import arrow_schema, arrow_type, prevent_import_of_pandas
from headrace_connectors.lakehouse.values.column_converter import ColumnConverter
from headrace_connectors.lakehouse.values.json_columns import JsonColumns, check_declared
from headrace_connectors.lakehouse.values.options import RowOptions
from headrace_connectors.lakehouse.values.record_columns import (
    KeyConverter,
    check_names_differ,
    header_array,
    key_columns,
    metadata_arrays,
    record_columns,
)
from headrace_connectors.lakehouse.values.schema_values import schema_column_converter
from headrace_connectors.lakehouse.values.schemas import schema_columns

_CHANGES_SHOWN = 8
_PLANS_MAX = 1000


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot become a row. `index` is its index in the batch.

    `columns_mismatch` is true if the record's schema is valid, but its columns are not the table's columns.
    """

    index: int
    reason: str
    columns_mismatch: bool = False


@dataclass(frozen=True, slots=True)
class ConvertedRows:
    """The rows of a batch. `indexes` has the index in the batch of each row. `bad` has all other records, in order."""

    rows: pa.RecordBatch
    indexes: Sequence[int]
    bad: list[BadRow]


def columns_of(batch: SinkBatch, options: RowOptions) -> tuple[TableColumn, ...] | None:
    """Return the columns of a new table for the records of this batch.

    Returns None if the batch does not show the columns: all values are null, and no columns are declared. Raises
    SchemaError if a table cannot have such columns, or if they must be declared.
    """
    values = _value_columns(batch, options)
    if values is None:
        return None
    record = record_columns(batch, options)
    check_names_differ(values, record)
    columns = (*record, *values)
    check_names((column.name for column in columns), "record")
    return columns


def missing_parts(batch: SinkBatch, options: RowOptions) -> tuple[bool, bool]:
    """Return whether no record of this batch has a value, and whether none has a key although the table stores keys.

    In these cases, `columns_of` may be wrong: some transforms do not change nulls, but other values and their schema.
    """
    lacks_value = batch.compact is None and all(value is None for value in batch.values)
    lacks_key = options.key_columns != "none" and all(key is None for key in batch.keys or ())
    return lacks_value, lacks_key


def _value_columns(batch: SinkBatch, options: RowOptions) -> tuple[TableColumn, ...] | None:
    if batch.value_schema is not None:
        columns = schema_columns(batch.value_schema)
        check_names((column.name for column in columns), "value")
        return options.stored(columns)
    if options.declared is not None:
        check_declared(options.declared)
        return options.stored(options.declared)
    if missing_parts(batch, options)[0]:
        return None
    raise UndeclaredColumnsError(undeclared_text(batch.topic))


def undeclared_text(topic: str, table: str = "<table>") -> str:
    """Return the error for records without a schema, if the configuration does not declare the columns of `table`."""
    return (
        f"topic {topic}: the records have no schema, so the table's columns must be configured: set lakehouse.schema or"
        f" lakehouse.table.{table}.schema to Spark DDL (id BIGINT, name STRING, ...)"
    )


class RowConverter:
    """Converts batches to rows of one table. Use a converter on one thread.

    `columns` are all columns of the table, in the order of the table. `table` names the table in messages. `schema` is
    the Arrow schema of the rows. Raises SchemaError if records cannot have such columns.
    """

    def __init__(self, columns: Sequence[TableColumn], options: RowOptions, table: str) -> None:
        prevent_import_of_pandas()
        self._columns = tuple(columns)
        self._options = options
        self._table = table
        self.schema = arrow_schema(columns)
        self._values = tuple(column for column in columns if options.is_value_column(column.name))
        self._keys = tuple(column for column in columns if options.is_key_column(column.name))
        self._plans: dict[Any, _ValuePlan] = {}
        self._key_plans: dict[Any, _KeyPlan] = {}

    def convert(self, batch: SinkBatch) -> ConvertedRows:
        """Convert a batch. Records that cannot become rows are returned in `bad`."""
        reasons: dict[int, str] = {}
        plan = self._value_plan(batch.value_schema, batch.topic)
        arrays = dict(zip((column.name for column in self._values), plan.convert(batch, reasons), strict=True))
        mismatched = set(reasons) if plan.mismatch is not None else set()
        if self._options.metadata_columns:
            arrays.update(metadata_arrays(batch))
        if self._keys:
            key_plan = self._key_plan(batch)
            before = set(reasons)
            arrays.update(zip((column.name for column in self._keys), key_plan.convert(batch, reasons), strict=True))
            if key_plan.mismatch is not None:
                mismatched |= set(reasons) - before
        if self._options.headers_column is not None:
            arrays[self._options.headers_column] = header_array(batch)
        rows = pa.RecordBatch.from_arrays([arrays[column.name] for column in self._columns], schema=self.schema)
        if not reasons:
            return ConvertedRows(rows, range(len(batch)), [])
        good = [index for index in range(len(batch)) if index not in reasons]
        bad = [BadRow(index, reasons[index], index in mismatched) for index in sorted(reasons)]
        return ConvertedRows(rows.take(pa.array(good, pa.int64())), good, bad)

    def _value_plan(self, schema: Schema | None, topic: str) -> _ValuePlan:
        plan = self._plans.get(schema)
        if plan is None:
            _limit(self._plans)
            plan = self._plans[schema] = self._new_value_plan(schema, topic)
        return plan

    def _new_value_plan(self, schema: Schema | None, topic: str) -> _ValuePlan:
        if schema is None:
            if self._options.declared is None:
                return _ValuePlan(self._values, mismatch=None, reason=undeclared_text(topic))
            declared = self._options.stored(self._options.declared)
            found = describe_changes(leaf_types(self._values), leaf_types(declared))
            reason = self._changes_text(found) if found else None
            return _ValuePlan(self._values, mismatch=reason, json=None if reason else JsonColumns(self._values))
        try:
            columns = self._options.stored(schema_columns(schema))
            check_names((column.name for column in columns), "value")
            check_names_differ(columns, [column for column in self._columns if column not in self._values])
        except SchemaError as error:
            return _ValuePlan(self._values, mismatch=None, reason=str(error))
        found = describe_changes(leaf_types(self._values), leaf_types(columns))
        if found:
            return _ValuePlan(self._values, mismatch=self._changes_text(found))
        return _ValuePlan(self._values, mismatch=None, schema=schema)

    def _key_plan(self, batch: SinkBatch) -> _KeyPlan:
        plan = self._key_plans.get(batch.key_schema)
        if plan is None:
            _limit(self._key_plans)
            plan = self._key_plans[batch.key_schema] = self._new_key_plan(batch)
        return plan

    def _new_key_plan(self, batch: SinkBatch) -> _KeyPlan:
        schema = batch.key_schema
        if schema is None:
            return _KeyPlan(self._keys, KeyConverter(None, self._keys))
        try:
            columns = key_columns(batch, self._options)
        except SchemaError as error:
            return _KeyPlan(self._keys, reason=str(error))
        found = describe_changes(leaf_types(self._keys), leaf_types(columns))
        if found:
            return _KeyPlan(self._keys, mismatch=self._changes_text(found))
        return _KeyPlan(self._keys, KeyConverter(schema, self._keys))

    def _changes_text(self, found: Sequence[str]) -> str:
        more = f" and {len(found) - _CHANGES_SHOWN} more changes" if len(found) > _CHANGES_SHOWN else ""
        return f"the record's columns do not match table {self._table}: {', '.join(found[:_CHANGES_SHOWN])}{more}"


def _limit(plans: dict[Any, Any]) -> None:
    if len(plans) >= _PLANS_MAX:
        del plans[next(iter(plans))]


class _ValuePlan:
    """How the values of one schema become columns.

    If `mismatch` is set, the columns of the schema are not those of the table. If `reason` is set, values with this
    schema cannot be stored for another reason. Null values become rows in any case.
    """

    def __init__(
        self,
        columns: Sequence[TableColumn],
        *,
        mismatch: str | None,
        reason: str | None = None,
        schema: Schema | None = None,
        json: JsonColumns | None = None,
    ) -> None:
        self.mismatch = mismatch
        self._columns = columns
        self._reason = mismatch or reason
        self._json = json
        self._is_struct = schema is not None and schema.type is Type.STRUCT
        self._converters: list[tuple[int, ColumnConverter]] = []
        if schema is not None:
            self._converters = [self._converter(column, schema) for column in columns]

    def _converter(self, column: TableColumn, schema: Schema) -> tuple[int, ColumnConverter]:
        if not self._is_struct:
            return 0, schema_column_converter(column.name, column.type, schema)
        field = schema.field(column.name)
        assert field is not None
        return field.index, schema_column_converter(column.name, column.type, field.schema)

    def convert(self, batch: SinkBatch, bad: dict[int, str]) -> list[pa.Array]:
        if self._reason is not None:
            bad.update((index, self._reason) for index in _not_null(batch))
            return [pa.nulls(len(batch), arrow_type(column.type)) for column in self._columns]
        values = batch.values if batch.compact is None else batch.compact
        if self._json is not None:
            return self._json.convert(values, bad)
        if isinstance(values, Columns) and self._is_struct:
            return [_column(values, index, converter, bad) for index, converter in self._converters]
        items = values.items() if isinstance(values, ColumnarValues) else values
        if not self._is_struct:
            return [converter.convert(items, bad) for _, converter in self._converters]
        if None in items:
            columns = [[None if row is None else row[index] for row in items] for index, _ in self._converters]
        else:
            columns = [[row[index] for row in items] for index, _ in self._converters]
        return [
            converter.convert(column, bad) for column, (_, converter) in zip(columns, self._converters, strict=True)
        ]


def _not_null(batch: SinkBatch) -> Sequence[int]:
    if batch.compact is not None:
        return range(len(batch))
    return [index for index, value in enumerate(batch.values) if value is not None]


def _column(values: Columns, index: int, converter: ColumnConverter, bad: dict[int, str]) -> pa.Array:
    column = values.columns[index]
    if isinstance(column, Shared):
        shared: dict[int, str] = {}
        one = converter.convert([column.value], shared)
        if shared:
            for row in range(len(values)):
                bad.setdefault(row, shared[0])
        return pa.repeat(one[0], len(values))
    if isinstance(column, range):
        return converter.convert(list(column), bad)
    return converter.convert(column.items() if isinstance(column, Lines) else column, bad)


class _KeyPlan:
    """How the keys of one schema become columns. See `_ValuePlan`."""

    def __init__(
        self,
        columns: Sequence[TableColumn],
        converter: KeyConverter | None = None,
        *,
        mismatch: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.mismatch = mismatch
        self._columns = columns
        self._converter = converter
        self._reason = mismatch or reason

    def convert(self, batch: SinkBatch, bad: dict[int, str]) -> list[pa.Array]:
        if self._converter is not None:
            return self._converter.convert(batch, bad)
        keys = batch.keys or [None] * len(batch)
        for index, key in enumerate(keys):
            if key is not None:
                bad.setdefault(index, self._reason or "")
        return [pa.nulls(len(batch), arrow_type(column.type)) for column in self._columns]
