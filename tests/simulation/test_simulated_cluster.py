"""Tests of simulated clusters under random faults that a seed determines.

`python -m headrace_broker.simulation --seed N --verbose` repeats the run of a seed. Seeds run in
separate processes with PYTHONHASHSEED=0, so that a run does not depend on earlier runs. A seed that
finds a bug is not a regression test, because any change to the code or to the workload changes the
run. Instead, write a test with the fault and its timing in `test_one_fault_at_a_time`, or a unit
test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.mutants import MUTANTS

ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0"}
MUTATED = Path(__file__).parents[1] / "support" / "mutants.py"
PROCESSES = 2


def _run(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace_broker.simulation", *arguments]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Return the output of each process. If a process failed, its output shows how to reproduce the failure."""
    outputs = [process.communicate()[0] for process in processes]
    failed = [output for process, output in zip(processes, outputs, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)[-8000:]
    return outputs


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("first", "count"), [(0, 5), pytest.param(5, 35, marks=pytest.mark.slow)])
def test_simulated_clusters_lose_and_duplicate_no_record_with_each_of_forty_seeds(first: int, count: int) -> None:
    _outputs([_run("--seed", str(first), "--count", str(count))])


@pytest.mark.slow
def test_simulation_of_a_seed_is_the_same_whether_it_runs_alone_or_after_other_seeds() -> None:
    """A run's digest is a checksum over all received bytes and their arrival times.

    Earlier runs in the same process must not change the digest.
    """
    alone, after_others = _outputs([_run("--seed", "33"), _run("--seed", "31", "--count", "3")])
    pattern = re.compile(r"^seed 33: .*digest [0-9a-f]+", re.MULTILINE)
    assert pattern.findall(alone) == pattern.findall(after_others) != []


def _search(name: str, *arguments: str) -> str:
    command = [sys.executable, str(MUTATED), name, *arguments]
    found = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_cluster_simulation_detects_each_mutant_of_the_code_within_twelve_seeds(name: str) -> None:
    """The first of the twelve seeds is known to detect the mutant.

    The other seeds are necessary because a change to the code may change the run of the first seed.
    """
    assert "caught by seed" in _search(name, "--count", "12")


@pytest.mark.prove
@pytest.mark.timeout(4 * 3600)
def test_clusters_simulated_with_three_thousand_seeds_lose_and_duplicate_no_record() -> None:
    count = 3000 // PROCESSES
    _outputs([_run("--seed", str(number * count), "--count", str(count)) for number in range(PROCESSES)])


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_cluster_simulation_detects_each_mutant_of_the_code_within_five_hundred_seeds(name: str) -> None:
    assert "caught by seed" in _search(name, "--seed", "0", "--count", "500")
