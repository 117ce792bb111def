"""Checks the quorum's invariants under random faults, which are generated from a seed.

Replay one seed with `RAFT_SEED=n pytest tests/property/test_raft_invariants.py`.
"""

from __future__ import annotations

import os

import pytest

from support.raft_cluster import run_figure_8, run_seed

SEEDS = [int(os.environ["RAFT_SEED"])] if "RAFT_SEED" in os.environ else range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_raft_quorum_keeps_its_invariants_under_random_faults(seed: int) -> None:
    try:
        run_seed(seed)
    except AssertionError as error:
        raise AssertionError(f"RAFT_SEED={seed}: {error}") from error


@pytest.mark.parametrize("seed", range(5))
def test_raft_leader_does_not_commit_a_record_of_an_earlier_epoch_by_counting_its_replicas(seed: int) -> None:
    """Rule R9 in docs/broker.md: a leader commits records of earlier epochs only with a record of its own epoch."""
    run_figure_8(seed)
