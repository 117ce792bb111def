"""Tests of the number, size, order and time limits of the Elasticsearch sink's requests."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from headrace.api.errors import ConnectError
from headrace.data.sink_records import SinkRecords
from headrace.testing import run_sink
from headrace_connectors.elasticsearch import sink
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support.elasticsearch_task import batches_of, put_until_error, running_task
from support.scripted_search_server import ScriptedServer, four_records, running_scripted_server, settings_of


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running_scripted_server() as running:
        yield running


def put(server: ScriptedServer, **props: str) -> None:
    run_sink(ElasticsearchSinkConnector, settings_of(server, linger__ms="1000", **props), four_records())


@pytest.mark.parametrize(
    ("props", "sizes"),
    [
        ({}, [4]),
        ({"batch__size": "3"}, [1, 3]),
        # The action and document of each record have 87 bytes.
        ({"bulk__size__bytes": "200"}, [2, 2]),
        ({"bulk__size__bytes": "1"}, [1, 1, 1, 1]),
        ({"bulk__size__bytes": "-1"}, [4]),
    ],
)
def test_bulk_request_has_at_most_the_configured_number_of_documents_and_bytes(
    server: ScriptedServer, props: dict[str, str], sizes: list[int]
) -> None:
    """A document that has more than bulk.size.bytes is sent alone."""
    put(server, **props)
    assert sorted(map(len, server.bulks)) == sizes
    assert sorted(server.documents) == ["k0", "k1", "k2", "k3"]


@pytest.mark.parametrize(("value", "is_compressed"), [("true", True), ("false", False)])
def test_requests_are_compressed_if_connection_compression_is_true(
    server: ScriptedServer, value: str, is_compressed: bool
) -> None:
    put(server, connection__compression=value)
    assert (server.compressed_count > 0) == is_compressed
    assert len(server.documents) == 4


def test_as_many_bulk_requests_as_configured_are_in_flight(server: ScriptedServer) -> None:
    server.barrier = threading.Barrier(4)
    put(server, max__in__flight__requests="4", batch__size="1", max__retries="0")
    assert len(server.documents) == 4


def test_upserts_of_the_same_document_are_sent_one_after_the_other(server: ScriptedServer) -> None:
    """The first request is slow, so the second would overtake it."""
    server.faults = ["slow"]
    records = [record.replace(key="k") for record in four_records()]
    settings = settings_of(server, write__method="UPSERT", batch__size="1")
    run_sink(ElasticsearchSinkConnector, settings, records)
    assert server.documents["k"]["doc"] == {"n": 3}


def test_request_that_exceeds_the_read_timeout_is_retried(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = ["slow"]
    put(server, read__timeout__ms="100")
    assert len(server.documents) == 4
    problem = f"Elasticsearch at {server.url} has not responded after 100 ms (read.timeout.ms)"
    assert f"(the first is record t-0 at offset 0): {problem}; retrying in" in caplog.text
    server.faults = ["slow", "slow"]
    with pytest.raises(ConnectError, match=re.escape(f"{problem}; giving up after 2 attempts (max.retries)")):
        put_until_error(settings_of(server, read__timeout__ms="100", max__retries="1"), four_records())


def test_connection_that_exceeds_the_connection_timeout_fails() -> None:
    """The listener's queue of connections is full, so Linux does not respond to a new connection."""
    assert seconds_until_connection_fails("50") < seconds_until_connection_fails("3000")


def seconds_until_connection_fails(timeout_ms: str) -> float:
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for other in (first, second):
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        settings = {
            "connection.url": f"http://127.0.0.1:{listener.getsockname()[1]}", "connection.timeout.ms": timeout_ms,
            "max.retries": "0", "schema.ignore": "true",
        }  # fmt: skip
        message = rf"no connection after {timeout_ms} ms \(connection\.timeout\.ms\)"
        with running_task(settings) as task:
            started_s = time.monotonic()
            with pytest.raises(ConnectError, match=message):
                task.put(SinkRecords(batches_of(four_records())))
            return time.monotonic() - started_s


@pytest.mark.parametrize(("value", "offset"), [("true", 4), ("false", 0)])
def test_offset_commit_waits_for_all_requests_if_flush_synchronously_is_true(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, value: str, offset: int
) -> None:
    monkeypatch.setattr(sink, "_FLUSH_S", 0.01)
    server.faults = ["slow"]
    with running_task(settings_of(server, flush__synchronously=value)) as task:
        task.put(SinkRecords(batches_of(four_records())))
        assert task.pre_commit({("t", 0): 4}) == {("t", 0): offset}


def test_offset_commit_fails_after_flush_timeout_ms(server: ScriptedServer) -> None:
    server.faults = ["slow"]
    settings = settings_of(server, flush__synchronously="true", flush__timeout__ms="10")
    with running_task(settings) as task:
        task.put(SinkRecords(batches_of(four_records())))
        expected = f"Elasticsearch at {server.url}: 4 records are not stored after 10 ms (flush.timeout.ms)"
        with pytest.raises(ConnectError, match=re.escape(expected)):
            task.pre_commit({("t", 0): 4})


@pytest.mark.parametrize(("behavior", "is_logged"), [("IGNORE", False), ("WARN", True)])
def test_rejected_document_is_skipped_with_or_without_a_warning(
    server: ScriptedServer, behavior: str, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server.faults = [{"k1": 400}]
    put(server, behavior__on__malformed__documents=behavior)
    assert sorted(server.documents) == ["k0", "k2", "k3"]
    assert ("t-0 at offset 1" in caplog.text) == is_logged
