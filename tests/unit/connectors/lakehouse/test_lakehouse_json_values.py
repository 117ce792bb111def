"""Tests of how JSON values become values of declared columns. The expected values are those of Spark's `from_json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from headrace.converters.json_converter import JsonConverter, JsonConverterConfig
from headrace.data.batch import SinkBatch
from headrace.data.columns import Values
from headrace.data.errors import DataError
from headrace.data.json_texts import JsonTexts, json_texts
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.values.json_values import parse_json
from headrace_connectors.lakehouse.values.options import RowOptions
from headrace_connectors.lakehouse.values.rows import RowConverter
from support.declared_columns import VECTORS, encoded

FOUND = json.loads(VECTORS.read_text())
TEXTS: list[str] = FOUND["texts"]
CONVERTER = JsonConverter()
CONVERTER.configure(JsonConverterConfig.parse({"schemas.enable": "false", "converter.type": "value"}))
DIFFERENCES: dict[tuple[str, str], list[Any] | None] = {
    (type_, text): stored or None for group in FOUND["differences"] for type_, text, *stored in group["values"]
}


def convert_to_connect(payload: str) -> Any:
    """Return the value that JsonConverter reads from JSON without a schema. Raises DataError."""
    return CONVERTER.to_connect("t", payload.encode()).value


@cache
def is_json(payload: str) -> bool:
    """Whether JsonConverter accepts a record's value."""
    try:
        convert_to_connect(payload)
    except DataError:
        return False
    return True


def converter_of(ddl: str) -> Callable[[Values], list[Any]]:
    """Return a function that converts values to rows. A row is a list of the stored values, or None."""
    columns = parse_ddl(ddl)
    converter = RowConverter(columns, RowOptions(metadata_columns=False, declared=columns), "t")

    def store(values: Values) -> list[Any]:
        converted = converter.convert(SinkBatch("t", values, partition=0, offsets=range(len(values))))
        rows = zip(*(encoded(column) for column in converted.rows.columns), strict=True)
        stored = dict(zip(converted.indexes, map(list, rows), strict=True))
        assert stored.keys() | {row.index for row in converted.bad} == set(range(len(values)))
        return [stored.get(index) for index in range(len(values))]

    return store


@pytest.mark.parametrize("form", ["texts", "maps", "one by one"])
@pytest.mark.parametrize("type_", FOUND["types"])
def test_json_values_are_stored_as_spark_stored_them(type_: str, form: str) -> None:
    of_spark = dict(FOUND["types"][type_])
    numbers = [number for number, text in enumerate(TEXTS) if is_json(f'{{"c":{text}}}')]
    payloads = [f'{{"c":{TEXTS[number]}}}'.replace("\n", " ").encode() for number in numbers]
    store = converter_of(f"c {type_}")
    if form == "maps":
        found = store([parse_json(payload) for payload in payloads])
    elif form == "texts":
        found = store(JsonTexts(payloads))
    else:
        found = [store(JsonTexts([payload]))[0] for payload in payloads]
    for number, stored in zip(numbers, found, strict=True):
        text = TEXTS[number]
        expected = [of_spark[number]] if number in of_spark else None
        assert stored == DIFFERENCES.get((type_, text), expected), text


def test_texts_that_only_sparks_parser_accepts_are_rejected_by_the_converter() -> None:
    only_spark = {TEXTS[number] for stored in FOUND["types"].values() for number, _ in stored}
    only_spark = {text for text in only_spark if not is_json(f'{{"c":{text}}}')}
    assert only_spark == {"NaN", "Infinity", "-Infinity", "+INF", "-INF", "'a'", '{"a":NaN}', '"\\ud800"'}


@pytest.mark.parametrize("ddl", FOUND["records"])
def test_records_are_stored_as_spark_stored_them(ddl: str) -> None:
    store = converter_of(ddl)
    for payload, row in FOUND["records"][ddl]:
        if not payload.strip() or not is_json(payload):
            continue  # an empty value is a tombstone, and the converter rejects texts that are not JSON
        texts = json_texts([payload.encode()])
        found = store([convert_to_connect(payload)] if texts is None else texts)
        assert found[0] == DIFFERENCES.get((ddl, payload), row), payload
