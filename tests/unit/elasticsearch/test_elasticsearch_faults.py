"""Tests of the Elasticsearch sink with a server that rejects requests or documents, or closes connections."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.api.config import config_def
from headrace.api.errors import ConnectError
from headrace.data.batch import SinkBatch
from headrace.data.json_texts import JsonTexts
from headrace.data.records import SinkRecord
from headrace.testing import Restart, run_sink
from headrace_connectors.elasticsearch import sink
from headrace_connectors.elasticsearch.config import ElasticsearchSinkConfig
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support.elasticsearch_task import put_batches_until_error, put_until_error


class ScriptedServer(ThreadingHTTPServer):
    """A fake Elasticsearch server that stores the documents of bulk requests.

    Each bulk request removes the first fault from `faults` and applies it. A fault is one of:
    the HTTP status of the response, "cut" to close the connection, "slow" to respond after 0.3 s, or a dict of statuses
    by document id.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: list[Any] = []
        self.documents: dict[str, Any] = {}
        self.bulks: list[list[str]] = []
        self.status = 200
        self.content_type = "application/json"
        self.authorization: str | None = None
        self.max_documents = 1000000

    def apply(self, body: bytes) -> tuple[int, Any] | None:
        """Apply a bulk request and return the status and the body of the response, or None to close the connection."""
        fault = self.faults.pop(0) if self.faults else {}
        if fault == "slow":
            time.sleep(0.3)
            fault = {}
        texts = [json.loads(line) for line in body.splitlines()]
        items = []
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        if len(pairs) > self.max_documents:
            return 413, {}
        self.bulks.append([target["_id"] for action, _ in pairs for target in action.values()])
        if isinstance(fault, int):
            return fault, {"error": {"type": "scripted", "reason": "fault"}}
        for action, document in pairs:
            [(name, target)] = action.items()
            id_ = target["_id"]
            if fault != "cut" and id_ in fault:
                type_ = "mapper_parsing_exception" if fault[id_] == 400 else "es_rejected_execution_exception"
                error = {"type": type_, "reason": "full"}
                items.append({name: {"status": fault[id_], "error": error}})
            elif name == "create" and id_ in self.documents:
                reason = f"[{id_}]: version conflict, document already exists (current version [1])"
                error = {"type": "version_conflict_engine_exception", "reason": reason}
                items.append({name: {"status": 409, "error": error}})
            else:
                self.documents[id_] = document
                items.append({name: {"status": 201}})
        return None if fault == "cut" else (200, {"errors": True, "items": items})


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.authorization = self.headers.get("authorization")
        result: tuple[int, Any] | None = (self.server.status, {})
        if self.path.startswith("/_bulk"):
            assert self.headers["content-type"] == "application/x-ndjson"
            result = self.server.apply(body)
        if result is None:
            self.close_connection = True
            return
        data = b"" if self.command == "HEAD" else json.dumps(result[1]).encode()
        self.send_response(result[0])
        self.send_header("content-type", self.server.content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = _respond

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def settings_of(server: ScriptedServer, **props: str) -> dict[str, str]:
    settings = {"connection.url": server.url, "schema.ignore": "true", "retry.backoff.ms": "1",
                "read.timeout.ms": "60000"}  # fmt: skip
    return settings | {key.replace("__", "."): value for key, value in props.items()}


def four_records() -> list[SinkRecord]:
    return [
        SinkRecord(topic="t", partition=0, offset=at, key=f"k{at}", value={"n": at}, timestamp=at) for at in range(4)
    ]


def put(server: ScriptedServer, **props: str) -> Any:
    return run_sink(ElasticsearchSinkConnector, settings_of(server, **props), four_records())


@pytest.mark.parametrize("fault", [429, 503, 502, "cut", {"k1": 429, "k2": 503}])
def test_bulk_requests_are_retried_after_temporary_failures_until_all_documents_are_stored(
    server: ScriptedServer, fault: Any
) -> None:
    server.faults = [fault, fault]
    run = put(server)
    assert server.documents == {f"k{at}": {"n": at} for at in range(4)}
    assert run.committed == {("t", 0): 4}


@pytest.mark.parametrize("tolerance", ["none", "all"])
def test_record_that_cannot_become_a_document_is_skipped_if_drop_invalid_message_is_true(
    server: ScriptedServer, tolerance: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With errors.tolerance=none, the errant record reporter would fail the task."""
    records = [record.replace(value="text") if at == 1 else record for at, record in enumerate(four_records())]
    settings = settings_of(server, drop__invalid__message="true", errors__tolerance=tolerance)
    run = run_sink(ElasticsearchSinkConnector, settings, records)
    assert sorted(server.documents) == ["k0", "k2", "k3"]
    assert run.committed == {("t", 0): 4}
    assert [record.offset for record, _ in run.reported] == ([1] if tolerance == "all" else [])
    assert "Skipping record t-0 at offset 1 (drop.invalid.message=true): The value has the type str" in caplog.text


def test_retry_of_a_bulk_request_sends_only_the_rejected_documents(server: ScriptedServer) -> None:
    server.faults = [{"k1": 429}]
    put(server)
    assert server.bulks == [["k0", "k1", "k2", "k3"], ["k1"]]


def test_task_that_pauses_its_partitions_because_the_server_is_slow_resumes_them_and_writes_all_records(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_BACK_PRESSURE_S", 0.01)
    server.faults = ["slow"]
    records = [
        SinkRecord(topic="t", partition=partition, offset=at, key=f"k{at}-{partition}", value={"n": at}, timestamp=at)
        for at in range(6)
        for partition in range(2)
    ]
    settings = settings_of(server, max__buffered__records="1")
    run = run_sink(ElasticsearchSinkConnector, settings, records, max_poll_records=2)
    assert len(server.documents) == 12
    assert run.committed == {("t", 0): 6, ("t", 1): 6}


DATA_STREAM = {"data__stream__type": "LOGS", "data__stream__dataset": "shop"}


def test_record_is_logged_and_reported_if_its_key_is_already_the_id_of_a_document_in_the_data_stream(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    records = [record.replace(key=key) for record, key in zip(four_records(), "aaba", strict=True)]
    run = run_sink(ElasticsearchSinkConnector, settings_of(server, errors__tolerance="all", **DATA_STREAM), records)
    assert {id_: document["n"] for id_, document in server.documents.items()} == {"a": 0, "b": 2}
    assert [record.offset for record, _ in run.reported] == [1, 3]
    assert "document already exists" in str(run.reported[0][1])
    assert run.committed == {("t", 0): 4}
    messages = [each.getMessage() for each in caplog.records if "is not stored" in each.getMessage()]
    assert len(messages) == 1
    assert messages[0].startswith("Record t-0 at offset 1 is not stored, because the data stream contains a document")


def test_second_write_of_a_record_to_a_data_stream_is_no_error_if_the_document_id_is_topic_partition_and_offset(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The server reports a version conflict. The existing document must be the record itself, so nothing is lost."""
    server.faults = ["cut"]
    options = {"errors__tolerance": "all", "key__ignore": "true"} | DATA_STREAM
    run = run_sink(ElasticsearchSinkConnector, settings_of(server, **options), four_records(), faults=[Restart(1)])
    assert sorted(server.documents) == [f"t+0+{at}" for at in range(4)]
    assert run.reported == []
    assert not [each for each in caplog.records if "is not stored" in each.getMessage()]


def test_sink_decodes_json_text_that_the_server_rejects_and_sends_it_once_more(server: ScriptedServer) -> None:
    """The sink first sends the JSON text of a record's value without decoding it."""
    texts = JsonTexts([b'{"a":1}', b'{"a":1,"a":2}', b'{"a":3}'])
    batch = SinkBatch("t", texts, partition=0, offsets=range(3), keys=["k0", "k1", "k2"])
    server.faults = [{"k1": 400}]
    put_batches_until_error(settings_of(server, max__retries="0"), [batch])
    assert server.bulks == [["k0", "k1", "k2"], ["k1"]]
    assert server.documents == {"k0": {"a": 1}, "k1": {"a": 2}, "k2": {"a": 3}}
    server.faults = [{"k1": 400}] * 2
    with pytest.raises(ConnectError, match=r"rejected record t-0 at offset 1: mapper_parsing_exception"):
        put_batches_until_error(settings_of(server, max__retries="0"), [batch])


def test_task_fails_after_max_retries_with_an_error_that_names_record_and_cause(server: ScriptedServer) -> None:
    server.faults = [{"k1": 429}] * 3
    with pytest.raises(
        ConnectError, match=r"t-0 at offset 1: es_rejected.* giving up after 3 attempts \(max\.retries\)"
    ):
        put_until_error(settings_of(server, max__retries="2"), four_records())
    assert sorted(server.documents) == ["k0", "k2", "k3"]


def test_failure_of_a_whole_request_is_logged_once_and_is_not_reported_as_a_rejection_of_records(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = ["cut", "cut"]
    text = f"Could not write 4 records (the first is record t-0 at offset 0): Elasticsearch at {server.url} is not "
    with pytest.raises(ConnectError, match=re.escape(text)) as caught:
        put_until_error(settings_of(server, max__retries="1"), four_records())
    assert str(caught.value).count(server.url) == 1
    assert "rejected" not in str(caught.value)
    assert [text in each for each in caplog.messages] == [True]
    server.faults = [{"k1": 429}]
    put(server)
    assert f"Elasticsearch at {server.url} rejected 1 records, the first is record t-0 at offset 1" in caplog.text
    assert [each.name for each in caplog.records if each.name.startswith("elastic_transport")] == []


def test_bulk_request_that_the_server_rejects_as_too_large_is_split(server: ScriptedServer) -> None:
    server.max_documents = 1
    put(server, max__in__flight__requests="1")
    assert sorted(server.documents) == ["k0", "k1", "k2", "k3"]


def test_configured_api_key_or_password_is_sent_in_the_authorization_header(server: ScriptedServer) -> None:
    put(server, connection__api__key="secret")
    assert server.authorization == "ApiKey secret"
    put(server, connection__username="u", connection__password="p")
    assert server.authorization == "Basic dTpw"


@pytest.mark.parametrize("side", ["truststore", "keystore"])
@pytest.mark.parametrize("start", [b"\xfe\xed\xfe\xed\x00\x02", b"\x30\x82\x04\x00"])
def test_error_for_a_java_key_store_says_how_to_export_it(tmp_path: Path, side: str, start: bytes) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(start)
    settings = {"connection.url": "https://127.0.0.1:1", f"elastic.https.ssl.{side}.location": str(store)}
    values = config_def(ElasticsearchSinkConfig).validate(settings)
    ElasticsearchSinkConnector().validate(settings, values)
    [error] = values[f"elastic.https.ssl.{side}.location"].errors
    assert f"elastic.https.ssl.{side}.location: {store} is a Java key store" in error
    assert "openssl pkcs12" in error


def test_validation_reports_a_missing_trust_store_file_as_an_error_of_the_trust_store_location_key() -> None:
    settings = {"connection.url": "https://127.0.0.1:1", "elastic.https.ssl.truststore.location": "/nonexistent.pem"}
    values = config_def(ElasticsearchSinkConfig).validate(settings)
    ElasticsearchSinkConnector().validate(settings, values)
    assert {key: value.errors for key, value in values.items() if value.errors} == {
        "elastic.https.ssl.truststore.location": [
            "elastic.https.ssl.truststore.location: cannot read /nonexistent.pem: No such file or directory"
        ]
    }


@pytest.mark.parametrize(
    ("status", "content_type"), [(200, "application/xml"), (200, "text/html"), (403, "text/html"), (404, "text/plain")]
)
def test_validation_reports_a_server_that_does_not_respond_with_json(
    server: ScriptedServer, status: int, content_type: str
) -> None:
    server.status, server.content_type = status, content_type
    settings = {"connection.url": server.url}
    values = config_def(ElasticsearchSinkConfig).validate(settings)
    ElasticsearchSinkConnector().validate(settings, values)
    [error] = values["connection.url"].errors
    assert "responded to GET / with data that is not JSON" in error


@pytest.mark.parametrize("urls", ["http://127.0.0.1:1,{}", "{},http://127.0.0.1:1"])
def test_validation_succeeds_if_at_least_one_of_several_servers_is_reachable(server: ScriptedServer, urls: str) -> None:
    settings = {"connection.url": urls.format(server.url)}
    for _ in range(2):
        values = config_def(ElasticsearchSinkConfig).validate(settings)
        ElasticsearchSinkConnector().validate(settings, values)
        assert {key: value.errors for key, value in values.items() if value.errors} == {}


@pytest.mark.parametrize(("status", "keys"), [(401, ["connection.username"]), (403, [])])
def test_validation_reports_refused_credentials_but_accepts_a_user_without_the_monitor_privilege(
    server: ScriptedServer, status: int, keys: list[str]
) -> None:
    server.status = status
    settings = {"connection.url": server.url, "connection.username": "u", "connection.password": "p"}
    values = config_def(ElasticsearchSinkConfig).validate(settings)
    ElasticsearchSinkConnector().validate(settings, values)
    assert [key for key, value in values.items() if value.errors] == keys
