"""Tests that clusters with frequent metadata snapshots lose no metadata under faults.

Nodes write a snapshot every few batches and immediately delete the log records that the snapshot contains. Restarted
nodes therefore load a snapshot, and lagging nodes fetch a snapshot.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "count"), [(0, 3), pytest.param(3, 100, marks=pytest.mark.prove)])
def test_simulated_clusters_with_frequent_metadata_snapshots_lose_no_metadata(first: int, count: int) -> None:
    command = [sys.executable, "-m", "headrace_broker.simulation", "--seed", str(first), "--count", str(count)]
    command += ["--property", "metadata.log.max.record.bytes.between.snapshots=3000"]
    command += ["--property", "metadata.max.retention.bytes=1"]
    done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
