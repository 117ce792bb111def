"""Tests that MaskField, Cast and TimestampConverter return the same results for columns as for rows.

`support.column_values` generates the values. `make test` tests each configuration with 500 values, and `make test-long`
with 20,000. Configurations that differ from another one only in what is not done column by column have fewer values.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from headrace.api.errors import RecordErrors
from headrace.data.batch import SinkBatch
from headrace.data.columns import Column, Columns, Shared
from headrace.data.java_dates import list_parsing
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.schema import STRING_SCHEMA, Schema, Type, struct
from headrace_transforms import list_casting, mask_field
from headrace_transforms.casting import TARGETS
from support.column_values import VALUES, Draw, columns, date_texts
from support.transforms import batches, make_plugin

COUNTS = [500, pytest.param(20_000, marks=pytest.mark.slow)]

SCHEMAS: dict[str, Schema] = {
    "integer texts": STRING_SCHEMA,
    "number texts": STRING_SCHEMA,
    "booleans": Schema(Type.BOOLEAN),
    "small integers": Schema(Type.INT8),
    "integers": Schema(Type.INT64),
    "doubles": Schema(Type.FLOAT64),
    "floats": Schema(Type.FLOAT32),
    "timestamps": TIMESTAMP_SCHEMA,
    "dates": DATE_SCHEMA,
    "times": TIME_SCHEMA,
    "decimals": decimal_schema(2),
    "bytes": Schema(Type.BYTES),
}
ERRORS_ONLY = frozenset(("decimals", "bytes", "timestamps", "dates", "times"))
"""Kinds of values that only few configurations accept: a tenth of the values suffices."""
KINDS = [(kind, has_schema) for kind in VALUES for has_schema in ((True, False) if kind in SCHEMAS else (False,))]
PATTERNS = (
    "yyyy-MM-dd HH:mm:ss",
    "yyyy-MM-dd'T'HH:mm:ss'Z'",
    "yyyy-MM-dd'T'HH:mm:ssX",
    "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    "yyyy-MM-dd HH:mm:ss.SSS",
    "yyyyMMddHHmmssSSS",
    "dd/MM/yyyy HH:mm",
    "HH:mm:ss dd.MM.yyyy",
    "yyyy-MM-dd",
    "HH:mm:ss",
    "yyyy HH MM dd",
    "yy-MM-dd HH:mm",
    "M/d/yyyy H:mm",
    "dd MMM yyyy hh:mm a",
)


def _batch(schema: Schema | None, column: Column, count: int) -> SinkBatch:
    """Return a batch whose values are columns. The column `v` is in the middle, so that its index matters."""
    held = Columns(["before", "v", "after"], [range(count), column, Shared("x")], count, is_maps=schema is None)
    return SinkBatch("test", held, value_schema=schema, partition=0, offsets=range(count))


def _outcome(transform: Any, batch: SinkBatch) -> tuple[Any, ...]:
    """Return the schema and the values with their classes, or the errors by index."""
    try:
        (changed,) = batches(transform.apply_batch(batch))
    except RecordErrors as error:
        return ("errors", {index: str(cause) for index, cause in error.errors.items()})
    return changed.value_schema, [repr(value) for value in changed.values], _classes(changed.values)


def _classes(values: list[Any]) -> list[Any]:
    return [list(map(type, value.values() if isinstance(value, dict) else value)) for value in values]


def _differences(
    name: str, props: dict[str, str], kind: tuple[Draw, Draw], field_schema: Schema | None, count: int
) -> Iterator[str]:
    """Compare the results for columns with the results for rows, and describe the first difference of each column."""
    transform = make_plugin(f"{name}$Value", **props)
    random = Random(zlib.crc32(repr((name, props, str(field_schema))).encode()))
    schema = None
    if field_schema is not None:
        schema = struct([("before", Schema(Type.INT64)), ("v", field_schema), ("after", STRING_SCHEMA)])
    for column in columns(random, kind, count):
        batch = _batch(schema, column, len(column))
        by_column, by_row = _outcome(transform, batch), _outcome(transform, _in_rows(batch))
        if by_column != by_row:
            yield _first_difference(by_column, by_row, column)
        if by_row[0] == "errors" and len(by_row[1]) < len(batch):
            good = batch.take([index for index in range(len(batch)) if index not in by_row[1]])
            by_column, by_row = _outcome(transform, good), _outcome(transform, _in_rows(good))
            if by_column != by_row:
                yield _first_difference(by_column, by_row, column)


def _in_rows(batch: SinkBatch) -> SinkBatch:
    return batch.replace(values=list(batch.values))


def _first_difference(by_column: Any, by_row: Any, column: list[Any]) -> str:
    if by_column[0] != "errors" and by_row[0] != "errors":
        found = zip(by_column[1], by_row[1], strict=True)
        differences = [f"by column {one}, by row {other}" for one, other in found if one != other]
        return (differences or [f"{by_column[0]} {by_row[0]}"])[0]
    return f"by column {by_column[:2]!r:.200}, by row {by_row[:2]!r:.200}, column {column!r:.200}"


def _optional(kind: str, has_schema: bool) -> Schema | None:
    return SCHEMAS[kind].replace(optional=True) if has_schema else None


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("kind", "has_schema"), KINDS)
def test_cast_returns_the_same_results_for_columns_as_for_rows(kind: str, has_schema: bool, count: int) -> None:
    for target in TARGETS:
        values = count // 10 if kind in ERRORS_ONLY else count
        found = _differences("Cast", {"spec": f"v:{target.value}"}, VALUES[kind], _optional(kind, has_schema), values)
        assert not list(found), target


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("kind", "has_schema"), KINDS)
def test_mask_field_returns_the_same_results_for_columns_as_for_rows(kind: str, has_schema: bool, count: int) -> None:
    for replacement in (None, "7", "-1.5", "300000000000", "text"):
        props = {"fields": "v,missing"} | ({"replacement": replacement} if replacement else {})
        values = count // 10 if kind in ERRORS_ONLY else count
        found = _differences("MaskField", props, VALUES[kind], _optional(kind, has_schema), values)
        assert not list(found), replacement


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("has_schema", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_timestamp_converter_returns_the_same_results_for_columns_of_texts_as_for_rows(
    pattern: str, has_schema: bool, count: int
) -> None:
    schema = STRING_SCHEMA.replace(optional=True) if has_schema else None
    for target in ("Timestamp", "Date", "Time", "unix", "string"):
        props = {"field": "v", "target.type": target, "format": pattern}
        values = count if target == "Timestamp" else count // 10
        assert not list(_differences("TimestampConverter", props, date_texts(pattern), schema, values)), target


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("kind", "has_schema"), KINDS)
def test_timestamp_converter_returns_the_same_results_for_columns_of_other_types_as_for_rows(
    kind: str, has_schema: bool, count: int
) -> None:
    for target in ("Timestamp", "Date", "Time", "unix", "string"):
        for precision in ("milliseconds", "seconds", "nanoseconds"):
            props = {"field": "v", "target.type": target, "format": "yyyy-MM-dd", "unix.precision": precision}
            found = _differences("TimestampConverter", props, VALUES[kind], _optional(kind, has_schema), count // 10)
            assert not list(found), (target, precision)


def test_cast_without_a_test_of_the_characters_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_casting, "_require_characters", lambda texts, characters: None)
    assert list(_differences("Cast", {"spec": "v:int32"}, VALUES["number texts"], None, 2_000))


def test_cast_without_a_test_of_the_range_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_casting, "_require_range", lambda numbers, low, high: numbers)
    assert list(_differences("Cast", {"spec": "v:int8"}, VALUES["number texts"], None, 2_000))


def test_mask_field_that_uses_one_mask_for_all_decimals_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    classes = mask_field._SAME_FOR_ALL_VALUES | {Decimal}
    monkeypatch.setattr(mask_field, "_SAME_FOR_ALL_VALUES", classes)
    schema = _optional("decimals", True)
    assert list(_differences("MaskField", {"fields": "v"}, VALUES["decimals"], schema, 2_000))


def test_date_parts_that_depend_on_each_other_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(list_parsing._GROUPS, "y", 5)
    monkeypatch.setattr(list_parsing, "_DATE_LETTERS", frozenset())
    props = {"field": "v", "target.type": "Timestamp", "format": PATTERNS[0]}
    assert list(_differences("TimestampConverter", props, date_texts(PATTERNS[0]), None, 2_000))
