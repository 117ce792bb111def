"""Tests of the Elasticsearch sink without a server: names, documents, responses and configuration."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.api.errors import ConfigErrors, DataError
from headrace.data.batch import SinkBatch
from headrace.data.headers import Headers
from headrace.data.json_texts import JsonTexts
from headrace.data.logical import DATE_SCHEMA, Date
from headrace.data.schema import INT32_SCHEMA, STRING_SCHEMA, map_of, struct
from headrace.data.struct import Struct
from headrace_connectors.elasticsearch.documents import Result, encode_batch
from headrace_connectors.elasticsearch.mappings import mapping_of
from headrace_connectors.elasticsearch.names import data_stream_name, index_name
from headrace_connectors.elasticsearch.rejected_fields import type_name
from headrace_connectors.elasticsearch.responses import Verdict, backoff_ms, indexes_to_retry, outcomes_of
from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig


def config(**props: str) -> ElasticsearchSinkConfig:
    settings = {key.replace("__", "."): value for key, value in props.items()}
    return ElasticsearchSinkConfig.parse({"connection.url": "http://localhost:9200"} | settings)


def encode(values: list[Any], keys: list[Any] | None = None, schema: Any = None, headers: Any = None, **props: str
           ) -> Result:  # fmt: skip
    batch = SinkBatch("items", values, partition=3, offsets=range(10, 10 + len(values)), keys=keys,
                      value_schema=schema, timestamps=77, headers=headers)  # fmt: skip
    return encode_batch(batch, "items", config(**props))


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for each in result.encoded for line in each.lines.splitlines()]


@pytest.mark.parametrize(
    ("topic", "index"),
    [("Orders", "orders"), ("__x", "x"), ("-_a", "a"), (".", "dot"), ("..", "dotdot"), ("x" * 300, "x" * 255)],
)
def test_index_name_is_derived_from_the_topic_as_in_confluents_connector(topic: str, index: str) -> None:
    assert index_name(topic) == index


@pytest.mark.parametrize(
    "topic", ["a/b", "a,b", "*", "<logs-{now/d}>", "a b", "a\nb", "__", "+a", "a:b", "a#b", "\u00e9" * 128]
)
def test_topic_that_cannot_be_converted_to_a_valid_index_name_is_rejected(topic: str) -> None:
    with pytest.raises(DataError, match="is not a valid name"):
        index_name(topic)


def test_topic_variable_in_a_data_stream_name_is_replaced_by_the_topic_in_lower_case() -> None:
    assert data_stream_name("LOGS", "shop", "${topic}", "Items") == "logs-shop-items"


def test_json_value_that_was_not_decoded_is_sent_unchanged_as_the_document() -> None:
    texts = [b'{"a": 1.10}', b'{"a": 2}']
    batch = SinkBatch("items", JsonTexts(texts), partition=3, offsets=range(10, 12), keys=["k", 7.5], timestamps=77)
    result = encode_batch(batch, "items", config())
    assert [each.lines.split(b"\n")[1] for each in result.encoded] == [b'{"a": 1.10}']
    assert "key is the document's id" in str(result.errors[1])
    stream = encode_batch(batch, "items", config(data__stream__type="LOGS", data__stream__dataset="shop"))
    assert lines(stream)[1] == {"a": 1.1, "@timestamp": 77}


ID = struct([("id", INT32_SCHEMA)])


@pytest.mark.parametrize(
    ("schema", "key", "text"),
    [
        (None, None, "is null; use a key of the type string or integer, or set key.ignore=true"),
        (ID, Struct(ID, {"id": 1}), r"has the type struct; use .* \(the transform ExtractField\$Key replaces"),
        (None, {"id": 1}, r"has the type map; use .* \(the transform ExtractField\$Key replaces"),
        (None, 7.5, "has the type float64; use"),
        (STRING_SCHEMA, "x" * 513, "has 513 bytes instead of 1 to 512; use a shorter key"),
        (STRING_SCHEMA, "", "has 0 bytes instead of 1 to 512"),
    ],
)
def test_error_for_a_key_that_cannot_be_an_id_says_why(schema: Any, key: Any, text: str) -> None:
    batch = SinkBatch("items", [{"a": 1}], partition=0, offsets=[0], keys=[key], key_schema=schema, timestamps=0)
    assert re.search(f"key is the document's id, but {text}", str(encode_batch(batch, "items", config()).errors[0]))


def test_integer_of_more_than_64_bits_is_described_as_such() -> None:
    assert type_name(None, 2**63) == "integer (more than 64 bits)"
    assert type_name(None, -(2**63)) == "int64"


def test_document_with_the_record_key_as_id_has_the_record_offset_as_external_version() -> None:
    assert lines(encode([{"a": 1}], ["k"])) == [
        {"index": {"_index": "items", "_id": "k", "version": 10, "version_type": "external"}},
        {"a": 1},
    ]


def test_external_version_of_a_document_is_the_value_of_the_configured_header() -> None:
    found = encode([{}, {}], ["k", "l"], headers=[Headers().add("v", 7), Headers()], external__version__header="v")
    assert lines(found)[0]["index"]["version"] == 7
    assert "external.version.header" in str(found.errors[1])


def test_document_id_is_topic_partition_and_offset_if_keys_are_ignored() -> None:
    found = lines(encode([{}, {}], key__ignore="true"))
    assert [each["index"]["_id"] for each in found[::2]] == ["items+3+10", "items+3+11"]


def test_documents_are_sent_without_ids_if_the_server_generates_ids() -> None:
    assert lines(encode([{}], use__autogenerated__ids="true"))[0] == {"index": {"_index": "items"}}


def test_upsert_is_sent_as_an_update_action_without_a_document_version() -> None:
    assert lines(encode([{"a": 1}], ["k"], write__method="UPSERT")) == [
        {"update": {"_index": "items", "_id": "k", "retry_on_conflict": 5}},
        {"doc": {"a": 1}, "doc_as_upsert": True},
    ]


def test_document_for_a_data_stream_is_sent_as_a_create_action_with_a_timestamp_field() -> None:
    stream = {"data__stream__type": "LOGS", "data__stream__dataset": "d", "key__ignore": "true"}
    assert lines(encode([{"a": 1}], **stream))[1] == {"a": 1, "@timestamp": 77}
    found = lines(encode([{"a": None, "b": 5}], data__stream__timestamp__field="a,b", **stream))
    assert found == [{"create": {"_index": "items", "_id": "items+3+10"}}, {"a": None, "b": 5, "@timestamp": 5}]


def test_null_value_deletes_the_document_or_is_rejected_or_ignored_as_configured() -> None:
    """The configuration key is behavior.on.null.values."""
    (delete,) = lines(encode([None], ["k"], behavior__on__null__values="DELETE"))
    assert delete == {"delete": {"_index": "items", "_id": "k", "version": 10, "version_type": "external"}}
    assert list(encode([{}, None], ["k", "l"]).errors) == [1]
    ignored = encode([None, {}], ["k", "l"], behavior__on__null__values="IGNORE")
    assert ([each.at for each in ignored.encoded], ignored.errors) == ([1], {})


@pytest.mark.parametrize("key", [None, True, 1.5, {"a": 1}, "", "x" * 513])
def test_record_with_a_key_that_cannot_be_a_document_id_is_rejected(key: object) -> None:
    found = encode([{}, {}], [key, "k"])
    assert ([each.at for each in found.encoded], list(found.errors)) == ([1], [0])
    assert "key.ignore=true" in str(found.errors[0])


@pytest.mark.parametrize("value", ["text", 5, [1], b"x"])
def test_record_with_a_value_that_is_not_an_object_is_rejected(value: object) -> None:
    found = encode([{}, value], ["k", "l"])
    assert ([each.at for each in found.encoded], list(found.errors)) == ([0], [1])


def test_dates_are_written_as_milliseconds_and_maps_as_objects_or_arrays() -> None:
    """If compact.map.entries is false, a map is written as an array of objects with the fields `key` and `value`."""
    schema = struct([("day", DATE_SCHEMA), ("m", map_of(STRING_SCHEMA, INT32_SCHEMA))])
    row = (Date(1), {"a": 1})
    assert lines(encode([row], ["k"], schema))[1] == {"day": 86400000, "m": {"a": 1}}
    found = lines(encode([row], ["k"], schema, compact__map__entries="false"))[1]
    assert found["m"] == [{"key": "a", "value": 1}]


@pytest.mark.parametrize(("replaced", "expected"), [("true", 7), ("false", None)])
def test_null_field_with_a_default_is_stored_as_the_value_converters_configuration_says(
    replaced: str, expected: int | None
) -> None:
    optional = INT32_SCHEMA.replace(optional=True, default=7)
    for other in (INT32_SCHEMA, DATE_SCHEMA):  # the sink itself converts structs with dates
        schema = struct([("n", optional), ("other", other.replace(optional=True))])
        result = encode([(None, None)], ["k"], schema, value__converter__replace__null__with__default=replaced)
        assert lines(result)[1] == {"n": expected, "other": None}
    mapping = mapping_of(schema, compact_maps=True, replaces_null=replaced == "true")["properties"]["n"]
    assert mapping == ({"type": "integer", "null_value": 7} if expected else {"type": "integer"})


def test_line_breaks_in_keys_and_values_do_not_add_actions_to_the_bulk_request() -> None:
    hostile = '"}}\n{"delete":{"_index":"x","_id":"y"}}\n'
    (encoded,) = encode([{"a": hostile, hostile: 1}], [hostile]).encoded
    assert encoded.lines.count(b"\n") == 2


def item(status: int, type_: str | None = None, action: str = "index") -> dict[str, Any]:
    return {action: {"status": status} | ({"error": {"type": type_, "reason": "r"}} if type_ else {})}


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (item(201), Verdict.STORED),
        (item(404, action="delete"), Verdict.STORED),
        (item(409, "version_conflict_engine_exception"), Verdict.STORED),
        (item(409, "version_conflict_engine_exception", "create"), Verdict.EXISTS),
        (item(409, "version_conflict_engine_exception", "update"), Verdict.RETRY),
        (item(429, "es_rejected_execution_exception"), Verdict.RETRY),
        (item(503, "unavailable_shards_exception"), Verdict.RETRY),
        (item(400, "mapper_parsing_exception"), Verdict.MALFORMED),
        (item(400, "document_parsing_exception"), Verdict.MALFORMED),
        (item(403, "index_closed_exception"), Verdict.FATAL),
    ],
)
def test_status_and_error_type_of_a_bulk_item_determine_whether_the_document_counts_as_stored_or_failed(
    result: dict[str, Any], verdict: Verdict
) -> None:
    assert [each.verdict for each in outcomes_of({"errors": True, "items": [result]}, 1, False)] == [verdict]


@pytest.mark.parametrize(("current", "verdict"), [(10, Verdict.STORED), (11, Verdict.NEWER)])
def test_version_conflict_is_reported_as_a_newer_document_only_if_the_current_version_is_higher(
    current: int, verdict: Verdict
) -> None:
    conflict = item(409, "version_conflict_engine_exception")
    conflict["index"]["error"]["reason"] = (
        f"[k]: version conflict, current version [{current}] is higher or equal to the one provided [10]"
    )
    assert [each.verdict for each in outcomes_of({"errors": True, "items": [conflict]}, 1, False)] == [verdict]


def test_response_that_is_not_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a JSON object: '<html>'"):
        outcomes_of("<html>", 2, False)


def test_bulk_response_with_fewer_items_than_the_request_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not have 2 items"):
        outcomes_of({"errors": True, "items": [item(201)]}, 2, False)


def test_retry_of_an_operation_without_document_version_repeats_later_operations_on_the_same_document() -> None:
    response = {"errors": True, "items": [item(429, "x"), item(200), item(200), item(429, "x")]}
    outcomes = outcomes_of(response, 4, False)
    assert indexes_to_retry(outcomes, ["a", "b", "a", "c"], True) == [0, 2, 3]
    assert indexes_to_retry(outcomes, ["a", "b", "a", "c"], False) == [0, 3]


def test_retry_backoff_of_bulk_requests_doubles_up_to_one_day() -> None:
    def longest(low: float, high: float) -> float:
        return high

    assert [backoff_ms(100, attempt, longest) for attempt in (1, 2, 5)] == [200, 400, 3200]
    assert backoff_ms(100, 60, longest) == 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("props", "name"),
    [
        ({"connection.url": "localhost:9200"}, "connection.url"),
        ({"connection.url": "http://a:b@c"}, "connection.url"),
        ({"connection.url": "http://"}, "connection.url"),
        ({"connection.url": "http://localhost:9200,"}, "connection.url"),
        ({"proxy.host": "http://p"}, "proxy.host"),
        ({"proxy.host": "p:3128"}, "proxy.host"),
        ({"connection.username": "u"}, "connection.password"),
        ({"data.stream.type": "LOGS"}, "data.stream.dataset"),
        ({"data.stream.type": "LOGS", "data.stream.dataset": "a b"}, "data.stream.dataset"),
        ({"kerberos.user.principal": "p"}, "kerberos.user.principal"),
        ({"proxy.host": "p", "proxy.username": "u"}, "proxy.password"),
        ({"proxy.host": "p", "proxy.password": "s"}, "proxy.username"),
        ({"elastic.security.protocol": "SSL"}, "connection.url"),
        ({"topic.index.map": "orders:private"}, "topic.index.map"),
        ({"write.method": "UPSERT", "key.ignore": "true"}, "key.ignore"),
        ({"external.resource.usage": "INDEX"}, "topic.to.external.resource.mapping"),
        (
            {
                "external.resource.usage": "INDEX",
                "topic.to.external.resource.mapping": "a:x,b:y",
                "max.external.resource.mappings": "1",
            },
            "topic.to.external.resource.mapping",
        ),
    ],
)
def test_error_for_an_invalid_elasticsearch_configuration_names_the_key(props: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        ElasticsearchSinkConfig.parse({"connection.url": "http://localhost:9200"} | props)
    assert [error.key for error in caught.value.errors] == [name]


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("type.name", "documents have no types"),
        ("auto.create.indices.at.start", "an index is created when its first record arrives"),
        ("max.connection.idle.time.ms", "a connection that the server closed is opened again"),
    ],
)
def test_configuration_key_that_has_no_effect_causes_a_warning(key: str, reason: str) -> None:
    config = ElasticsearchSinkConfig.parse({"connection.url": "http://localhost:9200", key: "8"})
    assert config.warnings_about_keys() == [f"Configuration {key} has no effect: {reason}"]
