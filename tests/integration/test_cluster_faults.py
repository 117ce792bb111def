"""Runs three nodes and real clients while networks, disks and processes fail. No record may be lost.

    FAULT_SECONDS=600 FAULT_SEED=7 python -m pytest tests/integration/test_cluster_faults.py -m prove

`support.cluster_faults` causes the faults, and `integration.history` checks the results. The test is skipped on
machines that cannot create network namespaces.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support import fault_run
from support.isolated_cluster import environment
from support.namespaces import in_sandbox, missing

_IN_CI_S = 60
_PROVING_S = int(os.environ.get("FAULT_SECONDS", "1800"))
_SEED = int(os.environ.get("FAULT_SEED", random.randrange(1 << 31)))

pytestmark = [pytest.mark.integration, pytest.mark.timeout(_PROVING_S + 900)]


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(_IN_CI_S, marks=pytest.mark.slow),
        pytest.param(_PROVING_S, marks=pytest.mark.prove),
    ],
)
def test_no_acknowledged_record_is_lost_during_random_network_disk_and_process_faults(
    tmp_path: Path, seconds: int
) -> None:
    if missing():
        pytest.skip(missing())
    command = [sys.executable, fault_run.__file__, str(tmp_path), str(seconds), str(_SEED)]
    output = tmp_path / "output.txt"
    with output.open("wb") as out:
        sandbox = subprocess.Popen(
            in_sandbox(command), stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment(), cwd=tmp_path
        )
    with sandbox:
        try:
            status = sandbox.wait()
        finally:
            sandbox.kill()
    print(f"seed {_SEED}\n{output.read_text()}")
    assert status == 0, f"seed {_SEED}, see {tmp_path}:\n" + "\n".join(output.read_text().splitlines()[-40:])
