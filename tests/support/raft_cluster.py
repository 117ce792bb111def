"""A simulated quorum of real Raft state machines with in-memory logs. One seed determines network faults and crashes.

The network loses, delays and duplicates messages. A crash may lose unflushed records. The simulation checks the
invariants after every input of a state machine: there is at most one leader per epoch, the high watermark never
decreases, and all nodes agree on every committed record.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from headrace_broker.protocol.notation import Request
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import (
    Flush,
    HighWatermarkAdvanced,
    LeaderChanged,
    Persist,
    SendRequest,
    SendResponse,
    SnapshotLoaded,
)
from headrace_broker.raft.leader import Leader
from headrace_broker.raft.log_port import OffsetAndEpoch
from headrace_broker.raft.quorum_state import QuorumState

Entry = tuple[int, Any]


class MemoryRaftLog:
    """A log of (epoch, value) entries that starts at `log_start_offset`.

    `snapshots` contains the entries before this offset.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.log_start_offset = 0
        self.flushed_offset = 0
        self.snapshots: dict[OffsetAndEpoch, bytes] = {}
        self.entries_per_read = 3
        self._loading = b""

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.entries)

    @property
    def last_fetched_epoch(self) -> int:
        if self.entries:
            return self.entries[-1][0]
        snapshot = self.latest_snapshot()
        return 0 if snapshot is None else snapshot[1]

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        known = [(offset, entry[0]) for offset, entry in enumerate(self.entries, self.log_start_offset)]
        below = [(offset, entry_epoch) for offset, entry_epoch in known if entry_epoch <= epoch]
        if below:
            return below[-1][0] + 1, below[-1][1]
        first = self.earliest_snapshot()
        return first if first is not None else (self.log_start_offset, epoch if not known else 0)

    def read(self, offset: int, size_bytes_max: int) -> bytes:
        return pickle.dumps(self.entries[offset - self.log_start_offset :][: self.entries_per_read])

    def append_as_follower(self, records: bytes) -> None:
        self.entries += pickle.loads(records)

    def append_leader_change(self, epoch: int, leader_id: int, voters: Sequence[int], granting: Sequence[int]) -> None:
        self.entries.append((epoch, f"leader {leader_id}"))

    def truncate_to(self, offset: int) -> None:
        del self.entries[offset - self.log_start_offset :]
        self.flushed_offset = min(self.flushed_offset, offset)

    def earliest_snapshot(self) -> OffsetAndEpoch | None:
        return next((known for known in sorted(self.snapshots) if known[0] == self.log_start_offset), None)

    def latest_snapshot(self) -> OffsetAndEpoch | None:
        return max(self.snapshots, default=None)

    def read_snapshot(self, snapshot: OffsetAndEpoch, position: int, size_bytes_max: int) -> tuple[int, bytes] | None:
        data = self.snapshots.get(snapshot)
        return None if data is None else (len(data), data[position : position + 40])

    def append_snapshot(self, snapshot: OffsetAndEpoch, position: int, data: bytes) -> None:
        self._loading = self._loading[:position] + data

    def finish_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        self.snapshots = {snapshot: self._loading}
        self.entries.clear()
        self.log_start_offset = self.flushed_offset = snapshot[0]

    def take_snapshot(self, committed: Sequence[Entry], end_offset: int) -> None:
        """Replace the entries below `end_offset` with a snapshot. `committed` contains all committed entries."""
        epoch = committed[end_offset - 1][0]
        self.snapshots[end_offset, epoch] = pickle.dumps(list(committed[:end_offset]))
        del self.entries[: end_offset - self.log_start_offset]
        self.log_start_offset = end_offset
        self.snapshots = {known: data for known, data in self.snapshots.items() if known[0] >= end_offset}


class Node:
    """One node: a Raft state machine, its disk, and the inputs that are queued while a `Persist` is in progress."""

    def __init__(self, cluster: RaftCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.log = MemoryRaftLog()
        self.persisted = QuorumState()
        self.is_up = False
        self.incarnation = 0
        self.raft: Raft
        self._inbox: list[Callable[[], list[Any]]] = []
        self._effects: list[Any] = []
        self._is_persisting = False
        self._is_flushing = False
        self._scheduled_tick_ms = -1

    def start(self) -> None:
        self.incarnation += 1
        self.is_up = True
        self._inbox, self._effects = [], []
        self._is_persisting = self._is_flushing = False
        self._scheduled_tick_ms = -1
        config = self.cluster.config_of(self.node_id)
        self.raft = Raft(config, self.log, self.persisted, Random(self.cluster.rng.random()))
        self.high_watermark = self.log.log_start_offset
        self.submit(lambda: self.raft.start(self.cluster.now_ms))

    def crash(self, *, lose_unflushed: bool) -> None:
        self.is_up = False
        if lose_unflushed:
            kept = self.cluster.rng.randint(self.log.flushed_offset, self.log.log_end_offset)
            self.log.truncate_to(kept)
        self.log.flushed_offset = self.log.log_end_offset  # recovery flushes the records that survived

    def submit(self, step: Callable[[], list[Any]]) -> None:
        """Queue `step`, which passes one input to the state machine.

        `step` is called when all earlier inputs are processed and no `Persist` is in progress.
        """
        self._inbox.append(step)
        self._process()

    def _process(self) -> None:
        while self.is_up and not self._is_persisting:
            if self._effects:
                self._execute(self._effects.pop(0))
            elif self._inbox:
                self._effects += self._inbox.pop(0)()
                self.cluster.check_invariants(self)
            else:
                break
        if self.is_up and not self._is_persisting:
            self._schedule_tick()

    def _schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        incarnation = self.incarnation
        self.cluster.schedule(delay_ms, lambda: action() if self.is_up and self.incarnation == incarnation else None)

    def _schedule_tick(self) -> None:
        deadline_ms = self.raft.next_deadline_ms()
        if deadline_ms is None or 0 <= self._scheduled_tick_ms <= deadline_ms:
            return
        self._scheduled_tick_ms = deadline_ms

        def tick() -> None:
            if self._scheduled_tick_ms == deadline_ms:
                self._scheduled_tick_ms = -1
                self.submit(lambda: self.raft.tick(self.cluster.now_ms))

        self._schedule(max(1, deadline_ms - self.cluster.now_ms), tick)

    def _execute(self, effect: Any) -> None:
        cluster = self.cluster
        if isinstance(effect, Persist):
            self._is_persisting = True

            def persisted() -> None:
                self.persisted = effect.state
                self._is_persisting = False
                self._process()

            self._schedule(cluster.rng.randint(0, 20), persisted)
        elif isinstance(effect, SendRequest):
            cluster.send(self.node_id, effect.node_id, effect.request)
        elif isinstance(effect, SendResponse):
            effect.token(effect.response)
        elif isinstance(effect, Flush):
            self._flush()
        elif isinstance(effect, LeaderChanged):
            cluster.on_leader_changed(self.node_id, effect)
        else:
            assert isinstance(effect, HighWatermarkAdvanced | SnapshotLoaded)

    def _flush(self) -> None:
        if self._is_flushing:
            return
        self._is_flushing = True
        end_offset = self.log.log_end_offset

        def flushed() -> None:
            self._is_flushing = False
            self.log.flushed_offset = max(self.log.flushed_offset, min(end_offset, self.log.log_end_offset))
            if self.log.flushed_offset < self.log.log_end_offset:
                self._flush()
            self.submit(lambda: self.raft.on_flushed(self.cluster.now_ms))

        self._schedule(self.cluster.rng.randint(0, 20), flushed)

    @property
    def is_established(self) -> bool:
        """Whether this node is the leader and has committed a record of its own epoch."""
        return isinstance(self.raft.role, Leader) and self.raft.role.is_established

    def propose(self, value: Any) -> None:
        """Append a record if this node is the leader."""
        if self.is_up and not self._is_persisting and isinstance(self.raft.role, Leader):
            self.log.entries.append((self.raft.epoch, value))
            self.submit(lambda: self.raft.on_appended(self.cluster.now_ms))


class RaftCluster:
    """The nodes, the network between them, and the invariants."""

    def __init__(self, seed: int, voters: int = 3, observers: int = 0) -> None:
        self.rng = Random(seed)
        self.now_ms = 0
        self.voters = frozenset(range(1, voters + 1))
        self.nodes = {node_id: Node(self, node_id) for node_id in range(1, voters + observers + 1)}
        self.committed: list[Entry] = []
        self.leaders: dict[int, int] = {}
        self.blocked_links: set[tuple[int, int]] = set()
        self.loss = 0.0
        self.delay_max_ms = 10
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    def config_of(self, node_id: int) -> RaftConfig:
        return RaftConfig(node_id=node_id, voters=self.voters, cluster_id="c")

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._sequence, action))

    def run(self, duration_ms: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Run the events of the next `duration_ms`. Returns True as soon as `until()` is true, or False at the end."""
        end_ms = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
            if until():
                return True
        self.now_ms = end_ms
        return until()

    # -- the network -------------------------------------------------------------------------------------------------

    def _arrives(self, source: int, target: int) -> bool:
        return (source, target) not in self.blocked_links and self.rng.random() >= self.loss

    def _delay(self) -> int:
        return self.rng.randint(0, self.delay_max_ms)

    def send(self, source: int, target: int, request: Request[Any]) -> None:
        """Deliver a request and its response. The request times out if either message is lost."""
        sender, receiver = self.nodes[source], self.nodes[target]
        incarnation = sender.incarnation
        done: list[bool] = []

        def finish(response: Any) -> None:
            if not done and sender.is_up and sender.incarnation == incarnation:
                done.append(True)
                sender.submit(lambda: sender.raft.handle_response(target, request, response, self.now_ms))

        def respond(response: Any) -> None:
            if self._arrives(target, source):
                self.schedule(self._delay(), lambda: finish(response))

        def deliver() -> None:
            is_sender_up = sender.is_up and sender.incarnation == incarnation
            if receiver.is_up:
                receiver.submit(lambda: receiver.raft.handle_request(request, respond, self.now_ms))
            elif (target, source) not in self.blocked_links and is_sender_up and not done:
                sender.submit(lambda: sender.raft.on_connection_refused(target, self.now_ms))
                finish(None)

        for _ in range(2 if self.rng.random() < self.loss / 4 else 1):
            if self._arrives(source, target):
                self.schedule(self._delay(), deliver)
        self.schedule(1000, lambda: finish(None))

    # -- the invariants ----------------------------------------------------------------------------------------------

    def on_leader_changed(self, node_id: int, effect: LeaderChanged) -> None:
        if effect.leader_id >= 0:
            known = self.leaders.setdefault(effect.epoch, effect.leader_id)
            assert known == effect.leader_id, f"epoch {effect.epoch} has leaders {known} and {effect.leader_id}"

    def check_invariants(self, node: Node) -> None:
        high_watermark, log = node.raft.high_watermark, node.log
        assert high_watermark >= node.high_watermark, f"node {node.node_id}: the high watermark decreased"
        assert log.log_end_offset >= high_watermark, f"node {node.node_id}: log ends before its high watermark"
        for offset in range(max(node.high_watermark, log.log_start_offset), high_watermark):
            entry = log.entries[offset - log.log_start_offset]
            if offset == len(self.committed):
                self.committed.append(entry)
            assert self.committed[offset] == entry, (
                f"node {node.node_id} committed {entry} at offset {offset}, other nodes {self.committed[offset]}"
            )
        if log.log_start_offset:
            data = pickle.loads(log.snapshots[log.earliest_snapshot() or (-1, -1)])
            assert data == self.committed[: log.log_start_offset], f"node {node.node_id}: its snapshot differs"
        node.high_watermark = high_watermark

    def leader(self) -> Node | None:
        """Return the running leader with the highest epoch, or None if no leader is running."""
        leaders = [node for node in self.nodes.values() if node.is_up and isinstance(node.raft.role, Leader)]
        return max(leaders, key=lambda node: node.raft.epoch, default=None)


def _inject_fault(cluster: RaftCluster, rng: Random) -> None:
    nodes = list(cluster.nodes.values())
    node = rng.choice(nodes)
    match rng.randrange(9):
        case 0:
            if node.is_up:
                node.crash(lose_unflushed=rng.random() < 0.5)
        case 1 | 2:
            if not node.is_up:
                node.start()
        case 3:
            other = rng.choice(nodes)
            cluster.blocked_links |= {(node.node_id, other.node_id)}
        case 4:
            cluster.blocked_links |= {(node.node_id, other.node_id) for other in nodes}
            if rng.random() < 0.5:
                cluster.blocked_links |= {(other.node_id, node.node_id) for other in nodes}
        case 5:
            cluster.blocked_links.clear()
        case 6:
            cluster.loss = rng.choice((0.0, 0.1, 0.4))
            cluster.delay_max_ms = rng.choice((2, 50, 600))
        case 7:
            leader = cluster.leader()
            if leader is not None and rng.random() < 0.3:
                leader.submit(lambda: leader.raft.resign(cluster.now_ms))
        case _:
            if node.is_up and node.high_watermark > node.log.log_start_offset:
                node.log.take_snapshot(cluster.committed, node.high_watermark)


def _propose(cluster: RaftCluster, rng: Random) -> None:
    node = rng.choice(list(cluster.nodes.values()))
    node.propose(f"value {cluster.now_ms}")


def run_seed(seed: int) -> None:
    """Run a quorum with the faults that `seed` determines.

    Raises AssertionError if an invariant is violated, or if the quorum does not recover after the faults.
    """
    rng = Random(seed)
    cluster = RaftCluster(seed, voters=rng.choice((1, 2, 3, 3, 3, 5)), observers=rng.choice((0, 0, 1)))
    entries_per_read = rng.choice((1, 3, 10))
    for node in cluster.nodes.values():
        node.log.entries_per_read = entries_per_read
        node.start()
    for _ in range(150):
        cluster.run(rng.choice((1, 20, 100, 700)))
        if rng.random() < 0.25:
            _inject_fault(cluster, rng)
        for _ in range(rng.randrange(4)):
            _propose(cluster, rng)
    _check_recovery(cluster)


def run_figure_8(seed: int) -> None:
    """Run figure 8 of the Raft paper: a record of an earlier epoch reaches a majority, but is overwritten later.

    Overwriting the record is correct as long as no leader has committed it by counting replicas. Raises AssertionError
    if an invariant is violated, or if the cluster does not reach the situation of the figure.
    """
    cluster = RaftCluster(seed)
    for node in cluster.nodes.values():
        node.log.entries_per_read = 1
        node.start()
    first = _wait_for_leader(cluster)
    others = [node for node in cluster.nodes.values() if node is not first]
    _isolate(cluster, first)
    offset = first.log.log_end_offset
    first.propose("not committed")
    first.crash(lose_unflushed=False)
    cluster.blocked_links.clear()
    second = _wait_for_leader(cluster, on_elected=lambda node: _isolate(cluster, node))
    second.crash(lose_unflushed=False)
    third = next(node for node in others if node is not second)
    cluster.blocked_links.clear()
    first.start()

    def is_replicated() -> bool:
        role = first.raft.role
        return isinstance(role, Leader) and role.progress[third.node_id].end_offset == offset + 1

    assert cluster.run(20_000, lambda: third.log.log_end_offset > offset), _state(cluster)
    first.log.entries_per_read = 0  # replicate no record after the record at `offset`
    assert cluster.run(2_000, is_replicated), _state(cluster)
    first.crash(lose_unflushed=False)
    second.start()
    assert cluster.run(20_000, lambda: second.is_established), _state(cluster)
    first.log.entries_per_read = 1
    first.start()
    _check_recovery(cluster)


def _isolate(cluster: RaftCluster, node: Node) -> None:
    """Block all messages to and from the node."""
    for other in cluster.nodes:
        cluster.blocked_links |= {(node.node_id, other), (other, node.node_id)}


def _wait_for_leader(cluster: RaftCluster, on_elected: Callable[[Node], None] | None = None) -> Node:
    """Run until a leader has committed a record of its own epoch. Return the leader.

    If `on_elected` is given, run only until a leader is elected. Then call `on_elected` with this leader.
    """

    def is_elected() -> bool:
        leader = cluster.leader()
        return leader is not None and (on_elected is not None or leader.is_established)

    assert cluster.run(20_000, is_elected), _state(cluster)
    leader = cluster.leader()
    assert leader is not None
    if on_elected is not None:
        on_elected(leader)
    return leader


def _check_recovery(cluster: RaftCluster) -> None:
    """Restart every node, restore every link, and assert that all nodes commit a new record."""
    cluster.blocked_links.clear()
    cluster.loss, cluster.delay_max_ms = 0.0, 5
    for node in cluster.nodes.values():
        if not node.is_up:
            node.start()
    for _ in range(3):  # a newly elected leader may lose its leadership
        established = cluster.run(15_000, lambda: (leader := cluster.leader()) is not None and leader.is_established)
        assert established, _state(cluster)
        leader = cluster.leader()
        assert leader is not None
        leader.propose("the last")
        if cluster.run(5_000, lambda: "the last" in [value for _, value in cluster.committed[-3:]]):
            break
    end_offset = len(cluster.committed)
    nodes = cluster.nodes.values()
    assert cluster.run(5_000, lambda: all(node.high_watermark >= end_offset for node in nodes)), _state(cluster)


def _state(cluster: RaftCluster) -> str:
    return "; ".join(
        f"node {node.node_id}: {type(node.raft.role).__name__} of epoch {node.raft.epoch}, "
        f"committed {node.high_watermark} of {node.log.log_end_offset}"
        for node in cluster.nodes.values()
    )
