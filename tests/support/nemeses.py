"""Everything that can happen to three nodes: each function hurts them and says in words what it has done.

To networks: a node cut off, one way only, in two, in three, from the controller only, two nodes from each other, for
moments, thin links.  To processes: killed, frozen, restarted.  To disks: full.  And several of these at once.  Undoing
them is the run's part.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.nemesis_run import Run

_CLIENTS = 0
_FLAPS_S = 0.3
_THIN_KBIT = 200


def _victim(run: Run) -> int:
    """A node; the active controller as often as all others."""
    return run.cluster.active_controller() if run.rng.random() < 0.5 else run.rng.choice(list(run.network.machines))


def _others(run: Run, *nodes: int) -> set[int]:
    return set(run.network.machines) - set(nodes)


def _kill(run: Run) -> str:
    victim = _victim(run)
    run.may_be_down.add(victim)
    run.cluster.nodes[victim].kill()
    return f"node {victim} killed"


def _kill_all(run: Run) -> str:
    """What the processes wrote is with the kernel: nothing may be lost, although nobody is known to be in sync."""
    for node in run.cluster.nodes.values():
        run.may_be_down.add(node.node_id)
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
            run.faults.append(f"node {node.node_id} was stopped and ended with status {node.status}")
        node.launch()
        run.await_in_sync()
    return "every node restarted in turn"


def _cut_off(run: Run) -> str:
    victim = _victim(run)
    run.network.cut_both_ways([victim], [_CLIENTS, *_others(run, victim)])
    return f"node {victim} cut off from everybody"


def _mute(run: Run) -> str:
    victim = _victim(run)
    run.network.cut([victim], [_CLIENTS, *_others(run, victim)])
    return f"what node {victim} sends is lost"


def _deaf(run: Run) -> str:
    victim = _victim(run)
    run.network.cut([_CLIENTS, *_others(run, victim)], [victim])
    return f"what is sent to node {victim} is lost"


def _minority(run: Run) -> str:
    """Clients reach both sides; or one of them only, the smaller one too."""
    victim = _victim(run)
    run.network.cut_both_ways([victim], _others(run, victim))
    side = run.rng.choice(["both sides", "the smaller side", "the larger side"])
    if side != "both sides":
        unreached = _others(run, victim) if side == "the smaller side" else {victim}
        run.network.cut_both_ways([_CLIENTS], unreached)
    return f"node {victim} apart from the other two, clients reach {side}"


def _apart(run: Run) -> str:
    for node in run.network.machines:
        run.network.cut([node], _others(run, node))
    return "every node alone, reached by clients"


def _no_controller(run: Run) -> str:
    controller = run.cluster.active_controller()
    victim = run.rng.choice(sorted(_others(run, controller)))
    ways = run.rng.choice(["both ways", "to it", "from it"])
    if ways != "from it":
        run.network.cut([victim], [controller])
    if ways != "to it":
        run.network.cut([controller], [victim])
    return f"node {victim} cut from the controller {controller} only ({ways})"


def _pair(run: Run) -> str:
    controller = run.cluster.active_controller()
    one, other = sorted(_others(run, controller))
    run.network.cut_both_ways([one], [other])
    return f"nodes {one} and {other} lose each other, controller {controller} has both"


def _flapping(run: Run) -> str:
    victim = _victim(run)
    for _ in range(10):
        run.network.cut_both_ways([victim], [_CLIENTS, *_others(run, victim)])
        time.sleep(run.rng.random() * _FLAPS_S)
        run.network.join()
        time.sleep(run.rng.random() * _FLAPS_S)
    return f"node {victim} cut off for moments, ten times"


def _slow(run: Run) -> str:
    victims = [_victim(run)] if run.rng.random() < 0.5 else list(run.network.machines)
    for victim in victims:
        run.network.slow(victim, _THIN_KBIT)
    return f"thin links to nodes {victims}"


def _full_disk(run: Run) -> str:
    victim = _victim(run)
    run.may_be_down.add(victim)  # it leaves to the others what it cannot write
    run.cluster.nodes[victim].disk.fill()
    return f"disk of node {victim} full"


def _full_disks(run: Run) -> str:
    for node in run.cluster.nodes.values():
        run.may_be_down.add(node.node_id)
        node.disk.fill()
    return "all disks full"


def _all_at_once(run: Run) -> str:
    """Several of the others within a few seconds."""
    done = []
    for nemesis in run.rng.sample(_MIXED, run.rng.randint(2, 4)):
        done.append(nemesis(run))
        time.sleep(run.rng.random() * 2)
    return "; ".join(done)


_MIXED = [_kill, _freeze, _cut_off, _mute, _deaf, _minority, _no_controller, _pair, _slow, _full_disk]
NEMESES: dict[str, Callable[[Run], str]] = {
    "kill": _kill,
    "kill all": _kill_all,
    "freeze": _freeze,
    "restart": _restart,
    "cut off": _cut_off,
    "mute": _mute,
    "deaf": _deaf,
    "minority": _minority,
    "apart": _apart,
    "no controller": _no_controller,
    "pair": _pair,
    "flapping": _flapping,
    "slow": _slow,
    "full disk": _full_disk,
    "full disks": _full_disks,
    "all at once": _all_at_once,
}
