"""Tests that `apply` and `convert` configure and run transforms and converters as a worker does."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.api import (
    Config,
    ConnectRecord,
    Converter,
    DataError,
    RawHeaders,
    SchemaAndValue,
    SourceRecord,
    key,
    predicate,
    transform,
)
from headrace.converters.json_converter import JsonConverter
from headrace.testing import apply, convert


class FieldConfig(Config):
    field: str = key("field")


@transform
def double(config: FieldConfig, record: ConnectRecord) -> ConnectRecord | None:
    """Double the number in field `config.field`. Drop records in which the number is 0."""
    number = record.value[config.field]
    if number == 13:
        raise DataError("thirteen")
    return record.replace(value={config.field: number * 2}) if number else None


@predicate
def is_small(config: FieldConfig, record: ConnectRecord) -> bool:
    """Match records with a number below 10 in field `config.field`."""
    return bool(record.value[config.field] < 10)


def records(*numbers: int) -> list[SourceRecord]:
    return [SourceRecord(topic="t", value={"n": number}) for number in numbers]


def test_function_apply_with_one_transform_returns_the_transformed_records() -> None:
    assert [record.value for record in apply(double, records(1, 0, 2), {"field": "n"})] == [{"n": 2}, {"n": 4}]


def test_function_apply_runs_a_transform_chain_with_a_predicate() -> None:
    chain = {
        "transforms": "a,b",
        "transforms.a.type": f"{__name__}:double",
        "transforms.a.field": "n",
        "transforms.a.predicate": "small",
        "transforms.b.type": "org.apache.kafka.connect.transforms.HoistField$Value",
        "transforms.b.field": "outer",
        "predicates": "small",
        "predicates.small.type": f"{__name__}:is_small",
        "predicates.small.field": "n",
    }
    assert [record.value for record in apply(chain, records(1, 50))] == [{"outer": {"n": 2}}, {"outer": {"n": 50}}]


def test_function_apply_raises_the_error_that_a_transform_raises() -> None:
    with pytest.raises(DataError, match="thirteen"):
        apply(double, records(13), {"field": "n"})


def test_function_apply_raises_an_error_if_the_transform_configuration_is_invalid() -> None:
    with pytest.raises(Exception, match='Missing required configuration "field"'):
        apply(double, records(1))


class Tagged(Converter):
    """A converter that stores the record's value in the header `value` and not in the data."""

    uses_headers = True

    def from_connect_with_headers(self, topic: str, headers: RawHeaders, schema: Any, value: Any) -> bytes:
        headers.append(("value", value.encode()))
        return b""

    def to_connect_with_headers(self, topic: str, headers: RawHeaders, data: bytes | None) -> SchemaAndValue:
        value = dict(headers)["value"]
        return SchemaAndValue(None, value and value.decode())


def test_function_convert_passes_headers_to_a_converter_that_uses_and_changes_headers() -> None:
    headers: RawHeaders = [("h", b"1")]
    assert convert(Tagged, "x", headers=headers).value == "x"
    assert headers == [("h", b"1"), ("value", b"x")]


def test_function_convert_converts_a_value_to_bytes_and_back() -> None:
    converted = convert(JsonConverter, {"n": 1}, {"schemas.enable": "false"})
    assert converted == (b'{"n":1}', None, {"n": 1})
