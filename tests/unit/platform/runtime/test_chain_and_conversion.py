"""Tests that transforms, predicates and converters skip a batch's bad records and keep the order of good records."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import NoneType
from typing import Any

import pytest

from headrace.api.converter import Converter, RawHeaders, SchemaAndValue
from headrace.api.errors import ConnectError, DataError, RetriableError
from headrace.api.predicate import Predicate
from headrace.api.transform import Transformation
from headrace.converters.json_converter import JsonConverter
from headrace.converters.simple_header_converter import SimpleHeaderConverter
from headrace.data.batch import SinkBatch, SourceBatch
from headrace.data.headers import Headers
from headrace.data.json_texts import JsonTexts
from headrace.data.schema import INT64_SCHEMA, STRING_SCHEMA
from headrace.plugins.creation import create_converter
from headrace.runtime.chain import Step, TransformChain
from headrace.runtime.conversion import Converters, FromBytes, RawPart, ToBytes
from headrace.runtime.error_policy import ErrorPolicy, Failure, ToleranceExceeded
from headrace.runtime.tolerance import RetryWithToleranceOperator
from headrace_broker.records.columns import RecordColumns
from support.errors import error_policy


class Double(Transformation):
    """A transform that doubles numbers, but drops zero and fails for thirteen."""

    def apply(self, record: Any) -> Any:
        if record.value == 13:
            raise DataError("thirteen")
        return None if record.value == 0 else record.replace(value=record.value * 2)


class IsSmall(Predicate):
    """A predicate that matches numbers below ten."""

    def test(self, record: Any) -> bool:
        return bool(record.value < 10)


class Digits(Converter):
    """A converter that decodes digits as INT64 and other ASCII text as STRING, but fails for `!`."""

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


TOLERANT = error_policy(tolerate=True)


def stages(policy: ErrorPolicy = TOLERANT) -> tuple[RetryWithToleranceOperator, list[tuple[Failure, Any]]]:
    reported: list[tuple[Failure, Any]] = []
    built = RetryWithToleranceOperator(
        policy,
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


def test_transform_chain_applies_transforms_in_order() -> None:
    built, reported = stages()
    out = TransformChain([Step(Double()), Step(Double())], built).apply(batch(1, 0, 13, 2))
    assert values(out) == [4, 8]
    assert [list(part.values) for _, part in reported] == [[13]]
    assert out[0].source_offset == {"n": 9}


@pytest.mark.parametrize(("negate", "expected"), [(False, [2, 20, 13, 6]), (True, [1, 40, 0, 3])])
def test_transform_applies_only_to_records_that_its_predicate_selects_and_records_keep_their_order(
    negate: bool, expected: list[int]
) -> None:
    built, _ = stages()
    numbers = [1, 20, 0, 13, 3]
    out = TransformChain([Step(Double(), IsSmall(), negate)], built).apply(batch(*numbers))
    assert values(out) == expected


def test_records_between_which_a_transform_drops_all_selected_records_stay_one_batch() -> None:
    class Drop(Transformation):
        stateless = True

        def apply_batch(self, batch: Any) -> None:
            """Drop the batch."""

    (out,) = TransformChain([Step(Drop(), IsSmall())], stages()[0]).apply(batch(1, 20, 2, 30, 40, 3))
    assert (out.values, out.source_offset) == ([20, 30, 40], {"n": 9})
    assert TransformChain([Step(Drop(), IsSmall())], stages()[0]).apply(batch(1, 2)) == []


def test_empty_transform_chain_returns_the_batch_unchanged() -> None:
    given = batch(1)
    assert TransformChain([], stages()[0]).apply(given) == (given,)


def test_transform_chain_raises_the_error_of_a_record_if_errors_are_not_tolerated() -> None:
    with pytest.raises(ToleranceExceeded, match="thirteen"):
        TransformChain([Step(Double())], stages(error_policy())[0]).apply(batch(1, 13))


def test_encoding_of_records_sets_timestamps_and_converts_keys_and_headers() -> None:
    given = batch(1, 2, keys=["a", None], timestamps=[5, None], headers=[Headers().add("h", "x"), Headers()])
    (columns,) = ToBytes(converters(), stages()[0]).convert(given, 99)
    assert columns.values == [b"1", b"2"]
    assert columns.keys == [b"a", None]
    assert columns.timestamps == [5, 99]
    assert columns.headers == [[("h", b"x")], []]
    (columns,) = ToBytes(converters(), stages()[0]).convert(batch(1), 99)
    assert (columns.keys, columns.headers, columns.timestamps) == (None, None, 99)


def test_headers_that_several_records_share_are_encoded_once_and_an_error_is_reported_for_each_of_these_records() -> (
    None
):
    class Once(SimpleHeaderConverter):
        calls = 0

        def from_connect_header(self, topic: str, key: str, schema: Any, value: Any) -> bytes | None:
            Once.calls += 1
            if value == "bad":
                raise ValueError(value)
            return super().from_connect_header(topic, key, schema, value)

    good, bad = Headers().add("h", "x"), Headers().add("h", "bad")
    run, failures = stages()
    (columns,) = ToBytes(replace(converters(), header=Once()), run).convert(batch(1, 2, 3, headers=[good] * 3), 99)
    assert (columns.headers, Once.calls) == ([[("h", b"x")]] * 3, 1)
    (columns,) = ToBytes(replace(converters(), header=Once()), run).convert(
        batch(1, 2, 3, 4, headers=[bad, good, bad, good]), 99
    )
    assert (columns.values, columns.headers) == ([b"2", b"4"], [[("h", b"x")]] * 2)
    assert len(failures) == 2


def test_encoding_of_records_skips_and_reports_records_that_a_converter_rejects() -> None:
    built, reported = stages()
    columns = ToBytes(converters(), built).convert(batch(1, 13, 2, 3, keys=[1, 1, 13, 3]), 0)
    assert [value for each in columns for value in each.values] == [b"1", b"3"]
    assert [failure.stage for failure, _ in reported] == ["KEY_CONVERTER", "VALUE_CONVERTER"]


def raw(*data: bytes | None, keys: list[bytes | None] | None = None) -> RawPart:
    return RawPart("t", 3, RecordColumns(list(data), keys=keys, timestamps=7, offsets=range(10, 10 + len(data))))


def test_decoding_of_records_starts_a_new_batch_when_the_schema_changes() -> None:
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


def test_decoding_of_records_skips_and_reports_records_that_a_converter_rejects() -> None:
    built, reported = stages()
    batches = FromBytes(converters(), built).convert(raw(b"1", b"!", b"2", None, keys=[b"1", b"1", b"!", None]))
    assert values(batches) == [1, None]
    assert [offset for each in batches for offset in each.offsets] == [10, 13]
    assert [failure.stage for failure, _ in reported] == ["KEY_CONVERTER", "VALUE_CONVERTER"]


def test_json_objects_are_passed_to_the_task_as_text_if_the_task_accepts_json_texts() -> None:
    value = create_converter(JsonConverter, {"schemas.enable": "false"}, "value")
    convert = FromBytes(replace(converters(), value=value), stages()[0])
    part = raw(b'{"a":1}', b'{"a":2}', b'{"a":3}', keys=[b"k", b"5", b"6"])
    assert [each.compact.__class__ for each in convert.convert(part)] == [NoneType] * 2
    convert.keep_json_texts()
    first, second = convert.convert(part)
    assert isinstance(first.compact, JsonTexts)
    assert isinstance(second.compact, JsonTexts)
    assert (first.compact.texts, second.compact.texts) == ([b'{"a":1}'], [b'{"a":2}', b'{"a":3}'])
    assert second.values == [{"a": 2}, {"a": 3}]


def test_invalid_json_is_reported_as_a_converter_error_if_the_task_accepts_json_texts() -> None:
    value = create_converter(JsonConverter, {"schemas.enable": "false"}, "value")
    built, reported = stages()
    convert = FromBytes(replace(converters(), value=value), built)
    convert.keep_json_texts()
    assert values(convert.convert(raw(b'{"a":1}', b'{"a":', b'{"a":3}'))) == [{"a": 1}, {"a": 3}]
    assert [(failure.stage, part.raw.columns.offsets) for failure, part in reported] == [("VALUE_CONVERTER", [11])]


def test_decoding_of_records_converts_headers() -> None:
    columns = RecordColumns([b"1"], headers=[[("h", b"7"), ("n", None)]], timestamps=1, offsets=[5])
    (out,) = FromBytes(converters(), stages()[0]).convert(RawPart("t", 0, columns))
    assert out.headers is not None
    assert [(header.key, header.value) for header in out.headers[0]] == [("h", 7), ("n", None)]


class Distinct(Transformation):
    """A transform that drops values that it has already received."""

    def __init__(self) -> None:
        self.seen: set[Any] = set()

    def apply(self, record: Any) -> Any:
        if record.value == 13:
            raise DataError("thirteen")
        if record.value in self.seen:
            return None
        self.seen.add(record.value)
        return record


def test_stateful_transform_keeps_every_good_record_when_another_record_fails() -> None:
    built, reported = stages()
    out = TransformChain([Step(Distinct())], built).apply(batch(1, 13, 2, 1))
    assert values(out) == [1, 2]
    assert [list(part.values) for _, part in reported] == [[13]]


class Tagged(Converter):
    """A converter that moves the first character of a text to the header `tag`.

    Decoding moves the character back.
    """

    uses_headers = True

    def __init__(self) -> None:
        self.headers: list[RawHeaders] = []
        self.fails_once = False

    def from_connect_with_headers(self, topic: str, headers: RawHeaders, schema: Any, value: Any) -> bytes | None:
        self.headers.append(list(headers))
        headers.append(("tag", value[0].encode()))
        if self.fails_once:
            self.fails_once = False
            raise RetriableError("not now")
        if value == "bad":
            raise DataError("bad")
        return str(value[1:]).encode()

    def to_connect_with_headers(self, topic: str, headers: RawHeaders, data: bytes | None) -> SchemaAndValue:
        tag = dict(headers)["tag"]
        assert tag is not None
        assert data is not None
        return SchemaAndValue(STRING_SCHEMA, (tag + data).decode())


def tagged_converters() -> tuple[Tagged, Converters]:
    tagged = Tagged()
    return tagged, Converters(Digits(), tagged, SimpleHeaderConverter())


def test_encoding_passes_record_headers_to_a_converter_that_uses_headers() -> None:
    tagged, both = tagged_converters()
    built, reported = stages()
    given = batch("ab", "bad", "cd", keys=[1, 2, 3], headers=[Headers().add("h", "x"), Headers(), Headers()])
    (columns,) = ToBytes(both, built).convert(given, 0)
    assert tagged.headers == [[("h", b"x")], [], []]
    assert (columns.keys, columns.values) == ([b"1", b"3"], [b"b", b"d"])
    assert columns.headers == [[("h", b"x"), ("tag", b"a")], [("tag", b"c")]]
    assert [list(part.values) for _, part in reported] == [["bad"]]


def test_encoding_adds_headers_from_a_converter_to_records_without_headers() -> None:
    (columns,) = ToBytes(tagged_converters()[1], stages()[0]).convert(batch("ab"), 0)
    assert columns.headers == [[("tag", b"a")]]


def test_retry_of_a_converter_starts_with_the_original_record_headers() -> None:
    tagged, both = tagged_converters()
    tagged.fails_once = True
    built, _ = stages(error_policy(retry_timeout_ms=-1))
    (columns,) = ToBytes(both, built).convert(batch("ab"), 0)
    assert columns.headers == [[("tag", b"a")]]


def test_decoding_passes_record_headers_to_a_converter_that_uses_headers() -> None:
    built, reported = stages()
    headers: list[RawHeaders] = [[("tag", b"a")], [], [("tag", b"c")]]
    columns = RecordColumns([b"b", b"x", b"d"], headers=headers, timestamps=1, offsets=[5, 6, 7])
    (out,) = FromBytes(tagged_converters()[1], built).convert(RawPart("t", 0, columns))
    assert (out.values, list(out.offsets)) == (["ab", "cd"], [5, 7])
    assert [failure.stage for failure, _ in reported] == ["VALUE_CONVERTER"]


def test_encoding_converts_headers_before_keys() -> None:
    built, reported = stages()
    unconvertible = Headers().add("h", object())
    ToBytes(converters(), built).convert(batch(1, keys=[13], headers=[unconvertible]), 0)
    assert [failure.stage for failure, _ in reported] == ["HEADER_CONVERTER"]


def test_method_apply_is_called_for_each_record_if_a_subclass_of_a_batch_transform_overrides_only_apply() -> None:
    class Batchwise(Transformation):
        def apply_batch(self, batch: Any) -> Any:
            return batch

    class Negated(Batchwise):
        def apply(self, record: Any) -> Any:
            return record.replace(value=-record.value)

    assert values(TransformChain([Step(Negated())], stages()[0]).apply(batch(1, 2))) == [-1, -2]


def test_record_for_which_a_transform_returns_an_object_of_a_wrong_type_is_reported_as_an_error() -> None:
    class Wrong(Transformation):
        def apply(self, record: Any) -> Any:
            return {"a": 1} if record.value == 1 else record

    built, reported = stages()
    assert values(TransformChain([Step(Wrong())], built).apply(batch(1, 2))) == [2]
    assert "apply returned an object of type dict" in str(reported[0][0].error)


def test_wrong_result_of_a_batch_method_of_a_transform_or_predicate_fails_the_task() -> None:
    class Wrong(Transformation):
        stateless = True

        def apply_batch(self, batch: Any) -> Any:
            return batch.to_records()

    class TooFew(Predicate):
        def test_batch(self, batch: Any) -> list[bool]:
            return [True]

    with pytest.raises(ConnectError, match=r"apply_batch of .*Wrong returned an object of type SourceRecord"):
        TransformChain([Step(Wrong())], stages()[0]).apply(batch(1, 2))
    with pytest.raises(ConnectError, match=r"test_batch of .*TooFew returned 1 results for 2 records"):
        TransformChain([Step(Double(), TooFew())], stages()[0]).apply(batch(1, 2))
