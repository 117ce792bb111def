"""Tests of Confluent's transforms Drop, TombstoneHandler, Filter, ExtractTopic and MessageTimestampRouter."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headrace.api.errors import ConfigError, ConfigErrors
from headrace.data.headers import Headers
from headrace.data.logical import Date, Time, Timestamp
from headrace.data.records import SinkRecord
from headrace.data.schema import OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import apply_to_value, batches, make_plugin, records, sink_batch, source_batch, transform_errors

CONFLUENT = "io.confluent.connect.transforms."
BOOK = struct([("author", OPTIONAL_STRING_SCHEMA), ("title", STRING_SCHEMA)])


def topics(transform: Any, batch: Any) -> list[str | None]:
    return [record.topic for record in records(transform.apply_batch(batch))]


def kept_values(transform: Any, values: list[Any], schema: Any = None) -> list[Any]:
    return [record.value for record in records(transform.apply_batch(source_batch(values, schema)))]


class TestDrop:
    @pytest.mark.parametrize(
        ("behavior", "schema"), [("nullify", None), ("force_optional", STRING_SCHEMA.replace(optional=True))]
    )
    def test_drop_value_removes_the_schema_or_makes_it_optional_depending_on_schema_behavior(
        self, behavior: str, schema: Any
    ) -> None:
        drop = make_plugin(CONFLUENT + "Drop$Value", schema__behavior=behavior)
        assert apply_to_value(drop, "a", STRING_SCHEMA) == (schema, None)

    def test_drop_key_replaces_the_key_with_null_and_keeps_the_value(self) -> None:
        (record,) = records(make_plugin(CONFLUENT + "Drop$Key").apply_batch(source_batch(["v"], keys=["k"])))
        assert (record.key, record.value) == (None, "v")

    def test_drop_with_schema_behavior_retain_fails_if_the_schema_is_not_optional(self) -> None:
        drop = make_plugin(CONFLUENT + "Drop$Value", schema__behavior="retain")
        assert apply_to_value(drop, "a", OPTIONAL_STRING_SCHEMA) == (OPTIONAL_STRING_SCHEMA, None)
        assert "is not optional" in str(transform_errors(drop, source_batch(["a"], STRING_SCHEMA))[0])

    def test_drop_rejects_an_unknown_schema_behavior(self) -> None:
        with pytest.raises(ConfigErrors, match=r"schema\.behavior"):
            make_plugin(CONFLUENT + "Drop$Value", schema__behavior="remove")


class TestTombstoneHandler:
    def test_tombstone_handler_drops_tombstones_by_default(self) -> None:
        assert kept_values(make_plugin(CONFLUENT + "TombstoneHandler"), ["a", None, "b"]) == ["a", "b"]
        assert batches(make_plugin(CONFLUENT + "TombstoneHandler").apply_batch(source_batch([None]))) == []

    def test_tombstone_handler_with_behavior_drop_warn_drops_tombstones_and_logs_their_number(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            assert kept_values(make_plugin("TombstoneHandler", behavior="drop_warn"), [None, "b", None]) == ["b"]
        assert caplog.messages == ["Dropped 2 tombstone record(s) of topic test"]

    def test_tombstone_handler_with_behavior_fail_rejects_tombstones_and_with_behavior_ignore_keeps_tombstones(
        self,
    ) -> None:
        assert list(transform_errors(make_plugin("TombstoneHandler", behavior="fail"), source_batch(["a", None]))) == [
            1
        ]
        assert kept_values(make_plugin("TombstoneHandler", behavior="ignore"), ["a", None]) == ["a", None]


class TestFilter:
    CONDITION = "$[?(@.author == 'Tolstoy' || @.author == 'Dostoevsky')]"

    def filter(self, **props: str) -> Any:
        settings = {"filter__condition": self.CONDITION, "filter__type": "include"} | props
        return make_plugin(CONFLUENT + "Filter$Value", **settings)

    def test_filter_includes_or_excludes_matching_records(self) -> None:
        books = [{"author": "Tolstoy"}, {"author": "Proust"}, {"author": "Dostoevsky"}]
        assert kept_values(self.filter(), books) == [books[0], books[2]]
        assert kept_values(self.filter(filter__type="exclude"), books) == [books[1]]

    def test_filter_keeps_structs_whose_fields_match_the_condition(self) -> None:
        books = [Struct(BOOK, {"author": name, "title": "t"}) for name in ("Tolstoy", "Proust")]
        assert kept_values(self.filter(), books, BOOK) == [books[0]]

    def test_filter_compares_timestamps_with_numbers(self) -> None:
        late = self.filter(filter__condition="$[?(@.at > 253402300799999)]")
        events = [{"at": Timestamp(253402318799000)}, {"at": Timestamp(0)}]
        assert kept_values(late, events) == events[:1]

    def test_filter_condition_with_a_nested_field_is_evaluated_on_the_object_that_contains_the_field(self) -> None:
        nested = self.filter(filter__condition="$.key[?(@.n == 1)]")
        assert kept_values(nested, [{"key": {"n": 1}}, {"key": {"n": 2}}, {"key": [{"n": 1}]}]) == [
            {"key": {"n": 1}},
            {"key": [{"n": 1}]},
        ]

    @pytest.mark.parametrize("value", [{}, {"author": None}, None, {"title": "x"}])
    def test_filter_fails_by_default_if_the_record_lacks_the_field(self, value: Any) -> None:
        """The setting `missing.or.null.behavior=include` keeps the record. The value `exclude` drops the record."""
        assert "is missing or null" in str(transform_errors(self.filter(), source_batch([value]))[0])
        assert kept_values(self.filter(missing__or__null__behavior="include"), [value]) == [value]
        assert kept_values(self.filter(missing__or__null__behavior="exclude"), [value]) == []

    def test_filter_on_a_nested_field_fails_if_the_record_lacks_the_parent_field(self) -> None:
        nested = self.filter(filter__condition="$.key[?(@.n == 1)]")
        assert "is missing or null" in str(transform_errors(nested, source_batch([{"other": 1}]))[0])

    def test_filter_key_selects_records_by_their_key(self) -> None:
        by_key = make_plugin(CONFLUENT + "Filter$Key", filter__condition="$[?(@.id > 1)]", filter__type="include")
        batch = source_batch(["a", "b"], keys=[{"id": 1}, {"id": 2}])
        assert [record.value for record in records(by_key.apply_batch(batch))] == ["b"]

    @pytest.mark.parametrize("condition", ["author", "$[?(@.a", "$.a | $.b"])
    def test_filter_rejects_an_invalid_condition(self, condition: str) -> None:
        with pytest.raises(ConfigErrors, match="JSONPath"):
            self.filter(filter__condition=condition)


class TestExtractTopic:
    def test_extract_topic_uses_the_whole_key_as_topic(self) -> None:
        assert topics(make_plugin(CONFLUENT + "ExtractTopic$Key"), source_batch([1, 2], keys=["x", "y"])) == ["x", "y"]

    def test_extract_topic_uses_a_field_of_the_value_as_topic(self) -> None:
        by_field = make_plugin(CONFLUENT + "ExtractTopic$Value", field="author")
        batch = sink_batch([Struct(BOOK, {"author": "a", "title": "t"})], BOOK)
        (record,) = records(by_field.apply_batch(batch))
        assert isinstance(record, SinkRecord)
        assert (record.topic, record.original_topic) == ("a", "test")

    def test_extract_topic_uses_a_nested_field_that_a_json_path_selects(self) -> None:
        nested = make_plugin(CONFLUENT + "ExtractTopic$Value", field='$["f1"]["f2"]', field__format="JSON_PATH")
        assert topics(nested, source_batch([{"f1": {"f2": "t2"}}])) == ["t2"]

    def test_extract_topic_uses_a_header_as_topic(self) -> None:
        by_header = make_plugin(CONFLUENT + "ExtractTopic$Header", field="route", skip__missing__or__null="true")
        batch = source_batch([1, 2], headers=[Headers().add("route", "r"), Headers()])
        assert topics(by_header, batch) == ["r", "test"]

    def test_extract_topic_fails_for_a_record_without_a_topic_name_unless_skip_missing_or_null_is_true(self) -> None:
        strict = make_plugin(CONFLUENT + "ExtractTopic$Value", field="f")
        errors = transform_errors(strict, source_batch([{"f": "t"}, {}, {"f": None}, {"f": 5}, "text"]))
        assert sorted(errors) == [1, 2, 3, 4]
        assert "missing or null in field f of the value" in str(errors[1])
        assert "must be a string" in str(errors[3])
        lenient = make_plugin(CONFLUENT + "ExtractTopic$Value", field="f", skip__missing__or__null="true")
        assert topics(lenient, source_batch([{"f": "t"}, {}])) == ["t", "test"]

    def test_extract_topic_rejects_an_invalid_json_path(self) -> None:
        with pytest.raises(ConfigError, match="field"):
            make_plugin(CONFLUENT + "ExtractTopic$Value", field="f1.f2", field__format="json_path")


class TestMessageTimestampRouter:
    def router(self, **props: str) -> Any:
        settings = {"message__timestamp__keys": "timestamp,time,ts"} | props
        return make_plugin(CONFLUENT + "MessageTimestampRouter", **settings)

    def test_message_timestamp_router_adds_the_first_existing_timestamp_field_to_the_topic_name(self) -> None:
        router = self.router(topic__format="foo-${topic}-${timestamp}", topic__timestamp__format="yyyy.MM.dd")
        assert topics(router, source_batch([{"time": "2019-08-06"}, {"timestamp": None, "ts": "2020-01-02"}])) == [
            "foo-test-2019.08.06",
            "foo-test-2020.01.02",
        ]

    def test_message_timestamp_router_accepts_fields_with_numbers_and_timestamps(self) -> None:
        moment = Timestamp(1_577_923_200_000)
        assert topics(self.router(), source_batch([{"ts": 1577923200000}, {"ts": moment}])) == ["test-20200102"] * 2
        late = source_batch([{"ts": Timestamp(253402318799000)}, {"ts": "10000-01-01"}, {"ts": 2**63 - 1}])
        assert topics(self.router(), late) == ["test-100000101", "test-100000101", "test-2922789940817"]
        errors = transform_errors(self.router(), source_batch([{"ts": Date(1)}, {"ts": Time(1)}, {"ts": True}]))
        assert sorted(errors) == [0, 1, 2]

    def test_message_timestamp_router_fails_for_records_without_a_timestamp_field(self) -> None:
        errors = transform_errors(self.router(), source_batch([{"a": 1}, "text", {"ts": 1.5}, {"ts": "soon"}]))
        assert sorted(errors) == [0, 1, 2, 3]
        assert "message.timestamp.keys (timestamp, time, ts)" in str(errors[0])

    def test_message_timestamp_router_rejects_a_configuration_without_timestamp_keys_or_with_an_invalid_format(
        self,
    ) -> None:
        with pytest.raises(ConfigErrors, match=r"message\.timestamp\.keys"):
            make_plugin(CONFLUENT + "MessageTimestampRouter")
        with pytest.raises(ConfigErrors, match=r"topic\.timestamp\.format"):
            self.router(topic__timestamp__format="yyyy-bb")
