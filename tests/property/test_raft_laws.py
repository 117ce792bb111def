"""The quorum's laws under seeded faults.  Replay one run with `RAFT_SEED=n pytest tests/property/test_raft_laws.py`."""

from __future__ import annotations

import os

import pytest

from support.raft_cluster import run_seed, run_uncounted_record

SEEDS = [int(os.environ["RAFT_SEED"])] if "RAFT_SEED" in os.environ else range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_quorum_agrees_whatever_happens(seed: int) -> None:
    try:
        run_seed(seed)
    except AssertionError as error:
        raise AssertionError(f"RAFT_SEED={seed}: {error}") from error


@pytest.mark.parametrize("seed", range(5))
def test_a_record_of_an_earlier_epoch_is_not_committed_by_counting(seed: int) -> None:
    """R9: a leader commits a record of its own epoch first."""
    run_uncounted_record(seed)
