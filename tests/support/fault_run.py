"""Runs a three-node cluster and real clients, applies one fault after another, and checks the data.

    python fault_run.py DIR SECONDS SEED    in a sandbox (`support.namespaces`), with a pipe as standard input

Each round applies a fault (`support.cluster_faults`), waits, and repairs the cluster. Within a time limit, all
replicas must then be in sync and all clients must make progress.

At the end, the program compares the clients' history with the contents of the topic (`integration.history`), and the
replicas with each other. The program prints one line per round and one line per violation. It exits with status 0 if
there is no violation.
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
from support.cluster_faults import FAULTS
from support.cluster_load import create_topic
from support.isolated_cluster import IsolatedCluster
from support.namespaces import Network, end_with_parent
from support.recorded_clients import RecordedClients

TOPIC = "history"
PARTITIONS = 6
_NODES = 3
_DISK_MIB = 1024
_DURATIONS_S = (2.0, 5.0, 11.0)
"""The possible durations of a fault: shorter and longer than a broker's session timeout (9 s)."""
_LONG_RUN_DURATIONS_S = (16.0, 40.0)
"""Additional durations in long runs; the longest exceeds replica.lag.time.max.ms (30 s)."""
_LONG_RUN_S = 600.0
_RECOVERY_TIMEOUT_S = 60.0
_PRINT_EVERY_S = 10.0
_QUIET_S = 1.0
_NEW_ACKNOWLEDGEMENTS = 20


class NotRecoveredError(Exception):
    """The cluster did not recover after all faults were undone."""


class Run:
    """The cluster, its clients, and the results of the rounds."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.network = Network(_NODES)
        self.cluster = IsolatedCluster(self.network, directory, _DISK_MIB, {"min.insync.replicas": "2"})
        self.clients = RecordedClients(self.cluster.bootstrap_servers, TOPIC, PARTITIONS)
        self.problems: list[str] = []
        self.rounds: Counter[str] = Counter()
        self.recovery_times_s: list[float] = []
        self.pauses_s: dict[str, tuple[float, float]] = {}
        """For each fault: the longest time in which no partition had an acknowledgement, and the longest time in which
        a single partition had no acknowledgement."""
        self.may_be_dead: set[int] = set()
        self._started_s = time.monotonic()

    def begin(self) -> None:
        """Start the cluster and the clients."""
        self.cluster.start()
        create_topic(self.cluster.bootstrap_servers, TOPIC, PARTITIONS)
        self.clients.start()
        self.await_recovered()
        self.clients.cluster_is_healthy.set()

    def print_line(self, line: str) -> None:
        """Print a line with the elapsed time."""
        print(f"[{time.monotonic() - self._started_s:7.1f} s] {line}", flush=True)

    def run_round(self, name: str, duration_s: float) -> None:
        """Apply the fault `name` for `duration_s`, undo it, and wait until the cluster has recovered.

        Raises NotRecoveredError.
        """
        self.clients.cluster_is_healthy.clear()
        began = len(self.clients.events)
        description = FAULTS[name](self)
        time.sleep(duration_s)
        self._check_for_unexpected_exits()
        self.heal()
        steps = self.await_recovered()
        self.clients.cluster_is_healthy.set()
        self.recovery_times_s.append(max(steps.values()))
        self.rounds[name] += 1
        events = self.clients.events[began:]
        pause_s = longest_pause_s(events)
        of_one_s = max(longest_pause_s(events, partition) for partition in self.clients.partitions)
        before = self.pauses_s.get(name, (0.0, 0.0))
        self.pauses_s[name] = max(before[0], pause_s), max(before[1], of_one_s)
        recovered = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in steps.items())
        pauses = f"longest pause {pause_s:.1f} s, of one partition {of_one_s:.1f} s"
        self.print_line(f"{name}: {description}, for {duration_s:.0f} s; {pauses}; after healing: {recovered}")

    def _check_for_unexpected_exits(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.is_running and node.node_id not in self.may_be_dead:
                self.problems.append(f"node {node.node_id} exited by itself, with status {node.status}")

    def heal(self) -> None:
        """Undo all faults."""
        self.network.heal()
        self.network.unthrottle()
        for node in self.cluster.nodes.values():
            node.disk.free()
            node.send(signal.SIGCONT)
            if not node.is_running:
                node.launch()
        self.may_be_dead.clear()

    def await_recovered(self, new_records: int = _NEW_ACKNOWLEDGEMENTS) -> dict[str, float]:
        """Wait until the cluster and all clients have recovered.

        All replicas must be in sync. For each producer, all records sent so far and `new_records` more must be
        acknowledged. The consumer must have read all records that are acknowledged at the time of the call. The
        consumer group must have committed the offsets of these records.

        Returns the seconds until each condition was met. Raises NotRecoveredError.
        """
        clients = self.clients
        sent = {name: count + new_records for name, count in clients.sent.items()}
        ends = dict(clients.acknowledged)
        pending: dict[str, Callable[[], str]] = {
            "in sync": self._not_in_sync,
            "acknowledged": lambda: _behind(clients.acknowledgements, sent) and self._unacknowledged(),
            "read": lambda: _behind(clients.read, ends),
            "committed": lambda: _behind(clients.committed, ends),
        }
        return self._await_all(pending)

    def _await_all(self, pending: dict[str, Callable[[], str]]) -> dict[str, float]:
        """Wait until every function in `pending` has returned an empty string.

        The keys of `pending` name the conditions. Return the seconds after which each condition was met.
        """
        began_s = printed_s = time.monotonic()
        steps: dict[str, float] = {}
        while True:
            still_pending = {
                name: reason for name, check in pending.items() if name not in steps and (reason := check())
            }
            seconds = time.monotonic() - began_s
            steps |= {name: seconds for name in pending if name not in still_pending and name not in steps}
            if not still_pending:
                return steps
            for node in self.cluster.nodes.values():
                if not node.is_running:
                    raise NotRecoveredError(f"node {node.node_id} exited with status {node.status}: {node.log[-400:]}")
            if time.monotonic() > printed_s + _PRINT_EVERY_S:
                printed_s = time.monotonic()
                self.print_line(f"still pending: {still_pending}")
            if seconds > _RECOVERY_TIMEOUT_S:
                raise NotRecoveredError(f"{_RECOVERY_TIMEOUT_S:.0f} s after healing: {still_pending}")
            time.sleep(0.05)

    def _unacknowledged(self) -> str:
        return f"partitions without an acknowledgement, in seconds: {self.clients.seconds_without_acknowledgement()}"

    def await_in_sync(self) -> None:
        """Wait until every partition has all its replicas in sync. Raises NotRecoveredError."""
        self._await_all({"in sync": self._not_in_sync})

    def _not_in_sync(self) -> str:
        return self.cluster.unhealthy_reason(TOPIC)

    # -- results -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop the clients, check the history, and compare the replicas."""
        clients = self.clients
        clients.stop_sending(_RECOVERY_TIMEOUT_S)
        self.await_recovered(new_records=0)
        logs = clients.read_logs()
        clients.stop()
        self.problems += violations(clients.events, logs)
        self.cluster.stop()
        for partition in clients.partitions:
            replicas = self.cluster.replicas(TOPIC, partition)
            if len(set(replicas.values())) > 1:
                sizes = {node: len(data) for node, data in replicas.items()}
                self.problems.append(f"the replicas of partition {partition} differ, bytes by node: {sizes}")

    def summary(self) -> str:
        """Return a summary of the rounds and of the clients' results."""
        events = self.clients.events
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.rounds.items()))
        pauses = ", ".join(f"{name} {all_s:.1f}/{one_s:.1f}" for name, (all_s, one_s) in sorted(self.pauses_s.items()))
        epochs = sum(self.cluster.leader_epoch(TOPIC, partition) for partition in self.clients.partitions)
        return f"""\
{sum(self.rounds.values())} rounds in {time.monotonic() - self._started_s:.0f} s: {kinds}
{sum(self.clients.sent.values())} records sent, {sum(self.clients.acknowledgements.values())} acknowledged; \
{sum(isinstance(event, Read) for event in events)} reads, {sum(isinstance(event, Commit) for event in events)} commits
longest pause without an acknowledgement {longest_pause_s(events):.1f} s; \
by kind, of all and of one partition: {pauses}
longest recovery after healing {max(self.recovery_times_s, default=0.0):.1f} s
{self.cluster.elections()} controllers elected; sum of the leader epochs of {PARTITIONS} partitions {epochs}"""


def _behind(reached: Mapping[Any, int], wanted: Mapping[Any, int]) -> str:
    pending = {key: f"{reached[key]} of {goal}" for key, goal in wanted.items() if reached[key] < goal}
    return str(pending) if pending else ""


def main(directory: str, seconds: str, seed: str) -> int:
    """Apply faults for at least `seconds`, in an order that `seed` determines. Return the exit status.

    Each kind of fault is applied at least once.
    """
    end_with_parent()
    run = Run(Path(directory), int(seed))
    durations_s = _DURATIONS_S if float(seconds) < _LONG_RUN_S else (*_DURATIONS_S, *_LONG_RUN_DURATIONS_S)
    try:
        run.begin()
        until_s = time.monotonic() + float(seconds)
        while time.monotonic() < until_s:
            for name in run.rng.sample(list(FAULTS), len(FAULTS)):
                run.run_round(name, run.rng.choice(durations_s))
                time.sleep(_QUIET_S)
                if run.rounds.keys() >= FAULTS.keys() and time.monotonic() > until_s:
                    break
        run.end()
    except NotRecoveredError as error:
        run.problems.append(f"unavailable: {error}")
        run.problems += errors(run.clients.events)
    print(run.summary())
    for problem in run.problems:
        print(f"VIOLATION {problem}")
    if run.problems:
        _keep(run, Path(directory))
    return 1 if run.problems else 0


def _keep(run: Run, directory: Path) -> None:
    """Save the nodes' disks and the history for debugging, because the disks disappear when the program ends."""
    (directory / "history.txt").write_text("".join(f"{event}\n" for event in run.clients.events))
    for node in run.cluster.nodes.values():
        node.kill()
        shutil.copytree(node.disk.path, directory / "found" / node.disk.path.name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
