"""Tests of configuration keys of the Elasticsearch sink with a real OpenSearch 2 server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.data.schema import (
    INT32_SCHEMA,
    STRING_SCHEMA,
    struct,
)
from support import http_proxy, search_server
from support.elasticsearch_sink import document, properties, put
from support.elasticsearch_task import validation_errors
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


# -- proxy


@pytest.mark.skipif(http_proxy.unavailable_reason() is not None, reason=str(http_proxy.unavailable_reason()))
def test_requests_are_sent_through_a_proxy_that_requires_a_password(server: SearchServer, tmp_path: Path) -> None:
    with http_proxy.running(tmp_path) as proxy:
        settings = {"connection.url": server.url} | proxy.settings()
        assert validation_errors(settings) == {}
        put(server, [document(0, {"id": 1}, topic="items")], **proxy.settings())
        assert proxy.requests("POST") == 1
        ((key, errors),) = validation_errors({"connection.url": server.url} | proxy.address()).items()
    assert list(server.documents("items").values()) == [{"id": 1}]
    assert key == "connection.url"
    assert "status 407" in errors[0]
    assert "check proxy.username and proxy.password" in errors[0]
    (unreachable,) = validation_errors(settings)["connection.url"]
    assert f"Elasticsearch at {server.url} (proxy 127.0.0.1:{proxy.port}) is not reachable" in unreachable
