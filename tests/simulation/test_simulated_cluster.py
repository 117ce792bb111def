"""Whole clusters under seeded faults.  `python -m headrace_broker.simulation --seed N --verbose` repeats a seed.

Seeds run in processes of their own with PYTHONHASHSEED=0, for a seed's history must not hang on what ran before it.
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

FOUND_ONCE = (
    7,  # a power failure that lost an early file and kept a later one
    8,  # a producer was refused a repetition after a restart, and wrote its records twice
    9,
    11,  # nodes that restarted within a session refused each other's registration, and ended
    14,  # no controller for a while: CreateTopics failed with a traceback
    19,  # a disk that failed under the metadata log left a controller that could decide nothing
    26,
    117,
    1046,
    1047,  # an exception nobody looked at
    2013,  # a follower that had led an empty epoch was told to cut its log for ever
    2065,
    2097,
    5082,  # a replica that kept what lay behind a gap, and led with it
)

MOVES_FOUND = (
    20220,  # a replica that was moved away and back asked its leader, and told it to forget what it asked, for ever
)
FAULTS_BESIDE_MOVES = "stop,isolate_from_brokers,slow_network,move_controller,torn_append,reassign,change_min_insync"


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


@pytest.mark.timeout(600)
def test_seeds_that_found_something_find_it_no_more() -> None:
    _outputs([_run("--seed", *map(str, FOUND_ONCE))])


@pytest.mark.timeout(600)
def test_partitions_that_move_and_min_insync_replicas_that_change_lose_nothing() -> None:
    """What operators do in the meantime; seeds do not draw it by themselves."""
    seeds = ("--seed", *map(str, (*MOVES_FOUND, *range(1, 6))))
    _outputs([_run(*seeds, "--faults", FAULTS_BESIDE_MOVES)])


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
