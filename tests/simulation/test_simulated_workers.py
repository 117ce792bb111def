"""Tests of simulated worker groups. A seed determines crashes, delays, zombies, leader changes and late reads.

`support.herder_simulation` runs the state machines of real workers with a simulated coordinator and simulated topics.
Once a group is stable, each configured task must run on exactly one worker, and no configuration may be lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def simulate(*arguments: str) -> tuple[int, str]:
    """Run the simulation in its own process, in which sets always have the same order."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "support.herder_simulation", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check_seeds(first: int, count: int) -> None:
    code, output = simulate("--seed", str(first), "--count", str(count))
    assert code == 0, output


@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_simulated_worker_groups_keep_their_invariants_with_each_of_eighty_seeds(first: int) -> None:
    check_seeds(first, 40)


@pytest.mark.parametrize("seed", [153, 411, 548, 655])
def test_simulated_workers_agree_on_tasks_after_compaction_and_late_writes_of_former_leaders(seed: int) -> None:
    check_seeds(seed, 1)


@pytest.mark.parametrize("seed", [1127, 1629, 1880])
def test_simulated_worker_rejoins_after_a_connector_or_task_fails_to_start(seed: int) -> None:
    """A rebalance begins during the start. With the eager protocol, the worker rejoins only after the failed start."""
    check_seeds(seed, 1)


@pytest.mark.prove
def test_simulated_worker_groups_keep_their_invariants_with_each_of_two_thousand_seeds() -> None:
    check_seeds(80, 1920)


@pytest.mark.parametrize(
    ("mutant", "first"),
    [
        ("skip_revocation_phase", 0),
        ("keep_work_after_lost_membership", 0),
        ("report_revoked_work_as_stopped", 0),
        ("never_rewrite_task_configs", 153),
        ("never_rejoin_for_new_configs", 0),
        ("always_rejoin_for_new_configs", 0),
    ],
)
def test_worker_group_simulation_detects_each_injected_bug_within_thirty_seeds(mutant: str, first: int) -> None:
    code, output = simulate("--seed", str(first), "--count", "30", "--mutant", mutant)
    assert code == 1
    assert f"{mutant}: caught by seed" in output
