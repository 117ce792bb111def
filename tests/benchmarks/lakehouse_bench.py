"""Measures how fast LakehouseSinkConnector loads tables. The baseline is plain Spark, which reads JSON files.

The connector and plain Spark process batches of the same records on two local processors, in turns. While the
connector runs, the broker uses these processors too. The first batch of each run is not counted, because it includes
the warm-up of the JVM's compiler. A rate is the median of all other batches of all runs. CPU times are those of all
processes of an arm, without the broker.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from lakehouse_loads import (
    DDL,
    ENVELOPES,
    PLAIN,
    PLAIN_JSON,
    SIX_TRANSFORMS,
    connector,
    envelope,
    fill,
    payload,
    write_files,
)
from measured import Measurements
from process_stats import cpu_s, memory, tree
from results import Row

from support.broker import running_broker
from support.spark_cluster import running_cluster
from support.worker import Worker, wait_for

BATCH_ROWS = 250_000
BATCHES = 4
SMALL_TABLES = 5
SMALL_ROWS = 4_000
SMALL_BATCHES = 8
LATENCY_RECORDS = 200
TIMEOUT_S = 120.0
RATE, CPU = "rows/s", "us/row"
Report = Callable[[str], None]


LOCAL = "topic (JSON envelopes) to Delta"
ARMS: dict[str, tuple[str, Mapping[str, str], float]] = {
    LOCAL: (ENVELOPES, {}, 1.1),
    "topic (plain JSON, declared columns) to Delta": (PLAIN, PLAIN_JSON, 1.2),
    "topic (JSON envelopes) with six transforms to Delta": (ENVELOPES, SIX_TRANSFORMS, 1.0),
}


def run(rounds: int, scale: float, report: Report) -> list[Row]:
    """Run all arms in turns, `rounds` times (five for the published results)."""
    batch_rows = int(BATCH_ROWS * scale)
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        directory = Path(name)
        total = BATCHES * batch_rows
        write_files(directory / "json", BATCHES, batch_rows)
        fill(broker.address, ENVELOPES, map(envelope, range(total)))
        fill(broker.address, PLAIN, map(payload, range(total)))
        report(f"{total:,} records in each topic")
        plain = Measurements()
        ours = {what: Measurements() for what in ARMS}
        cluster = Measurements()
        used_mb = 0.0
        for number in range(rounds):
            _measure_plain(directory, number, batch_rows, plain)
            for what, (topic, props, _) in ARMS.items():
                place = directory / f"{number}-{topic}-{len(props)}"
                used_mb = _measure_ours(broker.address, place, connector(topic, place, batch_rows, props), ours[what])
            _measure_cluster(broker.address, directory / f"{number}-cluster", batch_rows, cluster)
            report(
                f"round {number}: plain Spark {plain.median(RATE):,.0f} rows/s; "
                + "; ".join(f"{what} {found.median(RATE) / plain.median(RATE):.2f}x" for what, found in ours.items())
            )
        rows = [
            Row("lakehouse", what, RATE, ours[what].median(RATE), plain.median(RATE), goal)
            for what, (_, _, goal) in ARMS.items()
        ]
        rows += [
            Row("lakehouse", f"{what}, CPU", CPU, ours[what].median(CPU), plain.median(CPU), None, False)
            for what in ARMS
        ]
        local = ours[LOCAL].median(RATE)
        rows.append(
            Row(
                "lakehouse",
                f"{LOCAL}: two executors of a cluster, not local[2]",
                RATE,
                cluster.median(RATE),
                local,
                0.8,
            )
        )
        rows.append(Row("lakehouse", "worker, task, Spark's JVM and Python workers (PSS)", "MB", used_mb, None, None))
        rows += _measure_small_tables(broker.address, directory, report)
        rows += _measure_latency(broker.address, directory, report)
        return rows


def _measure_plain(directory: Path, number: int, batch_rows: int, measured: Measurements) -> None:
    program = str(Path(__file__).with_name("plain_spark.py"))
    command = [sys.executable, program, str(directory / "json"), DDL, str(directory / f"plain-{number}")]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"

    def load() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("next\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    load()
    before_s = cpu_s(tree(process.pid))
    measured.note_all(RATE, [batch_rows / load() for _ in range(BATCHES - 1)])
    measured.note(CPU, (cpu_s(tree(process.pid)) - before_s) * 1e6 / (batch_rows * (BATCHES - 1)))
    process.communicate("end\n", timeout=60)


def _worker(directory: Path, address: str) -> Worker:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"bootstrap.servers": address, "offset.storage.file.filename": str(directory / "offsets")}
    return Worker(directory, settings)


def _measure_ours(address: str, directory: Path, config: dict[str, str], measured: Measurements) -> float:
    """Run a connector until all batches are committed. Return the PSS of all processes in MB."""
    config = {**config, "lakehouse.path": str(directory / "tables")}
    with _worker(directory, address) as worker:
        worker.create(directory.name, config)  # each run has its own name, and so its own offsets
        wait_for(lambda: len(_batches(worker)) >= 1, "the first batch is committed", TIMEOUT_S, worker.log)
        before_s, first = cpu_s(tree(worker.pid)), len(_batches(worker))
        wait_for(lambda: len(_batches(worker)) >= BATCHES, "every row is committed", TIMEOUT_S, worker.log)
        batches = _batches(worker)
        rows = sum(rows for rows, _ in batches[first:])
        measured.note(CPU, (cpu_s(tree(worker.pid)) - before_s) * 1e6 / max(1, rows))
        measured.note_all(RATE, [rows / seconds for rows, seconds in batches[1:]])
        return memory(tree(worker.pid)).pss_mb


def _measure_cluster(address: str, directory: Path, batch_rows: int, measured: Measurements) -> None:
    """Measure two executors with one core each. The CPU time of `measured` lacks the executors' share."""
    directory.mkdir()
    with running_cluster(directory, workers=2) as cluster:
        props = {"spark.master": cluster.master, "spark.executor.memory": "600m"}
        _measure_ours(address, directory, connector(ENVELOPES, directory, batch_rows, props), measured)


def _batches(worker: Worker) -> list[tuple[int, float]]:
    """Return the rows and seconds of each micro-batch in the log."""
    found = []
    for line in worker.log().splitlines():
        match = re.search(r"Committed batch \d+: ([\d,]+) rows in [\d.]+ s \(([\d,]+) rows/s;", line)
        if match:
            rows, rate = (int(text.replace(",", "")) for text in match.groups())
            found.append((rows, rows / max(rate, 1)))
    return found


def _measure_small_tables(address: str, directory: Path, report: Report) -> list[Row]:
    """Measure batches of SMALL_ROWS rows for each of five tables."""
    topics = [f"small{number}" for number in range(SMALL_TABLES)]
    for topic in topics:
        fill(address, topic, map(envelope, range(SMALL_ROWS * SMALL_BATCHES)), 1)
    place = directory / "small"
    config = connector(",".join(topics), place / "tables", SMALL_ROWS * SMALL_TABLES)
    with _worker(place, address) as worker:
        worker.create("small", config)
        wait_for(lambda: len(_batches(worker)) >= SMALL_BATCHES, "every row is committed", TIMEOUT_S, worker.log)
        seconds = statistics.median(seconds for _, seconds in _batches(worker)[1:])
    report(f"five tables: {seconds:.2f} s a batch")
    return [
        Row("lakehouse", f"batch of {SMALL_TABLES} tables with {SMALL_ROWS:,} rows each", "s", seconds, 0.5, 1.0, False)
    ]


def _measure_latency(address: str, directory: Path, report: Report) -> list[Row]:
    """Measure the time from a record's timestamp to the commit that contains it, with a trigger of 1 s."""
    from deltalake import DeltaTable

    topic, place = "latency", directory / "latency"
    fill(address, topic, map(envelope, range(10)), 1)
    config = {**connector(topic, place / "tables", 10_000), "lakehouse.trigger.interval.ms": "1000"}
    with _worker(place, address) as worker:
        worker.create("latency", config)
        wait_for(lambda: len(_batches(worker)) >= 1, "the first batch is committed", TIMEOUT_S, worker.log)
        _produce_slowly(address, topic)
        wait_for(
            lambda: sum(rows for rows, _ in _batches(worker)) >= 10 + LATENCY_RECORDS,
            "every row",
            TIMEOUT_S,
            worker.log,
        )
        table = DeltaTable(place / "tables" / topic)
        latencies_s = _latencies(table)
    p99 = sorted(latencies_s)[int(len(latencies_s) * 0.99)]
    report(f"latency: p50 {statistics.median(latencies_s):.2f} s, p99 {p99:.2f} s")
    return [
        Row("lakehouse", "from record to commit, 20 records/s, trigger 1 s, p50", "s", statistics.median(latencies_s)),
        Row("lakehouse", "from record to commit, 20 records/s, trigger 1 s, p99", "s", p99, 3.0, 1.0, False),
    ]


def _produce_slowly(address: str, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    for number in range(LATENCY_RECORDS):
        producer.produce(topic, envelope(number))
        producer.poll(0)
        time.sleep(0.05)
    producer.flush(30)


def _latencies(table: object) -> list[float]:
    """Return, for each record after the first commit, the seconds from its timestamp to the commit of its file."""
    import json

    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    assert isinstance(table, DeltaTable)
    root = Path(table.table_uri.removeprefix("file://"))
    found = []
    for log in sorted((root / "_delta_log").glob("*.json"))[1:]:
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        committed_ms = log.stat().st_mtime * 1000
        for action in actions:
            if "add" in action:
                times = pq.read_table(root / action["add"]["path"], columns=["_kafka_timestamp"]).column(0)
                found += [(committed_ms - value.timestamp() * 1000) / 1000 for value in times.to_pylist()]
    return found
