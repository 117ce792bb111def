"""Transforms with predicates, and converters, on whole batches: bad records are skipped and the order is kept."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headrace.api.converter import Converter, SchemaAndValue
from headrace.api.errors import DataError
from headrace.api.predicate import Predicate
from headrace.api.transform import Transformation
from headrace.converters.simple_header_converter import SimpleHeaderConverter
from headrace.data.batch import SinkBatch, SourceBatch
from headrace.data.headers import Headers
from headrace.data.schema import INT64_SCHEMA, STRING_SCHEMA
from headrace.runtime.chain import Step, TransformChain
from headrace.runtime.conversion import Converters, FromBytes, RawPart, ToBytes
from headrace.runtime.tolerance import ErrorPolicy, Failure, RetryWithToleranceOperator, ToleranceExceeded
from headrace_broker.records.columns import RecordColumns


class Double(Transformation):
    """Doubles numbers; drops zero, fails for thirteen."""

    def apply(self, record: Any) -> Any:
        if record.value == 13:
            raise DataError("thirteen")
        return None if record.value == 0 else record.replace(value=record.value * 2)


class IsSmall(Predicate):
    """Matches numbers below ten."""

    def test(self, record: Any) -> bool:
        return bool(record.value < 10)


class Digits(Converter):
    """Decodes digits as INT64 and other ASCII text as STRING; fails for `!`."""

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return SchemaAndValue(None, None)
        if data == b"!":
            raise DataError("a bang")
        return (
            SchemaAndValue(INT64_SCHEMA, int(data)) if data.isdigit() else SchemaAndValue(STRING_SCHEMA, data.decode())
        )

    def from_connect(self, topic: str, schema: Any, value: Any) -> bytes | None:
        if value == 13:
            raise DataError("thirteen")
        return None if value is None else str(value).encode()


def stages(*, tolerate: bool = True) -> tuple[RetryWithToleranceOperator, list[tuple[Failure, Any]]]:
    reported: list[tuple[Failure, Any]] = []
    built = RetryWithToleranceOperator(
        ErrorPolicy(tolerate=tolerate),
        report=lambda failure, part: reported.append((failure, part)),
        describe=repr,
        now_ms=lambda: 0,
        wait_ms=lambda _: True,
        rng=Random(0),
    )
    return built, reported


def converters() -> Converters:
    return Converters(Digits(), Digits(), SimpleHeaderConverter())


def batch(*values: Any, **more: Any) -> SourceBatch:
    return SourceBatch("t", list(values), source_partition={"p": 1}, source_offset={"n": 9}, **more)


def values(batches: Any) -> list[Any]:
    return [value for each in batches for value in each.values]


def test_chain_applies_transforms_in_order() -> None:
    built, reported = stages()
    out = TransformChain([Step(Double()), Step(Double())], built).apply(batch(1, 0, 13, 2))
    assert values(out) == [4, 8]
    assert [list(part.values) for _, part in reported] == [[13]]
    assert out[0].source_offset == {"n": 9}


@pytest.mark.parametrize(("negate", "expected"), [(False, [2, 20, 13, 6]), (True, [1, 40, 0, 3])])
def test_predicate_selects_records_and_keeps_order(negate: bool, expected: list[int]) -> None:
    built, _ = stages()
    numbers = [1, 20, 0, 13, 3]
    out = TransformChain([Step(Double(), IsSmall(), negate)], built).apply(batch(*numbers))
    assert values(out) == expected


def test_empty_chain_returns_the_batch_unchanged() -> None:
    given = batch(1)
    assert TransformChain([], stages()[0]).apply(given) == (given,)


def test_chain_fails_without_error_tolerance() -> None:
    with pytest.raises(ToleranceExceeded, match="thirteen"):
        TransformChain([Step(Double())], stages(tolerate=False)[0]).apply(batch(1, 13))


def test_to_bytes_fills_timestamps_and_converts_keys_and_headers() -> None:
    given = batch(1, 2, keys=["a", None], timestamps=[5, None], headers=[Headers().add("h", "x"), Headers()])
    (columns,) = ToBytes(converters(), stages()[0]).convert(given, 99)
    assert columns.values == [b"1", b"2"]
    assert columns.keys == [b"a", None]
    assert columns.timestamps == [5, 99]
    assert columns.headers == [[("h", b"x")], []]
    (columns,) = ToBytes(converters(), stages()[0]).convert(batch(1), 99)
    assert (columns.keys, columns.headers, columns.timestamps) == (None, None, 99)


def test_to_bytes_skips_bad_records() -> None:
    built, reported = stages()
    columns = ToBytes(converters(), built).convert(batch(1, 13, 2, 3, keys=[1, 1, 13, 3]), 0)
    assert [value for each in columns for value in each.values] == [b"1", b"3"]
    assert [failure.stage for failure, _ in reported] == ["KEY_CONVERTER", "VALUE_CONVERTER"]


def raw(*data: bytes | None, keys: list[bytes | None] | None = None) -> RawPart:
    return RawPart("t", 3, RecordColumns(list(data), keys=keys, timestamps=7, offsets=range(10, 10 + len(data))))


def test_from_bytes_starts_a_new_batch_when_the_schema_changes() -> None:
    batches = FromBytes(converters(), stages()[0]).convert(
        raw(b"1", b"2", b"x", b"3", keys=[b"k", b"5", b"6", b"7"]),
    )
    shapes = [(b.key_schema, b.keys, b.value_schema, b.values, list(b.offsets)) for b in batches]
    assert shapes == [
        (STRING_SCHEMA, ["k"], INT64_SCHEMA, [1], [10]),
        (INT64_SCHEMA, [5], INT64_SCHEMA, [2], [11]),
        (INT64_SCHEMA, [6], STRING_SCHEMA, ["x"], [12]),
        (INT64_SCHEMA, [7], INT64_SCHEMA, [3], [13]),
    ]
    assert all(isinstance(each, SinkBatch) and each.partition == 3 and each.timestamps == 7 for each in batches)


def test_from_bytes_skips_and_reports_bad_records() -> None:
    built, reported = stages()
    batches = FromBytes(converters(), built).convert(raw(b"1", b"!", b"2", None, keys=[b"1", b"1", b"!", None]))
    assert values(batches) == [1, None]
    assert [offset for each in batches for offset in each.offsets] == [10, 13]
    assert [failure.stage for failure, _ in reported] == ["KEY_CONVERTER", "VALUE_CONVERTER"]


def test_from_bytes_converts_headers() -> None:
    columns = RecordColumns([b"1"], headers=[[("h", b"7"), ("n", None)]], timestamps=1, offsets=[5])
    (out,) = FromBytes(converters(), stages()[0]).convert(RawPart("t", 0, columns))
    assert out.headers is not None
    assert [(header.key, header.value) for header in out.headers[0]] == [("h", 7), ("n", None)]
