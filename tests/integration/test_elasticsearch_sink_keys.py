"""Tests of configuration keys, schema changes and errors of the Elasticsearch sink with a real OpenSearch 2 server."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.logical import DATE_SCHEMA
from headrace.data.records import SinkRecord
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    Schema,
    map_of,
    struct,
)
from headrace.data.struct import Struct
from headrace.testing import run_sink
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support import search_server
from support.elasticsearch_task import put_until_error
from support.search_server import SearchServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]


@pytest.fixture(scope="module")
def running_server() -> Iterator[SearchServer]:
    with search_server.running(flags=search_server.SHORT_RUN_FLAGS) as server:
        yield server


@pytest.fixture
def server(running_server: SearchServer) -> SearchServer:
    running_server.clear()
    return running_server


def document(offset: int, value: Any, schema: Schema | None = None, topic: str = "items", **more: Any) -> SinkRecord:
    if schema is not None:
        value = Struct(schema, value)
    return SinkRecord(
        topic=topic, partition=0, offset=offset, timestamp=1000 + offset, value=value, value_schema=schema, **more
    )


def props_of(server: SearchServer, **props: str) -> dict[str, str]:
    settings = {"connection.url": server.url, "read.timeout.ms": "60000", "key.ignore": "true", "schema.ignore": "true"}
    return settings | {key.replace("__", "."): value for key, value in props.items()}


def put(server: SearchServer, records: Sequence[SinkRecord], **props: str) -> Any:
    return run_sink(ElasticsearchSinkConnector, props_of(server, **props), records)


def properties(server: SearchServer, index: str) -> dict[str, Any]:
    found: dict[str, Any] = server.request("GET", f"/{index}/_mapping")[index]["mappings"].get("properties", {})
    return found


# -- mappings and schema changes


def test_mapping_contains_the_type_and_the_default_of_each_field(server: SearchServer) -> None:
    schema = struct(
        [
            ("int8", INT8_SCHEMA), ("int16", INT16_SCHEMA), ("int64", INT64_SCHEMA), ("float32", FLOAT32_SCHEMA),
            ("float64", FLOAT64_SCHEMA), ("boolean", BOOLEAN_SCHEMA), ("bytes", BYTES_SCHEMA),
            ("string", STRING_SCHEMA), ("default", INT32_SCHEMA.replace(optional=True, default=7)),
            ("map", map_of(INT32_SCHEMA, STRING_SCHEMA)),
        ]
    )  # fmt: skip
    value = {
        "int8": 1, "int16": 2, "int64": 3, "float32": 0.5, "float64": 1.5, "boolean": True, "bytes": b"x",
        "string": "s", "default": 1, "map": {1: "a"},
    }  # fmt: skip
    put(server, [document(0, value, schema)], schema__ignore="false")
    text = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
    assert properties(server, "items") == {
        "int8": {"type": "byte"},
        "int16": {"type": "short"},
        "int64": {"type": "long"},
        "float32": {"type": "float"},
        "float64": {"type": "double"},
        "boolean": {"type": "boolean"},
        "bytes": {"type": "binary"},
        "string": text,
        "default": {"type": "integer", "null_value": 7},
        "map": {"properties": {"key": {"type": "integer"}, "value": text}},
    }
    assert server.documents("items")["items+0+0"] == value | {"bytes": "eA==", "map": [{"key": 1, "value": "a"}]}


def test_schema_change_adds_fields_to_the_mapping_but_changes_no_type(server: SearchServer) -> None:
    """The rule is in the README. A value with another type is stored if the server can convert it."""
    first = struct([("id", INT32_SCHEMA), ("name", STRING_SCHEMA)])
    second = struct([("id", INT64_SCHEMA), ("day", DATE_SCHEMA), ("note", STRING_SCHEMA)])
    third = struct([("id", STRING_SCHEMA)])
    records = [
        document(0, {"id": 0, "name": "x"}, first),
        document(1, {"id": 1, "day": dt.date(1970, 1, 2), "note": "y"}, second),
        document(2, {"id": "2"}, third),
        document(3, {"id": "three"}, third),
        document(4, {"id": 4, "name": "z"}, first),
    ]
    options = {"schema__ignore": "false", "behavior__on__malformed__documents": "WARN", "errors__tolerance": "all"}
    run = put(server, records, **options)
    types = {name: each["type"] for name, each in properties(server, "items").items()}
    assert types == {"id": "integer", "name": "text", "day": "long", "note": "text"}
    assert server.documents("items") == {
        "items+0+0": {"id": 0, "name": "x"},
        "items+0+1": {"id": 1, "day": 86400000, "note": "y"},
        "items+0+2": {"id": "2"},
        "items+0+4": {"id": 4, "name": "z"},
    }
    ((rejected, error),) = run.reported
    assert rejected.offset == 3
    field = "field id: the type of the value is string, and the type of the field in the index is integer"
    assert str(error).endswith(f"rejected record items-0 at offset 3: mapper_parsing_exception, status 400: {field}")
    assert run.committed == {("items", 0): 5}


MAPPING = {"n": {"type": "integer"}, "o": {"properties": {"p": {"type": "date"}}}, "k": {"type": "keyword"}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"n": "secret"},
            "field n: the type of the value is string, and the type of the field in the index is integer",
        ),
        (
            {"n": 3_000_000_000},
            "field n: the type of the value is int64, and the type of the field in the index is integer",
        ),
        (
            {"o": {"p": "x"}},
            "field o.p: the type of the value is string, and the type of the field in the index is date",
        ),
        ({"o": 5}, "field o: the type of the value is int64, and the type of the field in the index is object"),
        (
            {"k": "x" * 40_000},
            "field k: the type of the value is string, and the index stores at most 32766 bytes of it as one term",
        ),
        (
            {"z": 1.5},
            "field z: the type of the value is float64, and the index has no such field, and its mapping is strict",
        ),
    ],
)
def test_error_for_a_rejected_document_names_the_field_the_type_of_its_value_and_its_type_in_the_index(
    server: SearchServer, value: Any, text: str
) -> None:
    server.request("PUT", "/items", {"mappings": {"dynamic": "strict", "properties": MAPPING}})
    with pytest.raises(ConnectError, match=re.escape(f"status 400: {text} (behavior")) as caught:
        put_until_error(props_of(server), [document(0, value)])
    assert "secret" not in str(caught.value)


def test_error_for_a_rejected_document_contains_its_value_if_log_sensitive_data_is_true(server: SearchServer) -> None:
    server.request("PUT", "/items", {"mappings": {"properties": MAPPING}})
    with pytest.raises(
        ConnectError, match=r"Preview of field's value: 'secret'.*field n: the type of the value is str"
    ):
        put_until_error(props_of(server, log__sensitive__data="true"), [document(0, {"n": "secret"})])


# -- keys per topic


def test_keys_and_schemas_of_single_topics_are_ignored(server: SearchServer) -> None:
    """The configuration keys are topic.key.ignore and topic.schema.ignore."""
    schema = struct([("id", INT32_SCHEMA)])
    records = [
        document(0, {"id": 1}, schema, topic, key="k", key_schema=STRING_SCHEMA) for topic in ("ignored", "used")
    ]
    options = {"topic__key__ignore": "ignored,other", "topic__schema__ignore": "ignored,other"}
    put(server, records, key__ignore="false", schema__ignore="false", **options)
    assert list(server.documents("ignored")) == ["ignored+0+0"]
    assert list(server.documents("used")) == ["k"]
    assert properties(server, "ignored") == {"id": {"type": "long"}}
    assert properties(server, "used") == {"id": {"type": "integer"}}


def test_topics_that_a_transform_merges_are_written_to_one_index_and_offsets_of_both_topics_are_committed(
    server: SearchServer,
) -> None:
    records = [document(offset, {"from": topic}, topic=topic) for topic in ("shop-1", "shop-2") for offset in range(5)]
    options = {
        "transforms": "merge", "transforms__merge__type": "RegexRouter", "transforms__merge__regex": "shop-.*",
        "transforms__merge__replacement": "shop", "flush__synchronously": "true",
    }  # fmt: skip
    run = put(server, records, **options)
    assert server.indexes() == ["shop"]
    assert server.documents("shop") == {
        f"{topic}+0+{offset}": {"from": topic} for topic in ("shop-1", "shop-2") for offset in range(5)
    }
    assert run.committed == {("shop-1", 0): 5, ("shop-2", 0): 5}


# -- servers


def test_records_are_stored_if_one_of_several_servers_is_unreachable(server: SearchServer) -> None:
    records = [document(offset, {"id": offset}) for offset in range(20)]
    options = {"connection__url": f"http://127.0.0.1:1,{server.url}", "batch__size": "2", "retry__backoff__ms": "1"}
    assert put(server, records, **options).committed == {("items", 0): 20}
    assert len(server.documents("items")) == 20


# -- data streams and external resources


@pytest.fixture
def template(server: SearchServer) -> Iterator[None]:
    """Create an index template for the data streams of these tests, and delete the data streams at the end."""
    body = {"index_patterns": ["*-keys-*"], "data_stream": {}, "priority": 500}
    server.request("PUT", "/_index_template/keys", body)
    yield
    for each in server.request("GET", "/_data_stream")["data_streams"]:
        server.request("DELETE", f"/_data_stream/{each['name']}")
    server.request("DELETE", "/_index_template/keys")


@pytest.mark.usefixtures("template")
@pytest.mark.parametrize(
    ("type_", "namespace", "stream"),
    [("METRICS", "${topic}", "metrics-keys-items"), ("LOGS", "eu-${topic}", "logs-keys-eu-items")],
)
def test_name_of_the_data_stream_contains_type_dataset_and_namespace(
    server: SearchServer, type_: str, namespace: str, stream: str
) -> None:
    options = {"data__stream__type": type_, "data__stream__dataset": "keys", "data__stream__namespace": namespace}
    put(server, [document(0, {"id": 0})], **options)
    assert [each["name"] for each in server.request("GET", "/_data_stream")["data_streams"]] == [stream]
    assert list(server.documents(stream).values()) == [{"id": 0, "@timestamp": 1000}]


@pytest.mark.parametrize(("usage", "resource"), [("INDEX", "existing-1"), ("ALIAS_INDEX", "existing-alias")])
def test_records_are_written_to_an_existing_index_or_alias(server: SearchServer, usage: str, resource: str) -> None:
    server.request("PUT", "/existing-1", {"aliases": {"existing-alias": {"is_write_index": True}}})
    records = [document(offset, {"id": offset}, key="k", key_schema=STRING_SCHEMA) for offset in range(3)]
    options = {"external__resource__usage": usage, "topic__to__external__resource__mapping": f"items:{resource}"}
    run = put(server, records, key__ignore="false", schema__ignore="false", **options)
    assert server.documents("existing-1") == {"k": {"id": 2}}
    assert server.indexes() == ["existing-1"]
    assert run.committed == {("items", 0): 3}


@pytest.mark.usefixtures("template")
def test_records_are_written_to_an_existing_data_stream(server: SearchServer) -> None:
    server.request("PUT", "/_data_stream/logs-keys-existing")
    check_data_stream(server, "DATASTREAM", "logs-keys-existing")


@pytest.mark.prove
def test_records_are_written_to_an_alias_of_a_data_stream() -> None:
    """OpenSearch has no aliases of data streams."""
    with search_server.running(search_server.ELASTICSEARCH, flags=search_server.SHORT_RUN_FLAGS) as server:
        body = {"index_patterns": ["*-keys-*"], "data_stream": {}, "priority": 500}
        server.request("PUT", "/_index_template/keys", body)
        server.request("PUT", "/logs-keys-existing/_create/first", {"id": -1, "@timestamp": 0})
        add = {"index": "logs-keys-existing", "alias": "keys-alias", "is_write_index": True}
        server.request("POST", "/_aliases", {"actions": [{"add": add}]})
        check_data_stream(server, "ALIAS_DATASTREAM", "keys-alias", {"first": {"id": -1, "@timestamp": 0}})


def check_data_stream(server: SearchServer, usage: str, resource: str, before: Mapping[str, Any] = {}) -> None:
    """Check that the sink adds records to an existing data stream that contains the documents `before`."""
    records = [document(offset, {"id": offset}) for offset in range(3)]
    options = {"external__resource__usage": usage, "topic__to__external__resource__mapping": f"items:{resource}"}
    run = put(server, records, **options)
    expected = {f"items+0+{offset}": {"id": offset, "@timestamp": 1000 + offset} for offset in range(3)}
    assert server.documents("logs-keys-existing") == {**before, **expected}
    assert run.committed == {("items", 0): 3}


def test_record_of_a_topic_that_is_missing_in_the_mapping_of_external_resources_is_an_error(
    server: SearchServer,
) -> None:
    server.request("PUT", "/existing-1")
    options = {"external__resource__usage": "INDEX", "topic__to__external__resource__mapping": "items:existing-1"}
    run = put(server, [document(0, {"id": 0}), document(0, {}, topic="other")], errors__tolerance="all", **options)
    ((record, error),) = run.reported
    assert (record.topic, str(error)) == ("other", "Topic other is missing in topic.to.external.resource.mapping")
    assert list(server.documents("existing-1")) == ["items+0+0"]
