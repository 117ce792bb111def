"""The quorum's laws under seeded faults.  Replay one run with `RAFT_SEED=n pytest tests/property/test_raft_laws.py`."""

from __future__ import annotations

import os
from random import Random

import pytest

from support.raft_cluster import RaftCluster

SEEDS = [int(os.environ["RAFT_SEED"])] if "RAFT_SEED" in os.environ else range(60)


def _disturb(cluster: RaftCluster, rng: Random) -> None:
    nodes = list(cluster.nodes.values())
    node = rng.choice(nodes)
    match rng.randrange(9):
        case 0:
            if node.is_up:
                node.crash(loses_unflushed=rng.random() < 0.5)
        case 1 | 2:
            if not node.is_up:
                node.start()
        case 3:
            other = rng.choice(nodes)
            cluster.cut |= {(node.node_id, other.node_id)}
        case 4:
            cluster.cut |= {(node.node_id, other.node_id) for other in nodes}
            if rng.random() < 0.5:
                cluster.cut |= {(other.node_id, node.node_id) for other in nodes}
        case 5:
            cluster.cut.clear()
        case 6:
            cluster.loss = rng.choice((0.0, 0.1, 0.4))
            cluster.delay_max_ms = rng.choice((2, 50, 600))
        case 7:
            leader = cluster.leader()
            if leader is not None and rng.random() < 0.3:
                leader.give(lambda: leader.raft.resign(cluster.now_ms))
        case _:
            if node.is_up and node.high_watermark > node.log.log_start_offset:
                node.log.take_snapshot(cluster.committed, node.high_watermark)


def _propose(cluster: RaftCluster, rng: Random) -> None:
    node = rng.choice(list(cluster.nodes.values()))
    node.propose(f"value {cluster.now_ms}")


@pytest.mark.parametrize("seed", SEEDS)
def test_quorum_agrees_whatever_happens(seed: int) -> None:
    rng = Random(seed)
    cluster = RaftCluster(seed, voters=rng.choice((1, 2, 3, 3, 3, 5)), observers=rng.choice((0, 0, 1)))
    for node in cluster.nodes.values():
        node.start()
    try:
        for _ in range(150):
            cluster.run(rng.choice((1, 20, 100, 700)))
            if rng.random() < 0.25:
                _disturb(cluster, rng)
            for _ in range(rng.randrange(4)):
                _propose(cluster, rng)
        _heals(cluster)
    except AssertionError as error:
        raise AssertionError(f"RAFT_SEED={seed}: {error}") from error


def _heals(cluster: RaftCluster) -> None:
    """With every node and every link back, all agree on a new record soon."""
    cluster.cut.clear()
    cluster.loss, cluster.delay_max_ms = 0.0, 5
    for node in cluster.nodes.values():
        if not node.is_up:
            node.start()
    for _ in range(3):  # who leads at first may be about to lose it
        established = cluster.run(15_000, lambda: (leader := cluster.leader()) is not None and leader.is_established)
        assert established, _state(cluster)
        leader = cluster.leader()
        assert leader is not None
        leader.propose("the last")
        if cluster.run(5_000, lambda: "the last" in [value for _, value in cluster.committed[-3:]]):
            break
    end_offset = len(cluster.committed)
    everybody = cluster.nodes.values()
    agree = cluster.run(5_000, lambda: all(node.high_watermark >= end_offset for node in everybody))
    assert agree, _state(cluster)


def _is_committed(cluster: RaftCluster, wanted: str) -> bool:
    return any(value == wanted for _, value in cluster.committed[-5:])


def _state(cluster: RaftCluster) -> str:
    return "; ".join(
        f"node {node.node_id}: {type(node.raft.role).__name__} of epoch {node.raft.epoch}, "
        f"committed {node.high_watermark} of {node.log.log_end_offset}"
        for node in cluster.nodes.values()
    )
