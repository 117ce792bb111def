"""Tests that the Elasticsearch sink stores each record once, although its worker is killed (kill -9)."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import search_server
from support.search_server import SearchServer
from support.topics import read_topic
from support.worker import Worker, wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]
CONFIG = Path(__file__).parents[2] / "configs" / "connect-elasticsearch-sink.properties"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(search_server.OPENSEARCH, id="opensearch"),
        pytest.param(search_server.ELASTICSEARCH, id="elasticsearch", marks=pytest.mark.prove),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[SearchServer]:
    with search_server.running(request.param, flags=search_server.SHORT_RUN_FLAGS) as running:
        yield running


class LineWriter(threading.Thread):
    """Appends numbered lines to a file until `finish` is called."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._stopping = threading.Event()
        self._count = 0
        file.write_text("")

    def run(self) -> None:
        with self._file.open("a") as lines:
            while not self._stopping.wait(0.02):
                lines.writelines(f"line {number}\n" for number in range(self._count, self._count + 20))
                lines.flush()
                self._count += 20

    def finish(self) -> int:
        """Stop the thread. Return the number of lines."""
        self._stopping.set()
        self.join()
        return self._count


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(1800)]),
    ],
)
def test_each_record_is_one_document_although_the_worker_is_killed_repeatedly(
    server: SearchServer, tmp_path: Path, kills: int
) -> None:
    """The worker and its broker are killed at random moments while a source and the sink copy the lines of a file.

    Two of three kills happen after the sink has stored more documents. The third happens while the worker starts. The
    sink is configured with the example file in configs/.
    """
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    server.clear()
    file = tmp_path / "lines.txt"
    source = tmp_path / "source.properties"
    source.write_text(
        f"name=lines\nconnector.class=FileStreamSource\nfile={file}\ntopic=shop-orders\ntransforms=hoist\n"
        "transforms.hoist.type=org.apache.kafka.connect.transforms.HoistField$Value\ntransforms.hoist.field=line\n"
    )
    sink = tmp_path / "sink.properties"
    example = CONFIG.read_text()
    assert "http://localhost:9200" in example
    sink.write_text(example.replace("http://localhost:9200", server.url) + "batch.size=50\nread.timeout.ms=60000\n")
    worker = Worker(tmp_path, {"offset.storage.file.filename": str(tmp_path / "offsets")}, [source, sink])
    writer = LineWriter(file)
    writer.start()
    try:
        for kill in range(kills):
            before = stored_count(server)
            worker.launch()
            if kill % 3 < 2:
                wait_for(lambda before=before: stored_count(server) > before, "more documents", 60, worker.log)
            time.sleep(moments.uniform(0, 2.5))  # the random moment of the kill is the subject of the test
            worker.kill_group()
    finally:
        count = writer.finish()
    lines = {f"line {number}" for number in range(count)}
    with worker:
        wait_for(lambda: stored_count(server) >= count and stored_lines(server) == lines, "all lines", 240, worker.log)
        messages = read_topic(worker.bootstrap_servers(), "shop-orders")
        expected = {f"shop-orders+0+{message.offset()}": json.loads(message.value() or b"") for message in messages}
        wait_for(lambda: stored_count(server) == len(expected), "all records", 60, worker.log)
    assert server.documents("shop-orders") == expected


def stored_count(server: SearchServer) -> int:
    if "shop-orders" not in server.indexes():
        return 0
    server.request("POST", "/shop-orders/_refresh")
    return int(server.request("GET", "/shop-orders/_count")["count"])


def stored_lines(server: SearchServer) -> set[str]:
    return {str(each["line"]) for each in server.documents("shop-orders").values()}
