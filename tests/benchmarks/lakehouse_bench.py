"""Measures how fast LakehouseSinkConnector writes to Delta. The baseline is plain Spark, which reads JSON files.

The connector and plain Spark process batches of the same records on two local processors. While the connector runs, the
broker uses these processors too. The first batch is not counted, because it includes the warm-up of the JVM's compiler.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from process_stats import memory, tree
from results import Row

from support.broker import running_broker
from support.worker import Worker, wait_for

BATCH_ROWS = 250_000
BATCHES = 6
PARTITIONS = 2
TOPIC = "measured"
DDL = "id BIGINT, at STRING, origin STRING, dest STRING, distance DOUBLE, delay INT, note STRING"
SCHEMA = {
    "type": "struct",
    "optional": False,
    "name": TOPIC,
    "fields": [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "at", "type": "string", "optional": True},
        {"field": "origin", "type": "string", "optional": True},
        {"field": "dest", "type": "string", "optional": True},
        {"field": "distance", "type": "double", "optional": True},
        {"field": "delay", "type": "int32", "optional": True},
        {"field": "note", "type": "string", "optional": True},
    ],
}
_COMMITTED = re.compile(r"Committed batch (\d+): ([\d,]+) rows in ([\d.]+) s")
TIMEOUT_S = 400.0


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Run the connector once and plain Spark once, regardless of `rounds`.

    Each run processes `BATCHES` batches. A rate is the median of all batches of a run except the first.
    """
    batch_rows = int(BATCH_ROWS * scale)
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        directory = Path(name)
        plain = _plain(directory, batch_rows, report)
        _fill(broker.address, batch_rows * BATCHES)
        config = {
            "connector.class": "LakehouseSinkConnector",
            "topics": TOPIC,
            "lakehouse.path": str(directory / "lakehouse"),
            "lakehouse.batch.rows.max": str(batch_rows),
            "lakehouse.trigger.interval.ms": "0",
            "spark.master": "local[2]",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "true",
        }
        settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(directory / "offsets")}
        with Worker(directory, settings) as worker:
            worker.create("lakehouse", config)
            wait_for(lambda: _rows(worker) >= batch_rows * BATCHES, "every row is committed", TIMEOUT_S, worker.log)
            used = memory(tree(worker.pid)).pss_mb
            rates = [rows / seconds for _, rows, seconds in _batches(worker)[1:]]
    report(f"lakehouse: {statistics.median(rates):,.0f} rows/s")
    return [
        Row("lakehouse", "topic to Delta, Python source", "rows/s", statistics.median(rates), plain, 0.3),
        Row("lakehouse", "worker, task and Spark's JVM (PSS)", "MB", used, None, None, False),
    ]


def _batches(worker: Worker) -> list[tuple[int, int, float]]:
    found = _COMMITTED.findall(worker.log())
    return [(int(number), int(rows.replace(",", "")), float(seconds)) for number, rows, seconds in found]


def _rows(worker: Worker) -> int:
    return sum(rows for _, rows, _ in _batches(worker))


def _payload(i: int) -> dict[str, object]:
    return {
        "id": i,
        "at": f"2013-01-{i % 28 + 1:02d}T10:00:00Z",
        "origin": "EWR",
        "dest": f"D{i % 100:02d}",
        "distance": i * 0.5,
        "delay": i % 300 if i % 7 else None,
        "note": f"a text of some length, as rows of databases have them, number {i}",
    }


def _fill(address: str, rows: int) -> None:
    """Produce records in JsonConverter's envelope format."""
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    start = f'{{"schema":{json.dumps(SCHEMA, separators=(",", ":"))},"payload":'
    for i in range(rows):
        while True:
            try:
                producer.produce(
                    TOPIC, f"{start}{json.dumps(_payload(i), separators=(',', ':'))}}}", partition=i % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(60):
        raise RuntimeError("not every record was delivered")


def _plain(directory: Path, batch_rows: int, report: Callable[[str], None]) -> float | None:
    files = directory / "json"
    files.mkdir()
    for batch in range(BATCHES):
        with (files / f"{batch}.json").open("w") as file:
            file.writelines(
                json.dumps(_payload(i), separators=(",", ":")) + "\n"
                for i in range(batch * batch_rows, (batch + 1) * batch_rows)
            )
    program = str(Path(__file__).with_name("plain_spark.py"))
    done = subprocess.run([sys.executable, program, str(files), DDL], capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        report(f"plain Spark left out: {done.stderr.strip().splitlines()[-1]}")
        return None
    rates = [batch_rows / seconds for seconds in json.loads(done.stdout.strip().splitlines()[-1])[1:]]
    report(f"plain Spark: {statistics.median(rates):,.0f} rows/s")
    return statistics.median(rates)
