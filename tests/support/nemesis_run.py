"""Three nodes that are hurt in one way after the other (`support.nemeses`) under real clients, and what comes of it.

    python nemesis_run.py DIR SECONDS SEED    in a room (`support.namespaces`), with a pipe as standard input

Each episode hurts the cluster, waits, and mends it; then everything has to work again within a bounded time.  In the
end all that clients were told is compared with what the topic holds (`integration.history`), and the replicas with each
other.  Ends with status 0 when there is nothing to find; prints one line per episode, and one per violation.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from integration.history import Commit, Read, errors, longest_pause_s, violations
from support.cluster_load import create_topic
from support.isolated_cluster import IsolatedCluster
from support.namespaces import Network, end_with_parent
from support.nemeses import NEMESES
from support.recorded_clients import Clients

TOPIC = "history"
PARTITIONS = 6
_NODES = 3
_DISK_MIB = 1024
_LASTS_S = (2.0, 5.0, 11.0)
"""How long harm lasts: shorter and longer than the session of a broker (9 s)."""
_LASTS_LONG_S = (16.0, 40.0)
"""In long runs: longer than followers may lag (30 s)."""
_LONG_RUN_S = 600.0
_WORKS_AGAIN_S = 60.0
_TELL_EVERY_S = 10.0
_QUIET_S = 1.0
_NEW_ACKNOWLEDGEMENTS = 20


class Unavailable(Exception):
    """Something does not work again although everything is mended."""


class Run:
    """The cluster, its clients, and what was done to it."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.network = Network(_NODES)
        self.cluster = IsolatedCluster(self.network, directory, _DISK_MIB, {"min.insync.replicas": "2"})
        self.clients = Clients(self.cluster.bootstrap_servers, TOPIC, PARTITIONS)
        self.faults: list[str] = []
        self.episodes: Counter[str] = Counter()
        self.works_again_s: list[float] = []
        self.pauses_s: dict[str, tuple[float, float]] = {}
        """By kind: the longest time in which nothing was acknowledged, and in which nothing was in some partition."""
        self.may_be_down: set[int] = set()
        self._started_s = time.monotonic()

    def begin(self) -> None:
        """Start everything."""
        self.cluster.start()
        create_topic(self.cluster.bootstrap_servers, TOPIC, PARTITIONS)
        self.clients.start()
        self.await_working()
        self.clients.is_whole.set()

    def tell(self, line: str) -> None:
        """A line of what happens."""
        print(f"[{time.monotonic() - self._started_s:7.1f} s] {line}", flush=True)

    def episode(self, name: str, lasts_s: float) -> None:
        """Hurt, wait, mend, and wait until all works again.  Raises Unavailable."""
        self.clients.is_whole.clear()
        began = len(self.clients.events)
        what = NEMESES[name](self)
        time.sleep(lasts_s)
        self._note_dead()
        self.mend()
        steps = self.await_working()
        self.clients.is_whole.set()
        self.works_again_s.append(max(steps.values()))
        self.episodes[name] += 1
        events = self.clients.events[began:]
        pause_s = longest_pause_s(events)
        of_one_s = max(longest_pause_s(events, partition) for partition in self.clients.partitions)
        before = self.pauses_s.get(name, (0.0, 0.0))
        self.pauses_s[name] = max(before[0], pause_s), max(before[1], of_one_s)
        mended = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in steps.items())
        pauses = f"longest pause {pause_s:.1f} s, of one partition {of_one_s:.1f} s"
        self.tell(f"{name}: {what}, for {lasts_s:.0f} s; {pauses}; after mending: {mended}")

    def _note_dead(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.is_running and node.node_id not in self.may_be_down:
                self.faults.append(f"node {node.node_id} ended by itself, with status {node.status}")

    def mend(self) -> None:
        """Undo everything."""
        self.network.join()
        self.network.widen()
        for node in self.cluster.nodes.values():
            node.disk.free()
            node.send(signal.SIGCONT)
            if not node.is_running:
                node.launch()
        self.may_be_down.clear()

    def await_working(self, new_records: int = _NEW_ACKNOWLEDGEMENTS) -> dict[str, float]:
        """Wait until all replicas are in sync, and whoever writes, reads or commits has got on.

        Returns after how many seconds each did.  Raises Unavailable.
        """
        clients = self.clients
        sent = {name: count + new_records for name, count in clients.sent.items()}
        ends = dict(clients.acknowledged)
        lacking: dict[str, Callable[[], str]] = {
            "in sync": self._not_in_sync,
            "acknowledged": lambda: _behind(clients.acknowledgements, sent) and self._unacknowledged(),
            "read": lambda: _behind(clients.read, ends),
            "committed": lambda: _behind(clients.committed, ends),
        }
        return self._await(lacking)

    def _await(self, lacking: dict[str, Callable[[], str]]) -> dict[str, float]:
        """Wait until none of these says what it lacks."""
        began_s = told_s = time.monotonic()
        steps: dict[str, float] = {}
        while True:
            lacks = {name: what for name, look in lacking.items() if name not in steps and (what := look())}
            seconds = time.monotonic() - began_s
            steps |= {name: seconds for name in lacking if name not in lacks and name not in steps}
            if not lacks:
                return steps
            for node in self.cluster.nodes.values():
                if not node.is_running:
                    raise Unavailable(f"node {node.node_id} ended with status {node.status}: {node.log[-400:]}")
            if time.monotonic() > told_s + _TELL_EVERY_S:
                told_s = time.monotonic()
                self.tell(f"still lacking: {lacks}")
            if seconds > _WORKS_AGAIN_S:
                raise Unavailable(f"{_WORKS_AGAIN_S:.0f} s after all was mended: {lacks}")
            time.sleep(0.05)

    def _unacknowledged(self) -> str:
        return f"partitions without an acknowledgement, in seconds: {self.clients.unacknowledged()}"

    def await_in_sync(self) -> None:
        """Wait until every partition has all its replicas in sync.  Raises Unavailable."""
        self._await({"in sync": self._not_in_sync})

    def _not_in_sync(self) -> str:
        return self.cluster.lacking(TOPIC)

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop the clients, and compare everything."""
        clients = self.clients
        clients.stop_sending(_WORKS_AGAIN_S)
        self.await_working(new_records=0)
        logs = clients.read_back()
        clients.stop()
        self.faults += violations(clients.events, logs)
        self.cluster.stop()
        for partition in clients.partitions:
            replicas = self.cluster.replicas(TOPIC, partition)
            if len(set(replicas.values())) > 1:
                sizes = {node: len(data) for node, data in replicas.items()}
                self.faults.append(f"the replicas of partition {partition} differ, bytes by node: {sizes}")

    def summary(self) -> str:
        """What was done and seen."""
        events = self.clients.events
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.episodes.items()))
        pauses = ", ".join(f"{name} {all_s:.1f}/{one_s:.1f}" for name, (all_s, one_s) in sorted(self.pauses_s.items()))
        epochs = sum(self.cluster.leader_epoch(TOPIC, partition) for partition in self.clients.partitions)
        return f"""\
{sum(self.episodes.values())} episodes in {time.monotonic() - self._started_s:.0f} s: {kinds}
{sum(self.clients.sent.values())} records sent, {sum(self.clients.acknowledgements.values())} acknowledged; \
{sum(isinstance(event, Read) for event in events)} reads, {sum(isinstance(event, Commit) for event in events)} commits
longest pause without an acknowledgement {longest_pause_s(events):.1f} s; \
by kind, of all and of one partition: {pauses}
all worked again within {max(self.works_again_s, default=0.0):.1f} s of being mended
{self.cluster.elections()} controllers were elected; leader epochs of {PARTITIONS} partitions sum up to {epochs}"""


def _behind(reached: Mapping[Any, int], wanted: Mapping[Any, int]) -> str:
    lacking = {key: f"{reached[key]} of {goal}" for key, goal in wanted.items() if reached[key] < goal}
    return str(lacking) if lacking else ""


def main(directory: str, seconds: str, seed: str) -> int:
    """Run for so long, each kind at least once; returns the exit status."""
    end_with_parent()
    run = Run(Path(directory), int(seed))
    lasts_s = _LASTS_S if float(seconds) < _LONG_RUN_S else (*_LASTS_S, *_LASTS_LONG_S)
    try:
        run.begin()
        until_s = time.monotonic() + float(seconds)
        while time.monotonic() < until_s:
            for name in run.rng.sample(list(NEMESES), len(NEMESES)):
                run.episode(name, run.rng.choice(lasts_s))
                time.sleep(_QUIET_S)
                if run.episodes.keys() >= NEMESES.keys() and time.monotonic() > until_s:
                    break
        run.end()
    except Unavailable as error:
        run.faults.append(f"unavailable: {error}")
        run.faults += errors(run.clients.events)
    print(run.summary())
    for fault in run.faults:
        print(f"VIOLATION {fault}")
    if run.faults:
        _keep(run, Path(directory))
    return 1 if run.faults else 0


def _keep(run: Run, directory: Path) -> None:
    """What the small disks hold goes with the room: keep it, and the history, for whoever looks for the cause."""
    (directory / "history.txt").write_text("".join(f"{event}\n" for event in run.clients.events))
    for node in run.cluster.nodes.values():
        node.kill()
        shutil.copytree(node.disk.path, directory / "found" / node.disk.path.name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
