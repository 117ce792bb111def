"""Whole clusters under seeded faults.  `python -m headrace_broker.simulation --seed N --verbose` repeats a seed.

Seeds run in processes of their own with PYTHONHASHSEED=0, for a seed's history must not hang on what ran before it.
A seed that finds something is no regression test: with the next change to the code or to what is played here it has
another history.  What it found is told again where it happened, by the fault and the moment alone
(`test_one_fault_at_a_time`, the unit tests).
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
    """What they print; whoever failed is shown with the line that repeats it."""
    outputs = [process.communicate()[0] for process in processes]
    failed = [output for process, output in zip(processes, outputs, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)[-8000:]
    return outputs


@pytest.mark.timeout(900)
def test_two_hundred_seeds_lose_and_repeat_nothing() -> None:
    part = 200 // PROCESSES
    _outputs([_run("--seed", str(first * part), "--count", str(part)) for first in range(PROCESSES)])


def test_a_seed_has_one_history() -> None:
    """Whatever ran before it in the process: the checksum covers every byte that arrived anywhere, and when."""
    alone, behind_others = _outputs([_run("--seed", "33"), _run("--seed", "31", "--count", "3")])
    pattern = re.compile(r"^seed 33: .*digest [0-9a-f]+", re.MULTILINE)
    assert pattern.findall(alone) == pattern.findall(behind_others) != []


def _search(name: str, *arguments: str) -> str:
    command = [sys.executable, str(MUTATED), name, *arguments]
    found = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return found.stdout + found.stderr


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_simulation_notices_what_is_broken(name: str) -> None:
    """The seed that is known to notice, or one soon after it: any change to the code gives seeds other histories."""
    assert "caught by seed" in _search(name, "--count", "12")


@pytest.mark.prove
@pytest.mark.timeout(4 * 3600)
def test_three_thousand_seeds_lose_and_repeat_nothing() -> None:
    part = 3000 // PROCESSES
    _outputs([_run("--seed", str(first * part), "--count", str(part)) for first in range(PROCESSES)])


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_five_hundred_seeds_are_enough_to_notice(name: str) -> None:
    assert "caught by seed" in _search(name, "--seed", "0", "--count", "500")
