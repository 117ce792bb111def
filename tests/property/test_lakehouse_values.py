"""Tests that columns of lakehouse tables are converted at once to the same values as one by one."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.batch import SinkBatch
from headrace.data.columns import Columns
from headrace.data.json_texts import JsonTexts, json_texts
from headrace.data.logical import DATE_NAME, TIMESTAMP_NAME
from headrace.data.schema import Schema, Type
from headrace.data.struct import to_rows
from headrace_connectors.lakehouse.column_types import ColumnType, SchemaError
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.values.arrow_types import arrow_type
from headrace_connectors.lakehouse.values.column_converter import iso_dates, iso_timestamps
from headrace_connectors.lakehouse.values.json_columns import JsonColumns
from headrace_connectors.lakehouse.values.json_values import json_converter, parse_json, round_decimal
from headrace_connectors.lakehouse.values.mismatch import MismatchError
from headrace_connectors.lakehouse.values.options import RowOptions
from headrace_connectors.lakehouse.values.rows import RowConverter, columns_of
from headrace_connectors.lakehouse.values.temporal_text import parse_date, parse_timestamp
from support.connect_data import schemas, struct_of, values
from support.declared_columns import VECTORS, encoded
from support.examples import examples

FOUND = json.loads(VECTORS.read_text())
TEXTS = [text.replace("\n", " ") for text in FOUND["texts"]]
VALID = [text for text in TEXTS if text.isascii() and json_texts([f'{{"c":{text}}}'.encode()]) is not None]
STORED = {
    type_: [TEXTS[number] for number, _ in stored if TEXTS[number] in VALID] for type_, stored in FOUND["types"].items()
}
COLUMNS = [f"c{number}" for number in range(len(STORED))]
DECLARED = parse_ddl(", ".join(f"{name} {type_}" for name, type_ in zip(COLUMNS, STORED, strict=True)))


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Generate a JSON object. Most of its fields fit the declared columns."""
    fields = []
    for name, stored in zip(COLUMNS, STORED.values(), strict=True):
        choice = draw(st.integers(0, 40))
        if choice:
            fields.append(f'"{name}":{draw(st.sampled_from(stored if choice > 1 else VALID))}')
    return "{{{}}}".format(",".join(draw(st.permutations(fields)))).encode()


def expected_row(text: bytes) -> list[Any] | str:
    """Return the row of a record, or the reason why it is bad, by converting value by value."""
    record = parse_json(text)
    row = []
    for column in DECLARED:
        try:
            value = json_converter(column.type)(record.get(column.name))
        except MismatchError as error:
            return str(error.inside(column.name))
        row.append(encoded(pa.array([value], arrow_type(column.type)))[0])
    return row


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(records(), min_size=1, max_size=6))
def test_json_texts_become_the_same_rows_at_once_as_value_by_value(texts: list[bytes]) -> None:
    options = RowOptions(metadata_columns=False, declared=DECLARED)
    converter = RowConverter(DECLARED, options, "t")
    expected = [expected_row(text) for text in texts]
    for batch in (JsonTexts(texts), [parse_json(text) for text in texts]):
        converted = converter.convert(SinkBatch("t", batch, partition=0, offsets=range(len(texts))))
        rows = zip(*(encoded(column) for column in converted.rows.columns), strict=True)
        found: dict[int, Any] = dict(zip(converted.indexes, map(list, rows), strict=True))
        found.update((row.index, row.reason) for row in converted.bad)
        assert [found[index] for index in range(len(texts))] == expected


def digits(high: int) -> st.SearchStrategy[str]:
    """Generate numbers, most of them with two digits."""
    return st.builds("{:{}}".format, st.integers(0, high), st.sampled_from(["02d", "02d", "02d", "d"]))


ENDS = ["", "", "Z", "Z", "Z", "z", "+01:00", "-08:00", "+0100", "-18:30", ".5", ".123456Z", ".1234567", ".", " Z", "x"]
YEARS = st.sampled_from(["2024", "2024", "2023", "0000", "0001", "9999", "999"])
MOMENTS = st.builds(
    lambda year, month, day, separator, time, end: f"{year}-{month}-{day}{separator}{':'.join(time)}{end}",
    *(YEARS, digits(13), digits(31), st.sampled_from(["T", "T", "T", " ", "", "t"])),
    *(st.lists(digits(60), max_size=3) | st.tuples(digits(24), digits(60), digits(60)), st.sampled_from(ENDS)),
)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(MOMENTS, min_size=1, max_size=2))
def test_dates_and_timestamps_that_arrow_parses_are_those_of_the_exact_parser(texts: list[str]) -> None:
    for vectorised, exact in ((iso_timestamps, parse_timestamp), (iso_dates, parse_date)):
        try:
            array = vectorised(texts)
        except (pa.ArrowException, ValueError):
            continue  # the exact parser is used
        assert encoded(array) == list(map(exact, texts))


NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,39})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
DECIMALS = parse_ddl("a decimal(38,0), b decimal(38,18), c decimal(10,2), d decimal(38,38), e float, f double")


@settings(deadline=None, max_examples=examples(200))
@given(NUMBERS)
def test_numbers_that_arrow_parses_are_those_of_the_exact_parser(number: str) -> None:
    """Arrow 26 stores a wrong decimal if a number overflows 128 bits when it is scaled."""
    for column in DECIMALS:
        texts = JsonTexts([f'{{"{column.name}":{number}}}'.encode()])
        found = JsonColumns([column]).convert(texts, {})[0]
        try:
            expected = json_converter(column.type)(parse_json(number.encode()))
        except MismatchError:
            expected = None
        assert found.equals(pa.array([expected], arrow_type(column.type)))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    schema = draw(struct_of(schemas(), 4))
    return schema, to_rows(schema, draw(st.lists(values(schema), min_size=1, max_size=5)))


@settings(deadline=None, max_examples=examples(100))
@given(batches())
def test_values_with_a_schema_are_stored_without_change(batch: tuple[Schema, list[Any]]) -> None:
    schema, rows = batch
    records = SinkBatch("t", rows, partition=0, offsets=range(len(rows)), value_schema=schema)
    options = RowOptions(metadata_columns=False)
    try:
        columns = columns_of(records, options)
    except SchemaError:
        return
    assert columns is not None
    converted = RowConverter(columns, options, "t").convert(records)
    converted.rows.validate(full=True)
    type_ = ColumnType("struct", fields=columns)
    expected = [[None] * len(columns) if row is None else _stored(type_, schema, row) for row in rows]
    bad = {index for index, row in enumerate(expected) if _OUT_OF_RANGE in str(row)}
    assert {row.index for row in converted.bad} == bad
    found = list(zip(*(encoded(column) for column in converted.rows.columns), strict=True))
    assert list(map(list, found)) == [expected[index] for index in converted.indexes]
    if None not in rows:
        columnar = Columns(
            [field.name for field in schema.fields], list(zip(*rows, strict=True)), len(rows), is_maps=False
        )
        same = RowConverter(columns, options, "t").convert(records.replace(values=columnar))
        assert same.rows.equals(converted.rows)
        assert same.bad == converted.bad


_OUT_OF_RANGE = "out of range"


def _stored(type_: ColumnType, schema: Schema | None, value: Any) -> Any:
    """Return a value as `encoded` returns it, or with _OUT_OF_RANGE in it."""
    if value is None:
        return None
    assert schema is not None
    if type_.kind == "struct":
        items = zip(type_.fields, schema.fields, value, strict=True)
        return [_stored(field.type, of_schema.schema, item) for field, of_schema, item in items]
    if type_.kind == "array" and type_.element is not None:
        return [_stored(type_.element, schema.value_schema, item) for item in value]
    if type_.kind == "map" and type_.key is not None and type_.element is not None:
        key, element = type_.key, type_.element
        return [
            [_stored(key, schema.key_schema, k), _stored(element, schema.value_schema, v)] for k, v in value.items()
        ]
    if schema.name == TIMESTAMP_NAME:
        return value * 1000 if abs(value) <= (2**63 - 1) // 1000 else _OUT_OF_RANGE
    if isinstance(value, Decimal):
        rounded = round_decimal(value, type_)
        return _OUT_OF_RANGE if rounded is None else str(rounded)
    if schema.type is Type.BYTES:
        return value.hex()
    return str(value) if isinstance(value, float) else int(value) if schema.name == DATE_NAME else value


def test_columns_whose_names_msgspec_cannot_decode_are_stored() -> None:
    declared = parse_ddl('`a"b` int, `c\\d` string')
    texts = JsonTexts([b'{"a\\"b":1,"c\\\\d":"x"}'])
    converter = RowConverter(declared, RowOptions(metadata_columns=False, declared=declared), "t")
    converted = converter.convert(SinkBatch("t", texts, partition=0, offsets=[0]))
    assert converted.rows.to_pylist() == [{'a"b': 1, "c\\d": "x"}]
