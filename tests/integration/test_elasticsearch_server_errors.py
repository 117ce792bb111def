"""Tests that the Elasticsearch sink loses no records if a real server rejects documents or connections are closed.

The server has one thread for writes, and a queue for one request. It rejects all further requests and documents with
status 429.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.api.task import SinkTask
from headrace.data.records import SinkRecord
from headrace.data.sink_records import SinkRecords
from support import search_server
from support.bulk_proxy import running_bulk_proxy
from support.elasticsearch_task import batches_of, put_until_error, running_task
from support.search_server import SearchServer
from support.worker import Worker, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]
PARTITIONS, KEYS, ROUNDS = 3, 200, 10


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(search_server.OPENSEARCH, id="opensearch"),
        pytest.param(search_server.ELASTICSEARCH, id="elasticsearch", marks=pytest.mark.prove),
    ],
)
def running_server(request: pytest.FixtureRequest) -> Iterator[SearchServer]:
    limits = {"thread_pool__write__size": "1", "thread_pool__write__queue_size": "1"}
    with search_server.running(request.param, flags=search_server.SHORT_RUN_FLAGS, **limits) as server:
        yield server


@pytest.fixture
def server(running_server: SearchServer) -> SearchServer:
    running_server.clear()
    return running_server


def settings_of(url: str, **props: str) -> dict[str, str]:
    """Return the configuration of a sink. `__` in a name stands for a dot."""
    settings = {
        "connection.url": url, "schema.ignore": "true", "read.timeout.ms": "60000", "max.retries": "1000",
        "retry.backoff.ms": "1",
    }  # fmt: skip
    return settings | {key.replace("__", "."): value for key, value in props.items()}


def test_all_documents_are_stored_although_the_write_queue_of_the_server_is_full(
    server: SearchServer, tmp_path: Path
) -> None:
    """Three tasks write at the same time. The last record of each key determines its document."""
    before = rejected_count(server)
    with Worker(tmp_path) as worker:
        address = worker.bootstrap_servers()
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("items", PARTITIONS, 1)])["items"].result(30)
        producer = Producer({"bootstrap.servers": address})
        for number in range(ROUNDS):
            for partition in range(PARTITIONS):
                for at in range(KEYS):
                    value = json.dumps({"round": number})
                    producer.produce("items", value, f"{partition}-{at}", partition)
        assert producer.flush(60) == 0
        props = settings_of(
            server.url, batch__size="10", max__in__flight__requests="4", tasks__max=str(PARTITIONS), topics="items",
            key__converter="org.apache.kafka.connect.storage.StringConverter",
        )  # fmt: skip
        worker.create("sink", {"connector.class": "ElasticsearchSinkConnector", **props})
        wait_for(lambda: committed_offsets(worker) == [ROUNDS * KEYS] * PARTITIONS, "all records", 90, worker.log)
        assert "rejected_execution_exception, status 429" in worker.log()
    assert rejected_count(server) > before
    expected = {f"{partition}-{at}": {"round": ROUNDS - 1} for partition in range(PARTITIONS) for at in range(KEYS)}
    assert server.documents("items") == expected


def committed_offsets(worker: Worker) -> list[int]:
    offsets = worker.request("GET", "/connectors/sink/offsets")["offsets"]
    return [each["offset"]["kafka_offset"] for each in offsets]


def rejected_count(server: SearchServer) -> int:
    """Return the number of requests that did not fit into the write queue."""
    nodes = server.request("GET", "/_nodes/stats/thread_pool")["nodes"].values()
    return sum(int(node["thread_pool"]["write"]["rejected"]) for node in nodes)


@pytest.mark.parametrize("gives_up", ["server", "sink"])
def test_all_documents_are_stored_after_the_primary_shard_of_an_index_has_become_active(
    server: SearchServer, caplog: pytest.LogCaptureFixture, gives_up: str
) -> None:
    """Either the server gives up waiting for the shard and returns status 503, or the sink's read timeout expires."""
    settings = {"index.routing.allocation.enable": "none", "index.number_of_replicas": 0}
    # With dynamic mapping, the server would have to change the mapping within the short timeout, too.
    mappings = {"properties": {"offset": {"type": "long"}}}
    server.request("PUT", "/items?wait_for_active_shards=0", {"settings": settings, "mappings": mappings})
    records = [record(offset, f"k{offset % 10}") for offset in range(100)]
    with running_bulk_proxy(server.url) as proxy:
        if gives_up == "server":
            proxy.server_timeout_ms = 100
            props, message = settings_of(proxy.url), "status 503: [items][0] primary shard is not active"
        else:
            props, message = settings_of(proxy.url, read__timeout__ms="500"), "after 500 ms (read.timeout.ms)"
        with running_task(props | {"flush.timeout.ms": "100"}) as task:
            task.put(SinkRecords(batches_of(records)))
            wait_for(lambda: caplog.text.count(message) > 2, "the sink retries the request", 40, lambda: caplog.text)
            assert server.request("GET", "/_cluster/health/items")["active_primary_shards"] == 0
            assert not is_stored(task, records)
            server.request("PUT", "/items/_settings", {"index.routing.allocation.enable": None})
            wait_for(lambda: is_stored(task, records), "all records are stored", 30, lambda: caplog.text)
    assert server.documents("items") == {f"k{at}": {"offset": 90 + at} for at in range(10)}


@pytest.mark.parametrize("method", ["INSERT", "UPSERT"])
def test_all_documents_are_stored_although_connections_are_closed_in_the_middle_of_bulk_requests(
    server: SearchServer, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """Some connections are closed after a part of the request, others after the whole request.

    With INSERT, the sink sends later requests while a request waits for its retry, and the server keeps the document
    with the higher version.
    """
    records = [record(offset, f"k{offset % 100}") for offset in range(2000)]
    cuts: list[float | None] = [0.01, 1, None] + [0.3, None, 1, None, 0.9, None] * 4
    with running_bulk_proxy(server.url) as proxy:
        proxy.cuts = list(cuts)
        props = settings_of(proxy.url, batch__size="100", write__method=method, retry__backoff__ms="100")
        put_until_error(props, records)
        assert proxy.cuts == []
    assert caplog.text.count(f"Elasticsearch at {proxy.url} is not reachable") == len(cuts) - cuts.count(None)
    assert ("the index contains a newer version of its document" in caplog.text) == (method == "INSERT")
    assert server.documents("items") == {f"k{at}": {"offset": 1900 + at} for at in range(100)}


def record(offset: int, key: str) -> SinkRecord:
    value = {"offset": offset}
    return SinkRecord(topic="items", partition=0, offset=offset, timestamp=offset, key=key, value=value)


def is_stored(task: SinkTask[Any], records: Sequence[SinkRecord]) -> bool:
    """Return whether the task has stored all records. Raises the task's error."""
    end = records[-1].offset + 1
    task.put(SinkRecords())
    return task.pre_commit({("items", 0): end}) == {("items", 0): end}
