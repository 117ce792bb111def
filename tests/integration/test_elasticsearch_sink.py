"""Tests of the Elasticsearch sink with a real OpenSearch 2 server.

Tests with the mark `prove` use an Elasticsearch 8 server.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.batch import SinkBatch
from headrace.data.json_texts import JsonTexts
from headrace.data.logical import DATE_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.records import SinkRecord
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, map_of, struct
from headrace.data.struct import Struct
from headrace.testing import Restart, run_sink
from headrace.testing.conformance import SinkConformance
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support import search_server
from support.elasticsearch_task import put_batches_until_error, put_until_error, validation_errors
from support.search_server import SearchServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]
ROW = struct([("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(search_server.OPENSEARCH, id="opensearch"),
        pytest.param(search_server.ELASTICSEARCH, id="elasticsearch", marks=pytest.mark.prove),
    ],
)
def running_server(request: pytest.FixtureRequest) -> Iterator[SearchServer]:
    with search_server.running(request.param, flags=search_server.SHORT_RUN_FLAGS) as server:
        yield server


@pytest.fixture
def server(running_server: SearchServer) -> SearchServer:
    running_server.clear()
    return running_server


def row(offset: int, **more: Any) -> SinkRecord:
    value = Struct(ROW, {"id": offset, "name": f"n{offset}"})
    fields = {"topic": "items", "timestamp": offset, "value": value, "value_schema": ROW} | more
    return SinkRecord(partition=0, offset=offset, **fields)


def keyed(offset: int, key: str, **more: Any) -> SinkRecord:
    return row(offset, key=key, key_schema=STRING_SCHEMA, **more)


def put(server: SearchServer, records: Sequence[SinkRecord], *faults: Any, **props: str) -> Any:
    settings = {"connection.url": server.url, "read.timeout.ms": "60000"}
    settings |= {key.replace("__", "."): value for key, value in props.items()}
    return run_sink(ElasticsearchSinkConnector, settings, records, faults=faults)


class TestElasticsearchSink(SinkConformance):
    plugin = ElasticsearchSinkConnector
    is_exactly_once = True
    poison = "not an object"
    _server: SearchServer

    @pytest.fixture(autouse=True)
    def _set_server(self, server: SearchServer) -> None:
        type(self)._server = server

    def config(self) -> dict[str, str]:
        return {"connection.url": self._server.url, "key.ignore": "true", "schema.ignore": "true",
                "read.timeout.ms": "60000"}  # fmt: skip

    def values(self) -> Sequence[Any]:
        return [{"number": number} for number in range(8)]

    def stored(self) -> list[Any]:
        return [item for index in self._server.indexes() for item in self._server.documents(index).items()]


def test_documents_have_the_record_position_as_id_if_keys_are_ignored(server: SearchServer) -> None:
    run = put(server, [row(offset) for offset in range(5)], key__ignore="true")
    assert server.documents("items") == {f"items+0+{at}": {"id": at, "name": f"n{at}"} for at in range(5)}
    assert run.committed == {("items", 0): 5}


def test_later_record_replaces_the_document_with_the_same_key(server: SearchServer) -> None:
    records = [keyed(offset, f"k{offset % 3}") for offset in range(30)]
    put(server, records, Restart(1), batch__size="2")
    assert {key: each["id"] for key, each in server.documents("items").items()} == {"k0": 27, "k1": 28, "k2": 29}


def test_sink_logs_once_per_partition_if_it_skips_old_records(
    server: SearchServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The sink skips a record if the index contains a newer version of the record's document."""
    put(server, [keyed(100, "a"), keyed(101, "b")])
    caplog.clear()
    put(server, [keyed(0, "a"), keyed(1, "b"), keyed(2, "c")])  # the topic was recreated
    assert {key: each["id"] for key, each in server.documents("items").items()} == {"a": 100, "b": 101, "c": 2}
    messages = [each.getMessage() for each in caplog.records if "newer version of its document" in each.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith("Record items-0 at offset 0 is not stored")


def test_topics_that_share_an_index_are_logged_if_record_keys_are_the_document_ids(
    server: SearchServer, caplog: pytest.LogCaptureFixture
) -> None:
    put(server, [keyed(0, "a"), keyed(0, "b", topic="ITEMS")])
    assert "The topics items and ITEMS are written to the index items" in caplog.text


def test_tombstones_fail_the_task_by_default_and_delete_documents_if_behavior_on_null_values_is_delete(
    server: SearchServer,
) -> None:
    records = [keyed(0, "a"), keyed(1, "b"), keyed(2, "a", value=None, value_schema=None)]
    put(server, records, behavior__on__null__values="DELETE")
    assert list(server.documents("items")) == ["b"]
    with pytest.raises(ConnectError, match=r"behavior\.on\.null\.values=FAIL"):
        put(server, records)


def test_upsert_keeps_the_document_fields_that_are_missing_in_the_record(server: SearchServer) -> None:
    name_only = struct([("name", STRING_SCHEMA)])
    records = [keyed(0, "a"), keyed(1, "a", value=Struct(name_only, {"name": "new"}), value_schema=name_only)]
    put(server, records, write__method="UPSERT")
    assert server.documents("items") == {"a": {"id": 0, "name": "new"}}


def test_index_mapping_is_created_from_the_record_schema(server: SearchServer) -> None:
    schema = struct([("id", INT32_SCHEMA), ("name", STRING_SCHEMA), ("price", decimal_schema(2)),
                     ("day", DATE_SCHEMA), ("at", TIMESTAMP_SCHEMA), ("tags", map_of(STRING_SCHEMA, INT32_SCHEMA))]
                    )  # fmt: skip
    value = Struct(schema, {"id": 1, "name": "x", "price": Decimal("1.50"), "day": dt.date(2026, 1, 2),
                            "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC), "tags": {"a": 1}})  # fmt: skip
    put(server, [row(0, value=value, value_schema=schema)], key__ignore="true")
    properties = server.request("GET", "/items/_mapping")["items"]["mappings"]["properties"]
    types = {name: each.get("type") for name, each in properties.items()}
    assert types == {"id": "integer", "name": "text", "price": "double", "day": "date", "at": "date", "tags": None}
    millis = 1767312000000
    (document,) = server.documents("items").values()
    assert document == {"id": 1, "name": "x", "price": 1.5, "day": millis, "at": millis, "tags": {"a": 1}}


def test_malformed_document_fails_the_task_by_default_and_is_reported_if_behavior_on_malformed_documents_is_warn(
    server: SearchServer,
) -> None:
    server.request("PUT", "/items", {"mappings": {"properties": {"id": {"type": "date"}, "n": {"type": "integer"}}}})
    records = [row(at, value={"n": "text" if at == 1 else at}, value_schema=None) for at in range(3)]
    options = {"key__ignore": "true", "schema__ignore": "true"}
    run = put(server, records, behavior__on__malformed__documents="WARN", errors__tolerance="all", **options)
    assert [record.offset for record, _ in run.reported] == [1]
    assert sorted(server.documents("items")) == ["items+0+0", "items+0+2"]
    assert run.committed == {("items", 0): 3}
    with pytest.raises(ConnectError, match=r"rejected record items-0 at offset 1: (mapper|document)_parsing_exception"):
        put_until_error(
            {"connection.url": server.url, "key.ignore": "true", "schema.ignore": "true", "read.timeout.ms": "60000"},
            records,
        )


def test_data_stream_receives_each_record_once_although_the_task_restarts(server: SearchServer) -> None:
    template = {"index_patterns": ["logs-shop-*"], "data_stream": {}, "priority": 500}
    server.request("PUT", "/_index_template/shop", template)
    try:
        records = [row(offset, timestamp=1000 + offset) for offset in range(6)]
        options = {"data__stream__type": "LOGS", "data__stream__dataset": "shop", "key__ignore": "true"}
        put(server, records, Restart(1), **options)
        found = server.documents("logs-shop-items")
        assert sorted((each["id"], each["@timestamp"]) for each in found.values()) == [
            (at, 1000 + at) for at in range(6)
        ]
    finally:
        server.delete_data_stream("logs-shop-items", "shop")


def test_sink_writes_only_the_first_record_of_each_key_to_a_data_stream_and_reports_later_records_of_the_key(
    server: SearchServer,
) -> None:
    template = {"index_patterns": ["logs-keyed-*"], "data_stream": {}, "priority": 500}
    server.request("PUT", "/_index_template/keyed", template)
    try:
        records = [keyed(offset, key) for offset, key in enumerate("aaba")]
        options = {"data__stream__type": "LOGS", "data__stream__dataset": "keyed", "errors__tolerance": "all"}
        run = put(server, records, **options)
        assert {key: each["id"] for key, each in server.documents("logs-keyed-items").items()} == {"a": 0, "b": 2}
        assert {record.offset for record, _ in run.reported} >= {1, 3}
    finally:
        server.delete_data_stream("logs-keyed-items", "keyed")


@pytest.mark.parametrize("method", ["INSERT", "UPSERT"])
def test_json_text_with_a_repeated_key_becomes_a_document_with_the_last_value(
    server: SearchServer, method: str
) -> None:
    repeated = b'{"id":1,"a":1,"b":{"c":1,"c":2},"a":2}'
    texts = [b'{"id":0}', repeated, b'{"id":2,"a":3}', b'{"id":3,"a":{"not":"a number"}}']
    keys = ["k0", "k1", "k1" if method == "UPSERT" else "k2", "k3"]
    batch = SinkBatch("items", JsonTexts(texts), partition=0, offsets=range(4), keys=keys)
    settings = {"connection.url": server.url, "schema.ignore": "true", "read.timeout.ms": "60000",
                "write.method": method, "max.retries": "0", "batch.size": "4", "linger.ms": "1000"}  # fmt: skip
    put_batches_until_error(settings, [batch.take([0, 1, 2])])
    found = server.documents("items")
    if method == "UPSERT":
        assert found == {"k0": {"id": 0}, "k1": {"id": 2, "a": 3, "b": {"c": 2}}}
    else:
        assert found == {"k0": {"id": 0}, "k1": {"id": 1, "a": 2, "b": {"c": 2}}, "k2": {"id": 2, "a": 3}}
    with pytest.raises(ConnectError, match=r"rejected record items-0 at offset 3: (mapper|document)_parsing_exception"):
        put_batches_until_error(settings, [batch.take([3])])


def test_special_characters_are_allowed_in_record_keys_but_not_in_topic_names(
    server: SearchServer,
) -> None:
    """A record key becomes a document id, and a topic name becomes an index name."""
    key = '"}}\n{"delete":{"_index":"items","_id":"x"}}\n'
    put(server, [keyed(0, key), keyed(1, "../_all")])
    assert sorted(server.documents("items")) == sorted([key, "../_all"])
    with pytest.raises(ConnectError, match="is not a valid name"):
        put(server, [keyed(0, "a", topic="items/_doc?x")])


def test_write_to_a_closed_index_fails_the_task_and_all_records_are_stored_after_the_index_is_opened(
    server: SearchServer,
) -> None:
    records = [row(offset, topic="ITEMS") for offset in range(5)]
    settings = {"connection.url": server.url, "key.ignore": "true", "read.timeout.ms": "60000"}
    put(server, records[:2], key__ignore="true")
    server.request("POST", "/items/_close")
    error = r"index_closed_exception, status 400, index items: closed"
    with pytest.raises(ConnectError, match=rf"{server.url}.*record ITEMS-0 at offset 2: {error}"):
        put_until_error(settings, records[2:])
    server.request("POST", "/items/_open")
    put(server, records[2:], key__ignore="true")
    assert sorted(each["id"] for each in server.documents("items").values()) == list(range(5))


def test_validation_reports_an_unreachable_server(server: SearchServer) -> None:
    """The error belongs to the configuration key `connection.url`."""

    def errors(url: str) -> dict[str, list[str]]:
        settings = {"connection.url": url, "name": "x"}
        return validation_errors(settings)

    assert errors(server.url) == {}
    found = errors("http://127.0.0.1:1")
    assert list(found) == ["connection.url"]
    assert "is not reachable" in found["connection.url"][0]


def test_validation_reports_external_resources_that_do_not_exist(server: SearchServer) -> None:
    put(server, [row(0)], key__ignore="true")
    settings = {
        "connection.url": server.url, "read.timeout.ms": "60000", "external.resource.usage": "INDEX",
        "topic.to.external.resource.mapping": "a:items,b:nothing",
    }  # fmt: skip
    errors = validation_errors(settings)
    assert errors == {"topic.to.external.resource.mapping": ["The index, data stream or alias nothing does not exist"]}
