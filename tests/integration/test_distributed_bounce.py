"""Tests that connectors lose no record while workers and brokers are stopped and killed.

    BOUNCE_SECONDS=600 BOUNCE_SEED=7 python -m pytest -s tests/integration/test_distributed_bounce.py -m prove

The tests correspond to `test_bounce` in Apache Kafka's system tests. Both tests run the file connectors. The test with
the mark `prove` also runs a JDBC source and a lakehouse sink.

Each run prints its seed. The same seed repeats the same sequence of stops and kills, but not at the same times.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import connect_bounce, connect_bounce_database
from support.cluster import ClusterProcess
from support.connect_bounce import NAMES, SINKS, Bounce, Writer, compare, sink_numbers, topic_numbers
from support.connect_bounce_database import RowWriter
from support.distributed import DistributedWorker, worker_group

_IN_CI_S = 90
_PROVING_S = int(os.environ.get("BOUNCE_SECONDS", "600"))
_SEED = int(os.environ.get("BOUNCE_SEED", random.randrange(1 << 31)))

pytestmark = [pytest.mark.integration, pytest.mark.timeout(_PROVING_S + 900)]


@pytest.mark.slow
def test_file_connectors_lose_no_record_when_workers_and_brokers_are_stopped_and_killed(tmp_path: Path) -> None:
    run(tmp_path, _IN_CI_S, database=False)


@pytest.mark.prove
def test_database_and_file_connectors_lose_no_record_when_workers_and_brokers_are_killed(tmp_path: Path) -> None:
    run(tmp_path, _PROVING_S, database=True)


def run(directory: Path, seconds: int, database: bool) -> None:
    """Stop and kill workers and brokers for `seconds`. Then check what the topics, files and tables contain.

    If `database` is true, a JDBC source and a lakehouse sink run, too.
    """
    print(f"seed {_SEED}: repeat with BOUNCE_SEED={_SEED} BOUNCE_SECONDS={seconds}", flush=True)
    cluster = ClusterProcess(directory / "cluster", 3, connect_bounce.BROKERS)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.start()
        workers = stack.enter_context(worker_group(directory, cluster.bootstrap_servers, 3, connect_bounce.SETTINGS))
        lines = stack.enter_context(Writer(directory))
        rows = stack.enter_context(RowWriter(directory)) if database else None
        connect_bounce.create_connectors(workers[0], directory)
        if rows:
            connect_bounce_database.create_pair(workers[0], directory)
        bounce = Bounce(_SEED, cluster, workers)
        bounce.run(seconds)
        count = lines.stop()
        connect_bounce.wait_until_delivered(workers, directory, count)
        check(directory, cluster, count, bounce.events)
        if rows:
            check_table(workers[0], directory, rows.stop())


def check(directory: Path, cluster: ClusterProcess, count: int, events: int) -> None:
    found = {f"topic {name}": topic_numbers(cluster.bootstrap_servers, name) for name in NAMES}
    for sink in SINKS:
        found |= {f"sink {sink}, topic {name}": sink_numbers(directory, sink, name) for name in NAMES}
    results = {where: compare(numbers, count) for where, numbers in found.items()}
    for where, result in results.items():
        print(f"{where}: {count} lines, {result}", flush=True)
    for where, result in results.items():
        assert result.missing == 0, f"seed {_SEED}: {where}: {result}"
        # A failure makes a source or sink go back once. Two tasks that ran at the same time would do so constantly.
        assert result.rewinds <= 2 * events + 2, f"seed {_SEED}: {where}: {result} after {events} events"


def check_table(worker: DistributedWorker, directory: Path, count: int) -> None:
    result = connect_bounce_database.check_pair(worker, directory, count)
    print(f"Delta table: {count} rows inserted, {result}", flush=True)
    assert (result.missing, result.repeated_positions) == (0, 0), f"seed {_SEED}: {result}"
