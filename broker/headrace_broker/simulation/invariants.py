"""Checks the invariants of the quorum and of all partitions after each callback of a node.

The invariants of the metadata quorum are:

- Each leader epoch has at most one leader.
- Leader epochs and high watermarks never decrease.
- All nodes commit the same records.

The invariants of each partition are:

- Each leader epoch has at most one leader, and leader epochs never decrease.
- While a process runs, the high watermark and the log start offset never decrease, the log is never
  truncated below its high watermark, and the log never starts above the committed end offset.
- All replicas have the same batches below the high watermark.
- Every ISR member and every new leader has all committed records.
- Every acknowledged record is committed.
- A compacted log keeps the latest record of each key below the high watermark, and tombstones until
  their delete horizon (see `compaction`).

The topic `UNCLEAN` has unclean leader election, so its committed records may be lost. Each of its
leader epochs must still have at most one leader, and all its replicas must agree at the end of the
run.

The checks are cheap, because each check reads only the changes since the previous check.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from headrace_broker.log.log import PartitionLog
from headrace_broker.log.segment import LogSegment
from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.raft.leader import Leader
from headrace_broker.raft.quorum_state import NO_NODE, QuorumState
from headrace_broker.records.batch import iter_batches
from headrace_broker.server.node import Node
from headrace_broker.server.replicas.partitions import Partition
from headrace_broker.simulation.compaction import CompactedLog
from headrace_broker.simulation.loop import SimulatedNode
from headrace_broker.simulation.simulated_cluster import Machine, SimulatedCluster, Violation
from headrace_broker.simulation.topics import UNCLEAN

_READ_BYTES = 1 << 20

CommittedBatch = tuple[int, int, int]
"""A batch's next offset, leader epoch and CRC."""


@dataclass(slots=True)
class CommittedBatches:
    """The committed batches of one partition, collected from each replica's log up to the replica's high watermark.

    `batches` maps a base offset to a batch, and `leaders` maps a leader epoch to the leader's node id.
    """

    batches: dict[int, CommittedBatch] = field(default_factory=dict)
    end_offset: int = 0
    leaders: dict[int, int] = field(default_factory=dict)
    log_start: int = 0
    """The highest log start offset of any replica; records at lower offsets may have been deleted."""
    compaction: CompactedLog | None = None
    """Set for a compacted topic, because a replica that has compacted its log may lack records or batches."""

    def record_leader(self, epoch: int, leader: int, log_name: str) -> None:
        """Store the leader of a leader epoch. Raises Violation if `epoch` already has another leader."""
        known = self.leaders.setdefault(epoch, leader)
        if known != leader:
            raise Violation(f"{log_name}: nodes {known} and {leader} are both leaders of epoch {epoch}")

    def check_log(self, log: PartitionLog, start: int, end: int, log_name: str) -> int:
        """Check the log's batches from `start` to the high watermark `end`.

        Return the offset after the last checked batch. Raises Violation if another replica committed a different batch.
        """
        while start < end:
            found = log.read(start, _READ_BYTES, upper_bound_offset=end)
            data = b"".join(found.buffers)
            before = start
            for position, header in iter_batches(data):
                if header.next_offset > end or header.next_offset <= start:
                    break
                self._check_batch(
                    header.base_offset, header.next_offset, header.partition_leader_epoch, header.crc, log_name
                )
                if self.compaction is not None:
                    self.compaction.record_committed(memoryview(data), position, header)
                start = header.next_offset
            if start == before:
                break  # the high watermark is inside a batch, or compaction has removed the remaining batches
        self.end_offset = max(self.end_offset, start)
        return start

    def _check_batch(self, base: int, end: int, epoch: int, crc: int, log_name: str) -> None:
        known = self.batches.get(base)
        if self.compaction is not None and base < self.end_offset and (known is None or known[:2] == (end, epoch)):
            return
        if known is None and base < self.end_offset:
            raise Violation(
                f"{log_name}: the log has a batch of epoch {epoch} at offsets {base} to {end - 1}, where no batch "
                "was committed"
            )
        if known is None:
            self.batches[base] = (end, epoch, crc)
        elif known != (end, epoch, crc):
            raise Violation(
                f"{log_name}: the batch at offset {base} ends at {end} and has epoch {epoch}, "
                f"but the committed batch ends at {known[0]} and has epoch {known[1]}"
            )


@dataclass(slots=True)
class _ReplicaState:
    """The state that one replica had at the last check."""

    high_watermark: int = -1
    checked_to: int = 0
    led_epoch: int = -1
    leader_epoch: int = -1
    log_start: int = 0
    segments: list[LogSegment] = field(default_factory=list)
    tombstones: dict[int, int | None] = field(default_factory=dict)


class _WatchedProcess:
    """One process of a node, with the state that the process had at the last check."""

    def __init__(self, machine: Machine, process: SimulatedNode, node: Node) -> None:
        self.machine = machine
        self.process = process
        self.node = node
        self.raft_epoch = -1
        self.raft_role: object = None
        self.raft_high_watermark = -1
        self.raft_checked_to = 0
        self.uncommitted_image: MetadataImage | None = None
        self.partitions: dict[Partition, _ReplicaState] = {}


class Invariants:
    """Checks the invariants of a node each time one of its callbacks has run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._quorum = CommittedBatches()
        self._image: MetadataImage = cluster.image
        self._topics: dict[bytes, TopicImage] = {}
        """Maps a topic id to the topic's last image; includes deleted topics."""
        self._partitions: dict[tuple[bytes, int], CommittedBatches] = {}
        self._by_name: defaultdict[TopicPartition, dict[bytes, CommittedBatches]] = defaultdict(dict)
        """Maps a topic-partition to the committed batches of every topic id that ever had this topic name."""
        self._watched: dict[SimulatedNode, _WatchedProcess] = {}
        self._votes: dict[int, QuorumState] = {}  # each node's quorum state on disk at the last check
        cluster.loop.on_callback = self._check_process
        cluster.on_start.append(self._watch)

    def _committed_of(self, partition: Partition) -> CommittedBatches:
        key = partition.topic_id, partition.index
        committed = self._partitions.get(key)
        if committed is None:
            compaction = CompactedLog() if partition.log.config.cleanup_compact else None
            committed = self._partitions[key] = CommittedBatches(compaction=compaction)
            self._by_name[partition.topic, partition.index][partition.topic_id] = committed
        return committed

    def log_start(self, partition: TopicPartition) -> int:
        """Return the offset below which the partition's records may have been deleted."""
        return max((committed.log_start for committed in self._by_name[partition].values()), default=0)

    def check_acknowledged(self, partition: TopicPartition, offset: int) -> None:
        """Check that a record is committed if it was acknowledged to a producer with acks=all.

        `offset` is the acknowledged offset, or -1 for a duplicate. A deleted topic is not checked, because one callback
        may commit and acknowledge the topic's last records and then delete the topic.
        """
        topic, by_topic_id = self._image.topics.get(partition[0]), self._by_name[partition]
        if topic is None or by_topic_id.keys() != {topic.topic_id}:
            return
        if by_topic_id[topic.topic_id].end_offset <= offset:
            raise Violation(f"{partition[0]}-{partition[1]}: offset {offset} is acknowledged but not committed")

    def check_replicas_agree(self, topic: str) -> None:
        """Check that all replicas of an idle topic have the same batches."""
        committed: dict[int, CommittedBatches] = {}
        for machine, node in self._cluster.nodes():
            assert node.broker is not None
            for index, partition in node.broker.partitions.by_name.get(topic, {}).items():
                log = partition.log
                log_name = f"{topic}-{index} on {machine.name} at the end of the run"
                batches = committed.setdefault(index, CommittedBatches())
                batches.check_log(log, log.log_start_offset, log.high_watermark, log_name)

    def _watch(self, machine: Machine) -> None:
        process, node = machine.process, machine.node
        assert process is not None
        assert node is not None
        self._watched[process] = _WatchedProcess(machine, process, node)
        process.on_crash.append(lambda: self._watched.__delitem__(process))

    def _check_process(self, process: SimulatedNode) -> None:
        watched = self._watched.get(process)
        if watched is None or process.is_dead:
            return
        quorum = getattr(watched.node, "quorum", None)
        if quorum is None:
            return
        raft = quorum.raft
        if (
            raft.role is not watched.raft_role
            or raft.high_watermark != watched.raft_high_watermark
            or (raft.state is not self._votes.get(watched.machine.node_id) and not quorum.is_persisting)
        ):
            self._check_quorum(watched)
            self._cluster.record_committed_image(watched.node.committed.image)
            if self._cluster.image is not self._image:
                self._check_image()
        controller = watched.node.controller
        if controller is not None and (latest := controller.latest_image) is not watched.uncommitted_image:
            watched.uncommitted_image = latest
            if latest is not None:
                self._cluster.record_uncommitted_image(latest)
        broker = watched.node.broker
        if broker is not None:
            seen = watched.partitions
            for partition in broker.partitions:
                known, log = seen.get(partition), partition.log
                if (
                    known is None
                    or log._high_watermark != known.high_watermark  # attributes are faster than property calls
                    or log._log_end_offset < known.high_watermark
                    or log._log_start_offset != known.log_start
                    or partition.leader_epoch != known.leader_epoch
                    or (log.config.cleanup_compact and log._segments != known.segments)
                ):
                    self._check_partition(watched, partition)

    def _check_image(self) -> None:
        """Check the newest committed image: leader epochs never decrease, and each epoch has at most one leader."""
        before, self._image = self._image, self._cluster.image
        if self._image.topics is before.topics:
            return
        for topic in before.topics.values():
            self._topics[topic.topic_id] = topic
        for name, topic in self._image.topics.items():
            if topic is not before.topics.get(name):
                self._check_topic(topic, before)

    def _check_topic(self, topic: TopicImage, before: MetadataImage) -> None:
        known = self._topics.get(topic.topic_id)
        if known is not None and before.topics.get(topic.name) is not known:
            raise Violation(f"Topic {topic.name} reuses the topic id of a deleted topic")
        for index, (partition, old) in enumerate(
            zip(topic.partitions, known.partitions if known else (), strict=False)
        ):
            log_name = f"{topic.name}-{index}"
            if partition.leader_epoch < old.leader_epoch or partition.partition_epoch < old.partition_epoch:
                raise Violation(f"{log_name}: the leader epoch or partition epoch decreased from {old} to {partition}")
            committed = self._partitions.get((topic.topic_id, index))
            if committed is not None and partition is not old:
                if partition.leader >= 0:
                    committed.record_leader(partition.leader_epoch, partition.leader, log_name)
                self._check_isr(topic, index, partition, committed)

    def _check_isr(self, topic: TopicImage, index: int, image: PartitionImage, committed: CommittedBatches) -> None:
        """Check that the log of each ISR member contains all committed records.

        Machines that had an unclean shutdown are not checked.
        """
        for replica in image.isr if topic.name != UNCLEAN else ():
            machine = self._cluster.machines[replica]
            broker = machine.node.broker if machine.node is not None and machine.is_serving else None
            partition = None if broker is None else broker.partitions.get(topic.name, index)
            if machine.unclean_shutdown_epoch is not None or partition is None or partition.topic_id != topic.topic_id:
                continue
            log = partition.log
            if log.offline_reason is None and log.log_end_offset < committed.end_offset:
                raise Violation(
                    f"{topic.name}-{index}: {machine.name} is in the ISR, but its log ends at {log.log_end_offset}, "
                    f"below the committed end offset {committed.end_offset}"
                )

    def _check_quorum(self, watched: _WatchedProcess) -> None:
        raft, name = watched.node.quorum.raft, watched.machine.name
        log_name = f"quorum on {name}"
        if raft.epoch < watched.raft_epoch:
            raise Violation(f"{log_name}: the epoch decreased from {watched.raft_epoch} to {raft.epoch}")
        if isinstance(raft.role, Leader):
            self._quorum.record_leader(raft.epoch, watched.machine.node_id, "quorum")
            is_newest = raft.epoch >= max(self._quorum.leaders)
            if raft.role is not watched.raft_role and is_newest and raft.log.log_end_offset < self._quorum.end_offset:
                raise Violation(
                    f"{log_name}: the node became leader of epoch {raft.epoch} with log end offset "
                    f"{raft.log.log_end_offset}, below the committed end offset {self._quorum.end_offset}"
                )
        elif raft.leader_id >= 0:
            self._quorum.record_leader(raft.epoch, raft.leader_id, "quorum")
        if raft.high_watermark < watched.raft_high_watermark:
            raise Violation(
                f"{log_name}: the high watermark decreased from {watched.raft_high_watermark} to {raft.high_watermark}"
            )
        self._check_vote(watched, log_name)
        log = watched.node.quorum.log.log
        start = max(watched.raft_checked_to, log.log_start_offset)
        watched.raft_checked_to = self._quorum.check_log(log, start, raft.high_watermark, log_name)
        watched.raft_role, watched.raft_epoch = raft.role, raft.epoch
        watched.raft_high_watermark = raft.high_watermark

    def _check_vote(self, watched: _WatchedProcess, log_name: str) -> None:
        """Check that a node's leader epoch never decreases and that the node votes at most once per epoch.

        This must hold even after a crash of the node.
        """
        quorum, node_id = watched.node.quorum, watched.machine.node_id
        state, known = quorum.raft.state, self._votes.get(node_id)
        if known is not None and state.leader_epoch < known.leader_epoch:
            raise Violation(
                f"{log_name}: the node restarted with epoch {state.leader_epoch}, but before the restart it had epoch "
                f"{known.leader_epoch}"
            )
        is_same_epoch = known is not None and state.leader_epoch == known.leader_epoch
        if known is not None and is_same_epoch and known.voted_id not in (NO_NODE, state.voted_id):
            raise Violation(
                f"{log_name}: the node voted for both {known.voted_id} and {state.voted_id} in epoch "
                f"{known.leader_epoch}"
            )
        if not quorum.is_persisting:
            self._votes[node_id] = state

    def _check_partition(self, watched: _WatchedProcess, partition: Partition) -> None:
        log, node_id = partition.log, watched.machine.node_id
        log_name = f"{partition.topic}-{partition.index} on {watched.machine.name}"
        committed = self._committed_of(partition)
        seen = watched.partitions.get(partition)
        if seen is None:
            seen = watched.partitions[partition] = _ReplicaState()
        if partition.leader_epoch < seen.leader_epoch:
            raise Violation(
                f"{log_name}: the leader epoch decreased from {seen.leader_epoch} to {partition.leader_epoch}"
            )
        seen.leader_epoch = partition.leader_epoch
        if partition.topic == UNCLEAN:
            if partition.leader == node_id:
                committed.record_leader(partition.leader_epoch, node_id, log_name)
            committed.end_offset = max(committed.end_offset, log.high_watermark)
            seen.high_watermark, seen.log_start = log.high_watermark, log.log_start_offset
            return
        high_watermark, log_start = log.high_watermark, log.log_start_offset
        if high_watermark < seen.high_watermark:
            raise Violation(f"{log_name}: the high watermark decreased from {seen.high_watermark} to {high_watermark}")
        if log.log_end_offset < seen.high_watermark:
            raise Violation(
                f"{log_name}: the log was truncated to {log.log_end_offset}, below its high watermark "
                f"{seen.high_watermark}"
            )
        if log.offline_reason is not None and high_watermark == seen.high_watermark:
            return  # an offline log is checked only if its high watermark advanced in the callback in which it failed
        if partition.leader == node_id and partition.leader_epoch != seen.led_epoch:
            self._check_new_leader(watched, partition, seen, committed, log_name)
        try:
            seen.checked_to = committed.check_log(log, max(seen.checked_to, log_start), high_watermark, log_name)
            if committed.compaction is not None and log._segments != seen.segments:
                now_ms = self._cluster.loop.run_in_node(watched.process, self._cluster.loop.wall_ms)
                seen.tombstones = committed.compaction.check(log, seen.tombstones, now_ms, log_name)
                seen.segments = list(log._segments)
        except ApiError as error:
            raise Violation(f"{log_name}: the log cannot be read: {error.message}") from None
        if not seen.log_start <= log_start <= committed.end_offset:
            raise Violation(
                f"{log_name}: the log start offset changed from {seen.log_start} to {log_start}, "
                f"but it must not decrease and must not exceed the committed end offset {committed.end_offset}"
            )
        committed.log_start = max(committed.log_start, log_start)
        is_higher = high_watermark > seen.high_watermark
        seen.high_watermark, seen.log_start = high_watermark, log_start
        topic = self._image.topics.get(partition.topic)
        if is_higher and topic is not None and topic.topic_id == partition.topic_id and partition.leader == node_id:
            self._check_isr(topic, partition.index, topic.partitions[partition.index], committed)

    def _check_new_leader(
        self,
        watched: _WatchedProcess,
        partition: Partition,
        seen: _ReplicaState,
        committed: CommittedBatches,
        log_name: str,
    ) -> None:
        committed.record_leader(partition.leader_epoch, watched.machine.node_id, f"{partition.topic}-{partition.index}")
        seen.led_epoch = partition.leader_epoch
        log = partition.log
        topic = self._cluster.image.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id:
            return  # the topic was deleted before the broker learned of its leadership
        if topic.partitions[partition.index].leader_epoch > partition.leader_epoch:
            return  # a newer leader was elected before the broker learned of its leadership
        if log.log_end_offset < committed.end_offset:
            raise Violation(
                f"{log_name}: the node became leader of epoch {partition.leader_epoch} with log end offset "
                f"{log.log_end_offset}, below the committed end offset {committed.end_offset}"
            )
        start = max(seen.checked_to, log.log_start_offset)
        seen.checked_to = committed.check_log(log, start, committed.end_offset, log_name)
