"""Tests of `ConfiguredPipeline`: the same records as in a sink task, and failed records as data."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headrace.api.errors import ConfigErrors, RetriableError
from headrace.api.record_access import PipelineResult
from headrace.api.transform import Transformation
from headrace.data.json_texts import JsonTexts
from headrace.plugins import registry
from headrace.runtime.record_access.pipeline import ConfiguredPipeline, may_change_topics
from headrace.runtime.record_access.reader import KafkaRecords
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace_broker.records.columns import RecordColumns

JSON = {"value.converter": "org.apache.kafka.connect.json.JsonConverter"}
PLAIN_JSON = {**JSON, "value.converter.schemas.enable": "false"}


def pipeline_of(config: Mapping[str, str], errors_max: int = 10, *, json_texts: bool = False) -> ConfiguredPipeline:
    spec = TaskSpec(
        connector="sink",
        number=0,
        config={},
        connector_config={"name": "sink", "key.converter": "StringConverter", **config},
        worker={"bootstrap.servers": "localhost:1", "python.transform.enable": "true"},
    )
    return ConfiguredPipeline.from_plugins(Plugins(spec), errors_max, json_texts=json_texts)


def records_of(values: Sequence[Any], start: int = 0, **columns: Any) -> KafkaRecords:
    encoded = [
        value if value is None or isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
        for value in values
    ]
    raw = RecordColumns(encoded, offsets=range(start, start + len(values)), timestamps=7, **columns)
    return KafkaRecords("t", 3, start, start + len(values), raw)


def apply(config: Mapping[str, str], records: KafkaRecords, errors_max: int = 10, **options: Any) -> PipelineResult:
    with pickle.loads(pickle.dumps(pipeline_of(config, errors_max, **options))).open() as pipeline:
        return pipeline.apply(records)


def envelope(value: int) -> dict[str, Any]:
    fields = [{"type": "int32", "optional": False, "field": "a"}]
    return {"schema": {"type": "struct", "optional": False, "fields": fields}, "payload": {"a": value}}


def test_records_keep_their_positions_keys_headers_and_timestamps() -> None:
    records = records_of([{"a": 1}, {"a": 2}], start=5, keys=[b"k1", b"k2"], headers=[[("h", b"1")], []])
    (batch,) = apply(PLAIN_JSON, records).batches
    assert (batch.original_topic, batch.original_partition, list(batch.original_offsets)) == ("t", 3, [5, 6])
    assert (batch.keys, batch.values, batch.timestamps) == (["k1", "k2"], [{"a": 1}, {"a": 2}], 7)
    assert [[(header.key, header.value) for header in headers] for headers in batch.headers or ()] == [[("h", 1)], []]


def test_values_with_a_schema_stay_columns() -> None:
    (batch,) = apply(JSON, records_of([envelope(number) for number in range(100)])).batches
    assert batch.compact is not None
    assert batch.values[:2] == [(0,), (1,)]


def test_json_objects_stay_texts_only_on_request_and_without_transforms() -> None:
    records = records_of([{"a": number} for number in range(100)])
    for options, config, is_text in (
        ({"json_texts": True}, PLAIN_JSON, True),
        ({}, PLAIN_JSON, False),
        ({"json_texts": True}, {**PLAIN_JSON, "transforms": "x", "transforms.x.type": "Filter"} | _NEVER, False),
    ):
        (batch,) = apply(config, records, **options).batches
        assert isinstance(batch.compact, JsonTexts) is is_text
        assert batch.values[1] == {"a": 1}


_NEVER = {"predicates": "p", "predicates.p.type": "RecordIsTombstone", "transforms.x.predicate": "p"}


def test_transforms_and_predicates_are_applied_and_dropped_records_are_no_errors() -> None:
    config = {
        **PLAIN_JSON,
        "transforms": "drop,route",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "null",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": "t",
        "transforms.route.replacement": "u",
        "predicates": "null",
        "predicates.null.type": "RecordIsTombstone",
    }
    result = apply(config, records_of([{"a": 1}, None, {"a": 3}]))
    assert [(batch.topic, batch.original_topic, list(batch.original_offsets)) for batch in result.batches] == [
        ("u", "t", [0, 2]),
    ]
    assert (result.errors, result.error_count, result.first_error_offset) == ((), 0, None)


def test_failed_records_are_returned_in_the_order_of_their_offsets_whatever_errors_tolerance_says() -> None:
    values = [b"{", {"a": "x"}, {"a": "1"}, b"[", {"a": "y"}, {"a": "2"}]
    config = {
        **PLAIN_JSON,
        "errors.tolerance": "none",
        "transforms": "cast",
        "transforms.cast.type": "Cast$Value",
        "transforms.cast.spec": "a:int32",
    }
    result = apply(config, records_of(values, start=10), errors_max=3)
    assert [value for batch in result.batches for value in batch.values] == [{"a": 1}, {"a": 2}]
    assert (result.error_count, result.first_error_offset) == (4, 10)
    assert [(error.offset, error.stage) for error in result.errors] == [
        (10, "VALUE_CONVERTER"),
        (11, "TRANSFORMATION"),
        (13, "VALUE_CONVERTER"),
    ]
    second = result.errors[1]
    assert (second.topic, second.partition) == ("t", 3)
    assert second.class_name == "org.apache.kafka.connect.transforms.Cast$Value"
    assert second.error_class == "org.apache.kafka.connect.errors.DataException"
    assert second.reason.startswith("transform cast: ")
    assert "Traceback" in second.trace
    assert pickle.loads(pickle.dumps(result.errors)) == result.errors
    none = apply(config, records_of(values), errors_max=0)
    assert (none.errors, none.error_count, none.first_error_offset) == ((), 4, 0)


class Flaky(Transformation):
    """Raises a retriable error the first time that it receives a record."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def apply(self, record: Any) -> Any:
        if record.offset in self._seen:
            return record
        self._seen.add(record.offset)
        raise RetriableError("again")


def test_retriable_errors_are_retried_as_configured() -> None:
    config = {**PLAIN_JSON, "transforms": "f", "transforms.f.type": f"{__name__}:Flaky"}
    assert apply(config, records_of([1, 2])).error_count == 2
    result = apply({**config, "errors.retry.timeout": "60000", "errors.retry.delay.max.ms": "1"}, records_of([1, 2]))
    assert (result.error_count, [batch.values for batch in result.batches]) == (0, [[1, 2]])


def test_pipeline_counts_the_failed_records_of_each_call() -> None:
    with pipeline_of(PLAIN_JSON).open() as pipeline:
        assert pipeline.apply(records_of([b"{"])).error_count == 1
        assert pipeline.apply(records_of([{"a": 1}])).error_count == 0
        assert pipeline.apply(records_of([])).batches == ()


def test_invalid_configuration_of_a_transform_is_reported_when_the_pipeline_is_created() -> None:
    with pytest.raises(ConfigErrors, match="spec"):
        pipeline_of({**PLAIN_JSON, "transforms": "c", "transforms.c.type": "Cast$Value"})


def test_text_of_a_pipeline_contains_no_configuration() -> None:
    config = {**PLAIN_JSON, "transforms": "i", "transforms.i.type": "InsertField$Value"}
    config |= {"transforms.i.static.field": "f", "transforms.i.static.value": "secret"}
    pipeline = pipeline_of(config)
    assert b"secret" in pickle.dumps(pipeline)
    assert "secret" not in repr(pipeline)


@pytest.mark.parametrize(
    ("transform", "changes_topics"),
    [
        ({"type": "Cast$Value", "spec": "a:int32"}, False),
        ({"type": "Filter"}, False),
        ({"type": "TombstoneHandler"}, False),
        ({"type": "ValueToKey", "fields": "a"}, False),
        ({"type": "DropHeaders", "headers": "a"}, False),
        ({"type": "RegexRouter", "regex": "a", "replacement": "b"}, True),
        ({"type": "TimestampRouter"}, True),
        ({"type": "ExtractTopic$Value", "field": "a"}, True),
        ({"type": "io.debezium.transforms.ExtractNewRecordState"}, False),
        ({"type": "io.debezium.transforms.ExtractNewRecordState", "route.by.field": "a"}, True),
        ({"type": "Python", "expression": "value"}, False),
        ({"type": "Python", "expression": "record.replace(topic='x')"}, True),
    ],
)
def test_pipeline_says_whether_a_transform_may_change_topics(transform: dict[str, str], changes_topics: bool) -> None:
    config = {"transforms": "x", **{f"transforms.x.{name}": text for name, text in transform.items()}}
    assert pipeline_of({**PLAIN_JSON, **config}).changes_topics is changes_topics


def test_built_in_transforms_that_may_change_topics_are_the_routers() -> None:
    found = {cls.__name__ for cls in registry.default().all(registry.Kind.TRANSFORM) if may_change_topics(cls())}
    assert found == {
        "ExtractNewRecordState",
        "ExtractTopicHeader",
        "ExtractTopicKey",
        "ExtractTopicValue",
        "MessageTimestampRouter",
        "Python",
        "RegexRouter",
        "TimestampRouter",
    }


def test_transform_of_a_user_may_change_topics_unless_its_class_says_that_it_does_not() -> None:
    class Unknown(Transformation):
        pass

    class Same(Transformation):
        changes_topics = False

    class Overridden(Same):
        def apply(self, record: Any) -> Any:
            return record.replace(topic="x")

    assert [may_change_topics(each()) for each in (Unknown, Same, Overridden)] == [True, False, True]
    assert pipeline_of(PLAIN_JSON).changes_topics is False
