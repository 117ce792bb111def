"""Measures how many documents per second the Elasticsearch sink writes from a topic to OpenSearch, with one task.

Each document has about 300 bytes.

The server may limit the rate. To show this limit, the benchmark also writes the same documents without a sink, over two
plain HTTP connections. The baseline is Aiven's OpenSearch sink in Apache's worker. If the jars of Aiven's sink are
available (see jvm_connectors.py), the benchmark measures Aiven's sink in the same run. Otherwise, the baseline is an
earlier result of Aiven's sink.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import HTTPError
from urllib.parse import urlsplit

from jvm_connectors import WARM_UP_ROUNDS, medians, systems_under_test
from results import Row
from sink_load import Measured, flights, measure, produce

from support import search_server
from support.broker import running_broker
from support.search_server import SearchServer
from support.worker import Worker

QUOTED_K_PER_S, QUOTED_CPU_NS = 30.5, 22_300.0
CLASSES = (
    "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
    "io.aiven.kafka.connect.opensearch.OpenSearchSinkConnector",
)
TOPIC = "flights"
FIELDS = 13
"""The first fields of a flight: about 300 bytes of JSON."""
PLAIN_CONNECTIONS, PLAIN_BATCH = 2, 2000


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Write the documents to OpenSearch `rounds` times with the sink, and `rounds` times directly over HTTP."""
    if search_server.unavailable_reason():
        report(f"OpenSearch left out: {search_server.unavailable_reason()}")
        return []
    with (
        TemporaryDirectory(prefix="headrace-bench-") as name,
        running_broker(Path(name)) as broker,
        search_server.running() as server,
    ):
        directory = Path(name)
        documents = [dict(list(row.items())[:FIELDS]) for row in flights(directory, scale)]
        count = produce(broker.address, TOPIC, 1, documents, schemas=False)
        with systems_under_test(directory, broker.address, "opensearch") as systems:
            ours, theirs, plain = [], [], []
            for number in range(rounds + WARM_UP_ROUNDS):
                systems.wait_until_idle()
                ours.append(_measure(systems.ours, CLASSES[0], server, count, number, report))
                if systems.theirs is not None:
                    systems.wait_until_idle()
                    theirs.append(_measure(systems.theirs, CLASSES[1], server, count, number, report))
                plain.append(_write_plainly(server, documents))
                report(f"{PLAIN_CONNECTIONS} plain connections: {plain[-1]:.0f} k documents/s")
            ceiling = statistics.median(plain[WARM_UP_ROUNDS:])
            return _rows(systems.label, medians(ours), medians(theirs) if theirs else None, ceiling)


def _measure(
    worker: Worker, connector: str, server: SearchServer, count: int, number: int, report: Callable[[str], None]
) -> Measured:
    config = {
        "connector.class": connector,
        "topics": TOPIC,
        "connection.url": server.url,
        "key.ignore": "true",
        "schema.ignore": "true",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "consumer.override.max.poll.records": "10000",
    }
    measured = measure(worker, f"{connector.split('.')[1]}-{number}", config, count, lambda: _written(server) >= count)
    server.clear()
    report(f"{connector}: {measured.k_per_s:.0f} k documents/s, {measured.cpu_ns:.0f} ns, {measured.memory_mb:.0f} MB")
    return measured


def _written(server: SearchServer) -> int:
    """Return the number of documents that the server has indexed, including those that searches do not find yet."""
    try:
        return int(server.request("GET", f"/{TOPIC}/_stats/indexing")["_all"]["primaries"]["indexing"]["index_total"])
    except HTTPError:  # the index does not exist yet
        return 0


def _write_plainly(server: SearchServer, documents: Sequence[dict[str, object]]) -> float:
    """Write the documents over several connections at the same time. Return thousands of documents per second."""
    bodies = []
    for start in range(0, len(documents), PLAIN_BATCH):
        batch = documents[start : start + PLAIN_BATCH]
        lines = (f'{{"index":{{"_id":"{start + i}"}}}}\n{json.dumps(each)}\n' for i, each in enumerate(batch))
        bodies.append("".join(lines).encode())

    def write(share: list[bytes]) -> None:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc)
        for body in share:
            connection.request("POST", f"/{TOPIC}/_bulk", body, {"Content-Type": "application/x-ndjson"})
            response = json.loads(connection.getresponse().read())
            assert not response["errors"], response
        connection.close()

    began_s = time.perf_counter()
    with ThreadPoolExecutor(PLAIN_CONNECTIONS) as threads:
        list(threads.map(write, [bodies[i::PLAIN_CONNECTIONS] for i in range(PLAIN_CONNECTIONS)]))
    seconds = time.perf_counter() - began_s
    server.clear()
    return len(documents) / seconds / 1000


def _rows(label: str, ours: Measured, theirs: Measured | None, ceiling: float) -> list[Row]:
    what, area = "sink, OpenSearch 2.19, documents of 300 bytes", "elasticsearch"
    rate, cpu = (QUOTED_K_PER_S, QUOTED_CPU_NS) if theirs is None else (theirs.k_per_s, theirs.cpu_ns)
    peak = None if theirs is None else theirs.peak_mb
    limit = f"two plain connections reach {ceiling:.0f} k/s" if ours.k_per_s >= 0.9 * ceiling else ""
    return [
        Row(
            area, f"{what}, the connector's start included {label}", "k records/s", ours.k_per_s, rate, 1.5,
            limit=limit,
        ),
        Row(area, f"{what} (baseline: two plain connections)", "k records/s", ours.k_per_s, ceiling),
        Row(area, f"{what}, CPU of worker and task {label}", "ns/record", ours.cpu_ns, cpu, None, False),
        Row(area, f"{what}, growth of memory at its peak", "MB", ours.memory_mb, None, None, False),
        Row(area, f"{what}, memory of worker and task at its peak", "MB", ours.peak_mb, peak, None, False),
    ]  # fmt: skip
