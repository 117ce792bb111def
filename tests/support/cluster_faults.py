"""The faults that `fault_run` causes. Each function causes one kind of fault, and returns a description of the fault.

There are three nodes, and three groups of faults:

- Network faults: a node is isolated in one or both directions; the cluster is split into two or three parts; a node
  cannot reach the active controller; two nodes cannot reach each other; connections are interrupted for a short time;
  bandwidth is low.
- Process faults: nodes are killed, frozen or restarted.
- Disk fault: a disk is full.

`_all_at_once` causes several of these faults within a few seconds. `Run.heal` undoes all faults.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.fault_run import Run

_CLIENTS = 0
_FLAPS_S = 0.3
_LOW_RATE_KBIT = 200


def _victim(run: Run) -> int:
    """Return the active controller in half of the cases, and a random node otherwise."""
    return run.cluster.active_controller() if run.rng.random() < 0.5 else run.rng.choice(list(run.network.machines))


def _others(run: Run, *nodes: int) -> set[int]:
    return set(run.network.machines) - set(nodes)


def _kill(run: Run) -> str:
    victim = _victim(run)
    run.may_be_dead.add(victim)
    run.cluster.nodes[victim].kill()
    return f"node {victim} killed"


def _kill_all(run: Run) -> str:
    """Kill all nodes. No record may be lost, because the page cache keeps all written data."""
    for node in run.cluster.nodes.values():
        run.may_be_dead.add(node.node_id)
        node.kill()
    return "all nodes killed"


def _freeze(run: Run) -> str:
    victim = _victim(run)
    run.cluster.nodes[victim].send(signal.SIGSTOP)
    return f"node {victim} frozen"


def _restart(run: Run) -> str:
    for node in run.cluster.nodes.values():
        node.stop()
        if node.status != 0:
            run.problems.append(f"node {node.node_id} was stopped and exited with status {node.status}")
        node.launch()
        run.await_in_sync()
    return "rolling restart of all nodes"


def _isolate(run: Run) -> str:
    victim = _victim(run)
    run.network.cut_both_ways([victim], [_CLIENTS, *_others(run, victim)])
    return f"node {victim} isolated from nodes and clients"


def _lose_outbound(run: Run) -> str:
    victim = _victim(run)
    run.network.cut([victim], [_CLIENTS, *_others(run, victim)])
    return f"packets from node {victim} are lost"


def _lose_inbound(run: Run) -> str:
    victim = _victim(run)
    run.network.cut([_CLIENTS, *_others(run, victim)], [victim])
    return f"packets to node {victim} are lost"


def _partition_minority(run: Run) -> str:
    """Cut one node off from the others. A random choice decides whether clients reach both sides or only one side."""
    victim = _victim(run)
    run.network.cut_both_ways([victim], _others(run, victim))
    side = run.rng.choice(["both sides", "the smaller side", "the larger side"])
    if side != "both sides":
        unreachable = _others(run, victim) if side == "the smaller side" else {victim}
        run.network.cut_both_ways([_CLIENTS], unreachable)
    return f"node {victim} cut from the other two, clients reach {side}"


def _cut_all(run: Run) -> str:
    for node in run.network.machines:
        run.network.cut([node], _others(run, node))
    return "all nodes cut from each other, clients reach all"


def _cut_from_controller(run: Run) -> str:
    controller = run.cluster.active_controller()
    victim = run.rng.choice(sorted(_others(run, controller)))
    ways = run.rng.choice(["both ways", "to it", "from it"])
    if ways != "from it":
        run.network.cut([victim], [controller])
    if ways != "to it":
        run.network.cut([controller], [victim])
    return f"node {victim} cut from the controller {controller} only ({ways})"


def _cut_pair(run: Run) -> str:
    controller = run.cluster.active_controller()
    one, other = sorted(_others(run, controller))
    run.network.cut_both_ways([one], [other])
    return f"nodes {one} and {other} cut from each other, both connected to controller {controller}"


def _flap(run: Run) -> str:
    victim = _victim(run)
    for _ in range(10):
        run.network.cut_both_ways([victim], [_CLIENTS, *_others(run, victim)])
        time.sleep(run.rng.random() * _FLAPS_S)
        run.network.heal()
        time.sleep(run.rng.random() * _FLAPS_S)
    return f"node {victim} isolated ten times for a moment"


def _throttle(run: Run) -> str:
    victims = [_victim(run)] if run.rng.random() < 0.5 else list(run.network.machines)
    for victim in victims:
        run.network.throttle(victim, _LOW_RATE_KBIT)
    return f"low bandwidth to nodes {victims}"


def _full_disk(run: Run) -> str:
    victim = _victim(run)
    run.may_be_dead.add(victim)  # a node exits if it cannot write
    run.cluster.nodes[victim].disk.fill()
    return f"disk of node {victim} full"


def _full_disks(run: Run) -> str:
    for node in run.cluster.nodes.values():
        run.may_be_dead.add(node.node_id)
        node.disk.fill()
    return "all disks full"


def _all_at_once(run: Run) -> str:
    """Apply several faults within a few seconds."""
    done = []
    for fault in run.rng.sample(_MIXED, run.rng.randint(2, 4)):
        done.append(fault(run))
        time.sleep(run.rng.random() * 2)
    return "; ".join(done)


_MIXED = [
    _kill,
    _freeze,
    _isolate,
    _lose_outbound,
    _lose_inbound,
    _partition_minority,
    _cut_from_controller,
    _cut_pair,
    _throttle,
    _full_disk,
]
FAULTS: dict[str, Callable[[Run], str]] = {
    "kill": _kill,
    "kill all": _kill_all,
    "freeze": _freeze,
    "restart": _restart,
    "isolated": _isolate,
    "outbound lost": _lose_outbound,
    "inbound lost": _lose_inbound,
    "minority": _partition_minority,
    "all cut": _cut_all,
    "no controller": _cut_from_controller,
    "pair cut": _cut_pair,
    "flapping": _flap,
    "throttle": _throttle,
    "full disk": _full_disk,
    "full disks": _full_disks,
    "all at once": _all_at_once,
}
