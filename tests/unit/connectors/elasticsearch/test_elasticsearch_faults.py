"""Tests of the Elasticsearch sink with a server that rejects requests or documents, or closes connections."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.batch import SinkBatch
from headrace.data.json_texts import JsonTexts
from headrace.data.records import SinkRecord
from headrace.testing import Restart, run_sink
from headrace_connectors.elasticsearch import sink
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support.elasticsearch_task import put_batches_until_error, put_until_error, validation_errors
from support.scripted_search_server import ScriptedServer, four_records, running_scripted_server, settings_of


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running_scripted_server() as running:
        yield running


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
def test_error_for_a_corrupt_java_key_store_names_the_key_and_the_file(tmp_path: Path, side: str, start: bytes) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(start)
    settings = {"connection.url": "https://127.0.0.1:1", f"elastic.https.ssl.{side}.location": str(store)}
    errors = validation_errors(settings)
    [error] = errors[f"elastic.https.ssl.{side}.location"]
    assert error.startswith(f"elastic.https.ssl.{side}.location: {store}: the ")
    assert "corrupt" in error or "not a key store" in error


def test_validation_reports_a_missing_trust_store_file_as_an_error_of_the_trust_store_location_key() -> None:
    settings = {"connection.url": "https://127.0.0.1:1", "elastic.https.ssl.truststore.location": "/nonexistent.pem"}
    errors = validation_errors(settings)
    assert errors == {
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
    errors = validation_errors(settings)
    [error] = errors["connection.url"]
    assert "responded to GET / with data that is not JSON" in error


@pytest.mark.parametrize("urls", ["http://127.0.0.1:1,{}", "{},http://127.0.0.1:1"])
def test_validation_succeeds_if_at_least_one_of_several_servers_is_reachable(server: ScriptedServer, urls: str) -> None:
    settings = {"connection.url": urls.format(server.url)}
    for _ in range(2):
        errors = validation_errors(settings)
        assert errors == {}


@pytest.mark.parametrize(("status", "keys"), [(401, ["connection.username"]), (403, [])])
def test_validation_reports_refused_credentials_but_accepts_a_user_without_the_monitor_privilege(
    server: ScriptedServer, status: int, keys: list[str]
) -> None:
    server.status = status
    settings = {"connection.url": server.url, "connection.username": "u", "connection.password": "p"}
    errors = validation_errors(settings)
    assert list(errors) == keys
