"""Measures the fdatasync latency of a metadata log with and without preallocation.

The benchmark measures first while the machine is idle, and then while three nodes run under full load. Three logs use
headrace's own code and the disk that the nodes use, and appends alternate between them: a preallocated log, a log whose
blocks are allocated without a change of the file size (KEEP_SIZE), and a log without preallocation, which is the
baseline. The metrics of the nodes report the fsync latency of their own metadata logs.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster_bench import REPLICAS, SETTINGS
from fresh_topic import fresh_topic
from produce_load import Load, produce
from results import Row

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import DiskStorage
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from support.cluster import ClusterProcess

APPENDS = 3000
PAUSE_S = 0.002
RECORD_BYTES = 250
LOAD = Load(1000, 131_072, 500_000, "-1")
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
PREALLOCATED, KEEP_SIZE, PLAIN = "preallocated", "KEEP_SIZE", "plain"
ALLOCATED_BYTES = 4 << 20
_FALLOC_FL_KEEP_SIZE = 1
_FLUSHES = "kafka_log_logflushstats_logflushrateandtimems"


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Measure the fdatasync latency first on the idle machine, then under load."""
    rows: list[Row] = []
    appends = max(200, int(APPENDS * rounds * scale))
    with TemporaryDirectory(prefix="headrace-bench-") as directory:
        properties = {
            **SETTINGS,
            "headrace.metrics.listeners": "http://127.0.0.1:0",
            "log.retention.bytes": "200000000",
        }
        properties["log.segment.bytes"] = "50000000"
        properties["log.retention.check.interval.ms"] = "1000"
        cluster = ClusterProcess(Path(directory) / "cluster", properties=properties)
        cluster.start()
        try:
            rows += _measure_fsync(Path(directory) / "idle", "idle", appends, report)
            with _full_load(cluster.bootstrap_servers) as sent:
                rows += _measure_fsync(Path(directory) / "load", "under load", appends, report)
            report(f"the client wrote {sum(sent) * LOAD.megabytes:.0f} MB during the measurement")
            rows += [_node_fsync_row(cluster, quantile) for quantile in ("0.5", "0.99", "0.999")]
            leaders = {number: cluster.log(number).count("is active in epoch") for number in range(1, REPLICAS + 1)}
            rows.append(Row("metadata", "elections under load", "", sum(leaders.values()) - 1))
        finally:
            cluster.close()
    return rows


def _measure_fsync(directory: Path, when: str, appends: int, report: Callable[[str], None]) -> list[Row]:
    storage = DiskStorage()
    logs = {
        kind: PartitionLog.open(
            storage, str(directory / kind), "__cluster_metadata", 0, LogConfig(preallocate=kind == PREALLOCATED), 0
        )
        for kind in (PREALLOCATED, KEEP_SIZE, PLAIN)
    }
    _allocate_blocks(next((directory / KEEP_SIZE).glob("*.log")))
    times_ms: dict[str, list[float]] = {kind: [] for kind in logs}
    for number in range(appends):
        for kind in sorted(logs, reverse=number % 2 == 0):
            batch = build_batch(RecordColumns(values=[bytes(RECORD_BYTES)], timestamps=number))
            logs[kind].append_as_leader(batch, leader_epoch=1, now_ms=number)
            paths = logs[kind].unflushed_files(with_active=True)[0]
            started = time.perf_counter()
            for path in paths:
                storage.sync(path)
            times_ms[kind].append((time.perf_counter() - started) * 1000)
            time.sleep(PAUSE_S)
    rows = []
    for name, quantile in QUANTILES.items():
        ours, kept, plain = (_quantile(times_ms[kind], quantile) for kind in (PREALLOCATED, KEEP_SIZE, PLAIN))
        rows.append(Row("metadata", f"fdatasync {when}, {name}", "ms", ours, plain, None, False))
        rows.append(Row("metadata", f"fdatasync {when} with KEEP_SIZE, {name}", "ms", kept, plain, None, False))
        report(f"fdatasync {when}, {name}: preallocated {ours:.3f} ms, KEEP_SIZE {kept:.3f} ms, plain {plain:.3f} ms")
    return rows


def _allocate_blocks(path: Path) -> None:
    """Allocate blocks for a file without changing the file's size."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(path, os.O_RDWR)
    try:
        if libc.fallocate(file, _FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(ALLOCATED_BYTES)):
            raise OSError(ctypes.get_errno(), "fallocate failed", str(path))
    finally:
        os.close(file)


def _quantile(values: list[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]


@contextmanager
def _full_load(address: str) -> Iterator[list[int]]:
    """Produce continuously while the block runs.

    An item is appended to the yielded list whenever all messages of LOAD are acknowledged.
    """
    stopped, sent = threading.Event(), []

    def work() -> None:
        with fresh_topic(address, 6, REPLICAS) as topic:
            while not stopped.is_set():
                produce(address, topic, LOAD)
                sent.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(5)
    try:
        yield sent
    finally:
        stopped.set()
        thread.join()


def _node_fsync_row(cluster: ClusterProcess, quantile: str) -> Row:
    """Return the given quantile of the fsync latency, from the node where it is highest.

    The latency includes fsyncs of the node's metadata log and of the rolled segments of its partitions.
    """
    slowest = 0.0
    for number in range(1, REPLICAS + 1):
        address = re.findall(r"Metrics: serving (http://\S+)", cluster.log(number))[-1]
        with urllib.request.urlopen(address, timeout=10) as response:
            text = response.read().decode()
        with suppress(IndexError):
            slowest = max(slowest, float(re.findall(rf'^{_FLUSHES}{{quantile="{quantile}"}} (\S+)$', text, re.M)[0]))
    return Row("metadata", f"a node's own fsyncs under load, {quantile}", "ms", slowest)
