"""Connectors lose no record while workers and brokers are stopped and killed at random (Apache's test_bounce).

    BOUNCE_SECONDS=600 BOUNCE_SEED=7 python -m pytest -s tests/integration/test_distributed_bounce.py -m prove

Each run prints its seed. The same seed repeats the same sequence of stops and kills, not their exact times.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from support import connect_bounce
from support.cluster import ClusterProcess
from support.connect_bounce import NAMES, SINKS, Bounce, Writer, compare, sink_numbers, topic_numbers
from support.distributed import worker_group

_SECONDS = int(os.environ.get("BOUNCE_SECONDS", "180"))
_SEED = int(os.environ.get("BOUNCE_SEED", random.randrange(1 << 31)))

pytestmark = [pytest.mark.integration, pytest.mark.serial, pytest.mark.timeout(_SECONDS + 900)]


@pytest.mark.prove
def test_file_connectors_lose_no_record_when_workers_and_brokers_are_stopped_and_killed(tmp_path: Path) -> None:
    print(f"seed {_SEED}: repeat with BOUNCE_SEED={_SEED} BOUNCE_SECONDS={_SECONDS}", flush=True)
    cluster = ClusterProcess(tmp_path / "cluster", 3, connect_bounce.BROKERS)
    try:
        cluster.start()
        with worker_group(tmp_path, cluster.bootstrap_servers, 3, connect_bounce.SETTINGS) as workers:
            writer = Writer(tmp_path)
            try:
                connect_bounce.create_connectors(workers[0], tmp_path)
                bounce = Bounce(_SEED, cluster, workers)
                bounce.run(_SECONDS)
            finally:
                count = writer.stop()
            connect_bounce.wait_until_delivered(workers, tmp_path, count)
            check(tmp_path, cluster, count, bounce.events)
    finally:
        cluster.close()


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
