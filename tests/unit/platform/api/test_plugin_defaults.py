"""Tests of the default batch methods of plug-ins that implement only the per-record method."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.api.converter import Converter, SchemaAndValue, SchemaRun
from headrace.api.errors import DataError, RecordErrors
from headrace.api.predicate import Predicate
from headrace.api.task import SourceTask
from headrace.api.transform import Transformation
from headrace.data.batch import SinkBatch, SourceBatch
from headrace.data.schema import INT32_SCHEMA, STRING_SCHEMA, Schema, struct
from headrace.data.struct import Struct
from support.transforms import records, sink_batch, source_batch

ROW = struct([("n", INT32_SCHEMA)])


class Router(Transformation):
    def apply(self, record: Any) -> Any:
        number = record.value.get("n")
        if number < 0:
            raise DataError(f"negative: {number}")
        return None if number == 0 else record.replace(topic=f"t{number % 2}")


class Even(Predicate):
    def test(self, record: Any) -> bool:
        return int(record.value.get("n")) % 2 == 0


class Plain(Converter):
    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        return None if value is None else str(value.get("n")).encode()

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return SchemaAndValue(None, None)
        return SchemaAndValue(ROW, Struct(ROW, {"n": int(data)}))


def rows(*numbers: int) -> list[Struct]:
    return [Struct(ROW, {"n": number}) for number in numbers]


def test_default_apply_batch_method_calls_the_apply_method_for_each_record() -> None:
    result = Router().apply_batch(source_batch(rows(1, 3, 0, 2, 5), ROW))
    assert [(batch.topic, batch.values) for batch in result or ()] == [
        ("t1", [(1,), (3,)]),
        ("t0", [(2,)]),
        ("t1", [(5,)]),
    ]
    assert all(isinstance(batch, SourceBatch) for batch in result or ())
    (batch, *_) = Router().apply_batch(sink_batch(rows(2), ROW)) or ()
    assert isinstance(batch, SinkBatch)
    assert (batch.topic, batch.original_topic, list(batch.offsets)) == ("t0", "test", [0])
    assert Router().apply_batch(source_batch(rows(0), ROW)) == []


def test_default_apply_batch_method_raises_one_error_that_lists_all_failed_records() -> None:
    batch = source_batch(rows(1, -1, 2, -2), ROW)
    with pytest.raises(RecordErrors) as caught:
        Router().apply_batch(batch)
    assert {index: str(error) for index, error in caught.value.errors.items()} == {1: "negative: -1", 3: "negative: -2"}
    assert len(records(Router().apply_batch(batch.take([0, 2])))) == 2


def test_default_batch_method_of_a_predicate_calls_its_test_method_for_each_record() -> None:
    assert Even().test_batch(source_batch(rows(1, 2), ROW)) == [False, True]
    with pytest.raises(RecordErrors) as caught:
        Even().test_batch(source_batch([*rows(1), None], ROW))
    assert list(caught.value.errors) == [1]


def test_default_batch_methods_of_a_converter_convert_between_structs_and_rows() -> None:
    converter = Plain()
    assert converter.from_connect_batch("t", ROW, [(1,), None]) == [b"1", None]
    assert converter.to_connect_batch("t", [b"1", b"2", None, b"3"]) == [
        SchemaRun(ROW, [(1,), (2,)]),
        SchemaRun(None, [None]),
        SchemaRun(ROW, [(3,)]),
    ]
    with pytest.raises(RecordErrors) as caught:
        converter.to_connect_batch("t", [b"1", b"x", b"y"])
    assert list(caught.value.errors) == [1, 2]
    with pytest.raises(RecordErrors) as caught:
        converter.from_connect_batch("t", STRING_SCHEMA, ["a", None])
    assert list(caught.value.errors) == [0]


def test_calling_a_method_that_a_plugin_does_not_define_raises_an_error_with_the_plugin_and_method_names() -> None:
    class PluginWithoutApply(SourceTask):
        pass

    with pytest.raises(NotImplementedError, match="PluginWithoutApply does not define poll"):
        PluginWithoutApply().poll()
