from __future__ import annotations

from headrace.data.batch import Batch, SinkBatch, SourceBatch, from_records
from headrace.data.headers import Header, Headers, map_headers
from headrace.data.records import ConnectRecord, SinkRecord, SourceRecord, TimestampType
from headrace.data.schema import (
    FLOAT64_SCHEMA,
    INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    array,
    map_of,
    struct,
)
from headrace.data.struct import Struct, from_rows, to_rows

INNER = struct([("x", INT32_SCHEMA)])
OUTER = struct([("id", INT32_SCHEMA), ("in", INNER), ("all", array(INNER)), ("by", map_of(STRING_SCHEMA, INNER))])


def _outer(number: int) -> Struct:
    inner = Struct(INNER, {"x": number})
    return Struct(OUTER, {"id": number, "in": inner, "all": [inner], "by": {"k": inner}})


def test_nested_structs_are_converted_to_rows() -> None:
    rows = to_rows(OUTER, [_outer(1), None])
    assert rows == [(1, (1,), [(1,)], {"k": (1,)}), None]
    assert from_rows(OUTER, rows) == [_outer(1), None]


def test_conversion_between_structs_and_rows_does_not_copy_a_list_without_structs() -> None:
    values = ["a", "b"]
    assert to_rows(STRING_SCHEMA, values) is values
    assert from_rows(None, values) is values


def test_consecutive_records_with_equal_schemas_are_combined_into_one_batch() -> None:
    def record(topic: str, number: int, offset: int) -> SourceRecord:
        return SourceRecord(
            topic=topic,
            value_schema=OUTER,
            value=_outer(number),
            timestamp=number,
            source_partition={"p": 1},
            source_offset={"o": offset},
        )

    records = [record("a", 1, 10), record("a", 2, 11), record("b", 3, 12), record("a", 4, 13)]
    batches = from_records(records)
    assert [(batch.topic, len(batch)) for batch in batches] == [("a", 2), ("b", 1), ("a", 1)]
    first = batches[0]
    assert isinstance(first, SourceBatch)
    assert first.source_offset == {"o": 11}
    assert first.keys is None
    assert first.headers is None
    assert [made for batch in batches for made in batch.to_records()] == records


def test_sink_batch_that_is_built_from_records_returns_the_same_records() -> None:
    batch = SinkBatch(
        "t", ["a", "b"], partition=3, offsets=range(5, 7), keys=[b"k", None], timestamps=9,
        headers=[Headers([Header("h", STRING_SCHEMA, "v")]), Headers()], value_schema=STRING_SCHEMA,
    )  # fmt: skip
    records = batch.to_records()
    assert [record.offset for record in records] == [5, 6]
    assert (records[0].original_topic, records[0].original_partition, records[1].original_offset) == ("t", 3, 6)
    assert records[0].headers.last("h") == Header("h", STRING_SCHEMA, "v")
    assert [record.timestamp for record in records] == [9, 9]
    again = from_records(records)
    assert len(again) == 1
    assert again[0].to_records() == records


def test_sink_batch_with_a_replaced_topic_keeps_its_original_topic_and_offsets() -> None:
    batch = SinkBatch("t", ["a", "b", "c"], partition=0, offsets=range(10, 13)).replace(topic="other").take([0, 2])
    assert (batch.topic, batch.original_topic) == ("other", "t")
    assert list(batch.offsets) == list(batch.original_offsets) == [10, 12]
    assert [type(record) for record in batch.to_records()] == [SinkRecord, SinkRecord]
    assert batch.timestamp_type is TimestampType.CREATE_TIME


def test_source_batch_of_selected_records_keeps_the_source_offset_of_the_original_batch() -> None:
    batch = SourceBatch(
        "t", ["a", "b"], source_partition={}, source_offset={"o": 2}, source_offsets=[{"o": 1}, {"o": 2}], timestamps=5
    )
    part = batch.take([0])
    assert (part.values, part.source_offset, part.source_offsets, part.timestamps) == (["a"], {"o": 2}, [{"o": 1}], 5)
    assert batch.values == ["a", "b"]


def test_batch_with_replaced_values_leaves_the_original_batch_unchanged() -> None:
    batch = Batch("t", [1], value_schema=INT32_SCHEMA)
    other = batch.replace(values=["1"], value_schema=OPTIONAL_STRING_SCHEMA)
    assert (batch.values, batch.value_schema) == ([1], INT32_SCHEMA)
    assert (other.values, other.value_schema, other.topic) == (["1"], OPTIONAL_STRING_SCHEMA, "t")


def test_headers_with_the_same_key_are_all_kept_in_insertion_order() -> None:
    headers = Headers().add("a", 1).add("b", 2).add("a", 3)
    assert headers.last("a") == Header("a", None, 3)
    assert [header.value for header in headers.all("a")] == [1, 3]
    assert headers.without("a") == Headers().add("b", 2)
    record = ConnectRecord(topic="t", headers=headers)
    assert record.replace(topic="u").headers is headers


def test_method_map_headers_calls_its_function_once_for_a_headers_object_that_several_records_share() -> None:
    a, b, equal_to_a = Headers().add("n", 1), Headers().add("n", 2), Headers().add("n", True)
    calls: list[Headers] = []

    def value(headers: Headers) -> object:
        calls.append(headers)
        return headers[0].value

    assert map_headers(value, [a, a, b, a, equal_to_a]) == [1, 1, 2, 1, True]
    assert calls == [a, b, equal_to_a]
    assert map_headers(value, [a, a]) == [1, 1]
    assert map_headers(value, [a, equal_to_a, a]) == [1, True, 1]
    zero, negative_zero = Headers().add("n", 0, FLOAT64_SCHEMA), Headers().add("n", -0.0, FLOAT64_SCHEMA)
    assert list(map(str, map_headers(value, [zero, negative_zero, zero]))) == ["0", "-0.0", "0"]
    assert map_headers(value, []) == []


def test_changing_the_headers_of_one_record_does_not_change_other_records_or_their_batch() -> None:
    shared = Headers().add("h", {"a": 1})
    batch = SinkBatch("t", ["a", "b"], partition=0, offsets=range(2), headers=[shared, shared])
    first, second = batch.to_records()
    first.headers.add("only-first", 2)
    first.headers[0].value["a"] = 2
    assert second.headers == [Header("h", None, {"a": 1})]
    assert batch.headers == [[Header("h", None, {"a": 1})]] * 2
