"""Runs scripts against the Raft state machine and traces the results, in the style of etcd's raft/rafttest.

A script is a text file of blocks. A block is one command, the line `----`, and the trace that the command produces. A
blank line ends the block. Lines that start with `#` are comments.

    # The timer of voter 1 expires first. Voter 1 requests a pre-vote in its current epoch.
    tick 1
    ----
    1 becomes Prospective
    1 sends to 2: PreVoteRequest epoch=0 log_end=0@0

Every node runs the real `Raft` state machine on an in-memory log, and this module executes its effects. Nothing is
random: timeouts have no jitter, messages move only on command, and a node's timers fire only when the script ticks that
node.

Commands (a link is written `1->2`, and `deliver`, `drop` and `timeout` accept several links):

- `cluster voters=1,2,3 [observers=4,5] [records_per_fetch=N]`: create and start the nodes.
- `tick N`: let time pass until the next timer of node N expires, and fire it. No other node is ticked.
- `wait MS`: let time pass without firing a timer.
- `deliver 1->2`: deliver the messages that are in flight on the link now. If the receiver has crashed, the sender's
  connection is refused.
- `drop 1->2`: discard the messages in flight on the link.
- `timeout 1->2`: fail the requests that 1 has sent to 2 and that 2 has not responded to.
- `connection-refused 1->2`: 1 loses its connection to 2, and 2 refuses a new connection.
- `stabilize [1,2]`: deliver messages, oldest first, until no message is in flight. If nodes are listed, deliver only
  the messages between these nodes.
- `propose N VALUE`: append a record on leader N.
- `snapshot N`: replace the committed part of node N's log with a snapshot.
- `resign N`: leader N resigns.
- `pause-disk N`, `resume-disk N`: while paused, node N completes no `Persist` and no `Flush`.
- `crash N`: stop node N; its quorum-state file and its log survive. `crash N power-failure` loses unflushed records.
- `restart N`: start node N again.
- `forge 2->1 KIND epoch=E [log_end=O@E]`: put a request in flight that 2 did not send; KIND is vote, pre-vote, begin
  or end.
- `status`: print the state of every node.

`quiet` at the end of a command suppresses its trace.

Notation: `3@1` means offset 3 and epoch 1, of a record or of a position in the log. `log_end=3@1` is the end offset and
the epoch of the last record. `hw` is the high watermark. A trace lists the role and log changes of the state machine
first, and then its effects in the order in which they are executed. `reports` is a notification to the node's other
components. A voter that grants a vote becomes Unattached again, which restarts its election timeout.
"""

from __future__ import annotations

import pickle
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.notation import Request
from headrace_broker.raft import messages
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.core import Raft
from headrace_broker.raft.effects import (
    Effect,
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
from headrace_broker.raft.role import Role
from support.raft_cluster import Entry, MemoryRaftLog

SEPARATOR = "----"
SNAPSHOT_CHUNK_BYTES = 16

Link = tuple[int, int]


class ScriptError(Exception):
    """The script is malformed, or a command does not apply to the state of the cluster."""


class _NoJitter(Random):
    def random(self) -> float:
        return 0.0


class _ScriptLog(MemoryRaftLog):
    """A log that traces every change. Snapshots are plain text whose size does not depend on the Python version."""

    def __init__(self, trace: Callable[[str], None]) -> None:
        super().__init__()
        self._trace = trace

    def append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._trace(f"appends {format_records([entry], self.log_end_offset - 1)}")

    def append_as_follower(self, records: bytes) -> None:
        first_offset = self.log_end_offset
        super().append_as_follower(records)
        self._trace(f"appends {format_records(self.entries[first_offset - self.log_start_offset :], first_offset)}")

    def append_leader_change(self, epoch: int, leader_id: int, voters: Sequence[int], granting: Sequence[int]) -> None:
        super().append_leader_change(epoch, leader_id, voters, granting)
        self._trace(f"appends {format_records(self.entries[-1:], self.log_end_offset - 1)}")

    def truncate_to(self, offset: int) -> None:
        if offset < self.log_end_offset:
            self._trace(f"truncates its log from offset {self.log_end_offset} to {offset}")
        super().truncate_to(offset)

    def read_snapshot(self, snapshot: OffsetAndEpoch, position: int, size_bytes_max: int) -> tuple[int, bytes] | None:
        data = self.snapshots.get(snapshot)
        return None if data is None else (len(data), data[position : position + SNAPSHOT_CHUNK_BYTES])

    def finish_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        super().finish_snapshot(snapshot)
        self._trace(f"replaces its log by snapshot {format_position(snapshot)}")

    def take_snapshot(self, committed: Sequence[Entry], end_offset: int) -> None:
        super().take_snapshot(committed, end_offset)
        snapshot = (end_offset, committed[end_offset - 1][0])
        self.snapshots[snapshot] = "\n".join(f"{epoch} {value}" for epoch, value in committed[:end_offset]).encode()


class _TracedRaft(Raft):
    """The real state machine, with a trace of its role changes."""

    def __init__(self, config: RaftConfig, log: _ScriptLog, state: QuorumState, trace: Callable[[str], None]) -> None:
        super().__init__(config, log, state, _NoJitter())
        self._trace = trace

    def transition_to(self, role: Role, now_ms: int) -> None:
        follows = f" of {role.leader_id}" if role.leader_id >= 0 and role.leader_id != self.config.node_id else ""
        self._trace(f"becomes {type(role).__name__}{follows}")
        super().transition_to(role, now_ms)


@dataclass(eq=False)
class _Call:
    """One request and its response. A call starts when the sender's effect `SendRequest` is executed."""

    source: int
    target: int
    request: Request[Any]
    incarnation: int
    is_forged: bool = False
    is_done: bool = False


@dataclass(eq=False)
class _Message:
    """A request in flight, or its response."""

    call: _Call
    response: Any = None

    @property
    def link(self) -> Link:
        return (self.call.source, self.call.target) if self.response is None else (self.call.target, self.call.source)

    def __str__(self) -> str:
        if self.response is None:
            return format_request(self.call.request)
        return format_response(self.call.request, self.response)


class _Node:
    """One node: its state machine, its disk, and the effects and inputs that wait while a `Persist` is in progress."""

    def __init__(self, cluster: ScriptedCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.log = _ScriptLog(self.trace)
        self.persisted = QuorumState()
        self.is_up = False
        self.incarnation = 0
        self.is_disk_paused = False
        self.raft: _TracedRaft
        self._effects: deque[Effect] = deque()
        self._inputs: deque[Callable[[], list[Effect]]] = deque()
        self._needs_flush = False

    def trace(self, event: str) -> None:
        self.cluster.trace(f"{self.node_id} {event}")

    @property
    def is_persisting(self) -> bool:
        return bool(self._effects)

    def start(self) -> None:
        self.incarnation += 1
        self.is_up = True
        config = RaftConfig(node_id=self.node_id, voters=self.cluster.voters, cluster_id="c")
        self.raft = _TracedRaft(config, self.log, self.persisted, self.trace)
        self.submit(lambda: self.raft.start(self.cluster.now_ms))

    def crash(self, *, lose_unflushed: bool) -> None:
        self.is_up = False
        self._effects.clear()
        self._inputs.clear()
        self._needs_flush = False
        if lose_unflushed:
            self.log.truncate_to(self.log.flushed_offset)
        self.log.flushed_offset = self.log.log_end_offset  # recovery flushes the records that survived

    def submit(self, step: Callable[[], list[Effect]]) -> None:
        """Queue `step`, which passes one input to the state machine.

        `step` is called when all earlier inputs are processed and no `Persist` is in progress.
        """
        self._inputs.append(step)
        self.process()

    def process(self) -> None:
        """Execute effects and process inputs until all are done or the paused disk blocks the next effect."""
        while True:
            if self._effects:
                if isinstance(self._effects[0], Persist) and self.is_disk_paused:
                    self.trace("waits for its disk to persist its quorum state")
                    return
                self._execute(self._effects.popleft())
            elif self._needs_flush and not self.is_disk_paused:
                self._needs_flush = False
                self.log.flushed_offset = self.log.log_end_offset
                self.trace(f"flushes its log up to offset {self.log.log_end_offset}")
                self._inputs.append(lambda: self.raft.on_flushed(self.cluster.now_ms))
            elif self._inputs:
                self._effects.extend(self._inputs.popleft()())
            else:
                return

    def _execute(self, effect: Effect) -> None:
        cluster = self.cluster
        if isinstance(effect, Persist):
            self.persisted = effect.state
            state = effect.state
            self.trace(
                f"persists epoch={state.leader_epoch} leader={format_node(state.leader_id)} "
                f"vote={format_node(state.voted_id)}"
            )
        elif isinstance(effect, SendRequest):
            call = _Call(self.node_id, effect.node_id, effect.request, self.incarnation)
            cluster.calls.append(call)
            self._send(_Message(call))
        elif isinstance(effect, SendResponse):
            self._send(_Message(effect.token, effect.response))
        elif isinstance(effect, Flush):
            self._needs_flush = True
        elif isinstance(effect, HighWatermarkAdvanced):
            self.trace(f"advances its high watermark to {effect.offset}")
            cluster.check_committed(self, effect.offset)
        elif isinstance(effect, LeaderChanged):
            self.trace(f"reports leader={format_node(effect.leader_id)} of epoch {effect.epoch}")
            cluster.check_leader(effect)
        else:
            assert isinstance(effect, SnapshotLoaded)
            self.trace(f"reports that snapshot {format_position((effect.end_offset, effect.epoch))} is loaded")

    def _send(self, message: _Message) -> None:
        self.trace(f"sends to {message.link[1]}: {message}")
        self.cluster.in_flight.append(message)

    def status(self) -> str:
        log = self.log
        role = type(self.raft.role).__name__ if self.is_up else "crashed"
        state = self.raft.state if self.is_up else self.persisted
        fields = [
            f"epoch={state.leader_epoch}",
            f"leader={format_node(self.raft.leader_id if self.is_up else state.leader_id)}",
            f"vote={format_node(state.voted_id)}",
        ]
        if self.is_up:
            fields.append(f"hw={self.raft.high_watermark}")
        if log.log_start_offset:
            fields.append(f"snapshot={format_position(max(log.snapshots))}")
        if log.flushed_offset < log.log_end_offset:
            fields.append(f"flushed={log.flushed_offset}")
        return f"{role:<11} {' '.join(fields)} log={format_records(log.entries, log.log_start_offset)}"


class ScriptedCluster:
    """Nodes, the messages between them, and the commands of a script."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.voters: frozenset[int] = frozenset()
        self.nodes: dict[int, _Node] = {}
        self.in_flight: list[_Message] = []
        self.calls: list[_Call] = []
        self._lines: list[str] = []
        self._leaders: dict[int, int] = {}
        self._committed: list[Entry] = []

    def trace(self, line: str) -> None:
        self._lines.append(line)

    def run(self, command: str) -> str:
        """Run one command and return its trace. Raises ScriptError."""
        name, *arguments = command.split()
        is_quiet = arguments[-1:] == ["quiet"]
        method = getattr(self, f"_command_{name.replace('-', '_')}", None)
        if method is None:
            raise ScriptError(f"unknown command {name!r}")
        self._lines = []
        method(*(arguments[:-1] if is_quiet else arguments))
        return "ok" if is_quiet else "\n".join(self._lines) or "ok"

    # -- invariants -------------------------------------------------------------------------------------------------

    def check_leader(self, effect: LeaderChanged) -> None:
        if effect.leader_id >= 0:
            known = self._leaders.setdefault(effect.epoch, effect.leader_id)
            assert known == effect.leader_id, f"epoch {effect.epoch} has leaders {known} and {effect.leader_id}"

    def check_committed(self, node: _Node, high_watermark: int) -> None:
        log = node.log
        for offset in range(log.log_start_offset, high_watermark):
            entry = log.entries[offset - log.log_start_offset]
            if offset == len(self._committed):
                self._committed.append(entry)
            known = self._committed[offset]
            assert known == entry, f"node {node.node_id} committed {entry} at offset {offset}, other nodes {known}"

    # -- commands: time and processes -------------------------------------------------------------------------------

    def _command_cluster(self, *arguments: str) -> None:
        options = _options(arguments)
        self.voters = frozenset(map(int, options["voters"].split(",")))
        observers = [int(node_id) for node_id in options.get("observers", "").split(",") if node_id]
        self.nodes = {node_id: _Node(self, node_id) for node_id in [*sorted(self.voters), *observers]}
        for node in self.nodes.values():
            node.log.entries_per_read = int(options.get("records_per_fetch", "3"))
            node.start()

    def _command_tick(self, node_id: str) -> None:
        node = self._running(node_id)
        deadline_ms = node.raft.next_deadline_ms()
        if deadline_ms is None:
            raise ScriptError(f"node {node_id} has no timer")
        self._set_time(max(self.now_ms, deadline_ms))
        node.submit(lambda: node.raft.tick(self.now_ms))

    def _command_wait(self, duration_ms: str) -> None:
        self._set_time(self.now_ms + int(duration_ms))

    def _set_time(self, now_ms: int) -> None:
        if now_ms != self.now_ms:
            self.now_ms = now_ms
            self.trace(f"time {now_ms} ms")

    def _command_crash(self, node_id: str, mode: str = "") -> None:
        if mode not in ("", "power-failure"):
            raise ScriptError(f"unknown kind of crash {mode!r}")
        node = self._running(node_id)
        node.trace("crashes")
        node.crash(lose_unflushed=bool(mode))

    def _command_restart(self, node_id: str) -> None:
        node = self.nodes[int(node_id)]
        if node.is_up:
            raise ScriptError(f"node {node_id} is running")
        node.start()

    def _command_pause_disk(self, node_id: str) -> None:
        self.nodes[int(node_id)].is_disk_paused = True

    def _command_resume_disk(self, node_id: str) -> None:
        node = self.nodes[int(node_id)]
        node.is_disk_paused = False
        if node.is_up:
            node.process()

    def _command_propose(self, node_id: str, value: str) -> None:
        node = self._running(node_id)
        if not isinstance(node.raft.role, Leader):
            raise ScriptError(f"node {node_id} is not the leader")
        node.log.append((node.raft.epoch, value))
        node.submit(lambda: node.raft.on_appended(self.now_ms))

    def _command_snapshot(self, node_id: str) -> None:
        node = self._running(node_id)
        end_offset = node.raft.high_watermark
        node.log.take_snapshot(self._committed, end_offset)
        node.trace(f"writes snapshot {format_position(max(node.log.snapshots))} and deletes its log before it")

    def _command_resign(self, node_id: str) -> None:
        node = self._running(node_id)
        node.submit(lambda: node.raft.resign(self.now_ms))

    def _command_status(self) -> None:
        for node_id, node in self.nodes.items():
            self.trace(f"{node_id} {node.status()}")

    def _running(self, node_id: str) -> _Node:
        node = self.nodes[int(node_id)]
        if not node.is_up:
            raise ScriptError(f"node {node_id} has crashed")
        return node

    # -- commands: messages -----------------------------------------------------------------------------------------

    def _command_deliver(self, *links: str) -> None:
        for link in map(_link, links):
            waiting = [message for message in self.in_flight if message.link == link]
            if not waiting:
                raise ScriptError(f"no message is in flight on {link[0]}->{link[1]}")
            for message in waiting:
                if message in self.in_flight:  # a refused connection loses all messages of the link at once
                    self._deliver(message)

    def _command_drop(self, *links: str) -> None:
        for link in map(_link, links):
            for message in [message for message in self.in_flight if message.link == link]:
                self.in_flight.remove(message)
                self.trace(f"lost {link[0]}->{link[1]}: {message}")

    def _command_timeout(self, *links: str) -> None:
        for link in map(_link, links):
            sender = self._running(str(link[0]))
            for call in self._pending_calls(link):
                self._fail(sender, call, "timed out")

    def _command_connection_refused(self, link: str) -> None:
        self._refuse_connection(_link(link))

    def _command_stabilize(self, nodes: str = "") -> None:
        allowed = set(map(int, nodes.split(","))) if nodes else set(self.nodes)
        for _ in range(1000):
            message = next((message for message in self.in_flight if set(message.link) <= allowed), None)
            if message is None:
                return
            self._deliver(message)
        raise ScriptError("the cluster does not stabilize")

    def _command_forge(self, link: str, kind: str, *arguments: str) -> None:
        source, target = _link(link)
        options = _options(arguments)
        epoch = int(options["epoch"])
        config = RaftConfig(node_id=source, voters=self.voters, cluster_id="c")
        request: Request[Any]
        if kind in ("vote", "pre-vote"):
            offset, last_epoch = map(int, options["log_end"].split("@"))
            request = messages.vote_request(config, target, epoch, (offset, last_epoch), pre_vote=kind == "pre-vote")
        elif kind == "begin":
            request = messages.begin_quorum_epoch_request(config, target, epoch)
        elif kind == "end":
            request = messages.end_quorum_epoch_request(config, epoch, [target])
        else:
            raise ScriptError(f"unknown kind of request {kind!r}")
        self.in_flight.append(_Message(_Call(source, target, request, -1, is_forged=True)))

    def _deliver(self, message: _Message) -> None:
        self.in_flight.remove(message)
        call, (source, target) = message.call, message.link
        receiver = self.nodes[target]
        if not receiver.is_up:
            if message.response is None and not call.is_forged:
                self._refuse_connection(message.link)
            else:
                self.trace(f"lost {source}->{target}: {message}, {target} has crashed")
        elif message.response is None:
            self._submit(receiver, message, lambda: receiver.raft.handle_request(call.request, call, self.now_ms))
        elif call.is_forged or call.is_done or call.incarnation != receiver.incarnation:
            receiver.trace(f"discards from {source}: {message} (the request is not pending)")
        else:
            call.is_done = True
            self._submit(
                receiver,
                message,
                lambda: receiver.raft.handle_response(source, call.request, message.response, self.now_ms),
            )

    def _submit(self, receiver: _Node, message: _Message, step: Callable[[], list[Effect]]) -> None:
        def traced_step() -> list[Effect]:
            receiver.trace(f"receives from {message.link[0]}: {message}")
            return step()

        if receiver.is_persisting:
            receiver.trace(f"queues from {message.link[0]}: {message}")
        receiver.submit(traced_step)

    def _refuse_connection(self, link: Link) -> None:
        source, target = link
        sender = self.nodes[source]
        self.in_flight = [message for message in self.in_flight if message.link != link]
        if not sender.is_up:
            return
        pending = self._pending_calls(link)
        sender.trace(f"cannot connect to {target}: connection refused")
        sender.submit(lambda: sender.raft.on_connection_refused(target, self.now_ms))
        for call in pending:
            self._fail(sender, call, "failed")

    def _pending_calls(self, link: Link) -> list[_Call]:
        incarnation = self.nodes[link[0]].incarnation
        calls = (call for call in self.calls if (call.source, call.target) == link)
        return [call for call in calls if not call.is_done and call.incarnation == incarnation]

    def _fail(self, sender: _Node, call: _Call, reason: str) -> None:
        call.is_done = True
        sender.trace(f"request to {call.target} {reason}: {format_request(call.request)}")
        sender.submit(lambda: sender.raft.handle_response(call.target, call.request, None, self.now_ms))


def _options(arguments: Sequence[str]) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in arguments)


def _link(text: str) -> Link:
    match = re.fullmatch(r"(\d+)->(\d+)", text)
    if match is None:
        raise ScriptError(f"{text!r} is not a link such as 1->2")
    return int(match[1]), int(match[2])


# -- notation ------------------------------------------------------------------------------------------------------


def format_node(node_id: int) -> str:
    return str(node_id) if node_id >= 0 else "none"


def format_position(position: OffsetAndEpoch) -> str:
    return f"{position[0]}@{position[1]}"


def format_records(entries: Sequence[Entry], first_offset: int) -> str:
    records = (f"{offset}@{epoch} {value}" for offset, (epoch, value) in enumerate(entries, first_offset))
    return f"[{', '.join(records)}]"


def format_request(request: Any) -> str:
    partition = messages.metadata_partition(request.topics)
    assert partition is not None
    if isinstance(request, VoteRequest):
        log_end = format_position((partition.last_offset, partition.last_offset_epoch))
        return f"{_vote_kind(request)}Request epoch={partition.replica_epoch} log_end={log_end}"
    if isinstance(request, BeginQuorumEpochRequest):
        return f"BeginQuorumEpochRequest epoch={partition.leader_epoch}"
    if isinstance(request, EndQuorumEpochRequest):
        successors = ",".join(map(str, messages.preferred_successors(partition)))
        return f"EndQuorumEpochRequest epoch={partition.leader_epoch} successors={successors}"
    if isinstance(request, FetchRequest):
        position = format_position((partition.fetch_offset, partition.last_fetched_epoch))
        return f"FetchRequest epoch={partition.current_leader_epoch} position={position} hw={partition.high_watermark}"
    snapshot = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
    return (
        f"FetchSnapshotRequest epoch={partition.current_leader_epoch} snapshot={format_position(snapshot)} "
        f"from byte {partition.position}"
    )


def format_response(request: Any, response: Any) -> str:
    partition = messages.metadata_partition(messages.response_topics(response))
    assert partition is not None
    leader_id, epoch = messages.leader_and_epoch(partition)
    kind = f"{_vote_kind(request)}Response" if isinstance(request, VoteRequest) else type(response).__name__
    fields = [kind, f"epoch={epoch}", f"leader={format_node(leader_id)}"]
    if partition.error_code != ErrorCode.NONE:
        fields.append(f"error={ErrorCode.from_code(partition.error_code).name}")
    elif isinstance(request, VoteRequest):
        fields.append("granted" if partition.vote_granted else "rejected")
    elif isinstance(request, FetchRequest):
        fields += _fetch_fields(request, partition)
    elif not isinstance(request, BeginQuorumEpochRequest | EndQuorumEpochRequest):
        end = partition.position + len(partition.unaligned_records)
        snapshot = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        fields.append(f"snapshot={format_position(snapshot)} bytes {partition.position} to {end} of {partition.size}")
    return " ".join(fields)


def _fetch_fields(request: Any, partition: Any) -> list[str]:
    fields = [f"hw={partition.high_watermark if partition.high_watermark >= 0 else 'unknown'}"]
    if partition.diverging_epoch.epoch >= 0:
        diverging = (partition.diverging_epoch.end_offset, partition.diverging_epoch.epoch)
        fields.append(f"diverging={format_position(diverging)}")
    elif partition.snapshot_id.end_offset >= 0:
        snapshot = (partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        fields.append(f"snapshot={format_position(snapshot)}")
    else:
        first_offset = request.topics[0].partitions[0].fetch_offset
        entries = pickle.loads(partition.records) if partition.records else []
        fields.append(f"records={format_records(entries, first_offset)}")
    return fields


def _vote_kind(request: VoteRequest) -> str:
    return "PreVote" if request.topics[0].partitions[0].pre_vote else "Vote"


# -- script files --------------------------------------------------------------------------------------------------


def run_script(path: Path) -> tuple[str, str]:
    """Run a script file.

    Return the content of the file, and the same script with the traces that the commands produced in this run.
    """
    text = path.read_text()
    cluster = ScriptedCluster()
    actual: list[str] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        actual.append(line)
        if not line.strip() or line.startswith("#"):
            continue
        _, separator = next(lines, (number, ""))
        if separator != SEPARATOR:
            raise ScriptError(f"{path.name}:{number}: the line after a command must be {SEPARATOR}")
        for _, expected in lines:
            if not expected.strip():
                break
        try:
            actual += [SEPARATOR, cluster.run(line), ""]
        except Exception as error:
            raise ScriptError(f"{path.name}:{number}: {line}: {error}") from error
    return text, "\n".join(actual).rstrip("\n") + "\n"
