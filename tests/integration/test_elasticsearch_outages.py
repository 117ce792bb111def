"""Tests that the Elasticsearch sink loses no records if the server is killed and started again, slow or full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support import search_server
from support.search_server import SearchServer
from support.worker import Worker, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]


class Outage(NamedTuple):
    """A condition of the server in which it stores no documents."""

    begin: Callable[[SearchServer], None]
    end: Callable[[SearchServer], None]
    message: str


def block(server: SearchServer) -> None:
    """Block writes, as the server does if less than 5 % of its disk are free (the flood-stage watermark)."""
    server.request("PUT", "/_all/_settings", {"index.blocks.read_only_allow_delete": True})


def unblock(server: SearchServer) -> None:
    server.request("PUT", "/_all/_settings", {"index.blocks.read_only_allow_delete": None})


KILLED = Outage(SearchServer.kill, SearchServer.start_again, "is not reachable")
FULL = Outage(block, unblock, "disk usage exceeded flood-stage watermark")
SLOW = Outage(SearchServer.suspend, SearchServer.resume, "has not responded after 5000 ms (read.timeout.ms)")


@pytest.fixture(scope="module")
def server() -> Iterator[SearchServer]:
    with search_server.running(flags=search_server.SHORT_RUN_FLAGS) as running:
        yield running


@pytest.mark.parametrize(
    "outage", [pytest.param(KILLED, id="killed"), pytest.param(FULL, id="full"), pytest.param(SLOW, id="slow")]
)
def test_no_record_is_lost_if_the_server_stores_no_documents_for_a_while(
    server: SearchServer, tmp_path: Path, outage: Outage
) -> None:
    """One sink retries its requests until the server stores documents again. The other sink fails and is restarted."""
    server.clear()
    file = tmp_path / "lines.txt"
    file.write_text("")
    hoist = {"transforms": "hoist", "transforms.hoist.field": "line", "transforms.hoist.type": "HoistField$Value"}
    rename = {
        "transforms": "rename", "transforms.rename.type": "RegexRouter", "transforms.rename.regex": ".*",
        "transforms.rename.replacement": "copy",
    }  # fmt: skip
    sink = {
        "connector.class": "ElasticsearchSinkConnector", "topics": "items", "connection.url": server.url,
        "key.ignore": "true", "schema.ignore": "true", "read.timeout.ms": "5000", "retry.backoff.ms": "1",
    }  # fmt: skip

    def append(first: int, end: int) -> None:
        with file.open("a") as lines:
            lines.writelines(f"line {number}\n" for number in range(first, end))

    def are_stored(index: str, count: int) -> bool:
        found = sorted(each["line"] for each in server.documents(index).values()) if index in server.indexes() else []
        return found == sorted(f"line {number}" for number in range(count))

    with Worker(tmp_path) as worker:
        worker.create("source", {"connector.class": "FileStreamSource", "topic": "items", "file": str(file), **hoist})
        worker.create("retrying", {**sink, "max.retries": "1000"})
        worker.create("failing", {**sink, **rename, "max.retries": "1"})
        append(0, 100)
        for index in ("items", "copy"):
            wait_for(lambda index=index: are_stored(index, 100), f"the first lines in {index}", 60, worker.log)
        append(100, 150)
        outage.begin(server)
        append(150, 200)
        worker.wait_for_task_state("failing", 0, "FAILED")
        trace = str(worker.status("failing")["tasks"][0]["trace"])
        assert f"Elasticsearch at {server.url}" in trace
        assert outage.message in trace
        assert "giving up after 2 attempts (max.retries)" in trace
        outage.end(server)
        worker.request("POST", "/connectors/failing/restart?includeTasks=true&onlyFailed=true")
        for index in ("items", "copy"):
            wait_for(lambda index=index: are_stored(index, 200), f"all lines in {index}", 60, worker.log)
        assert worker.status("retrying")["tasks"][0]["state"] == "RUNNING"
