"""What must hold at every moment, looked at after each callback of a node.

Of the quorum: one leader per epoch, no epoch and no high watermark that goes back, and what one node has committed is
what every node commits.  Of each partition: one leader per epoch, no epoch that goes back; within a process no high
watermark and no log start that goes back, no log that is cut below the one and none that starts behind the other; below
the high watermark all replicas have the same batches; whoever is in sync, or becomes leader, has everything that was
ever committed; what is acknowledged is committed.  Of a compacted log: the newest record of each key below the high
watermark stays, and tombstones until their horizon (`compaction`).  Looking costs little: only what moved since the
last look is read.

Where anybody may lead (the topic `UNCLEAN`) what was committed may be lost: epochs have one leader all the same, and in
the end all replicas say the same.
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
from headrace_broker.raft.quorum_state import NO_ONE, QuorumState
from headrace_broker.records.batch import iter_batches
from headrace_broker.server.node import Node
from headrace_broker.server.replicas.partitions import Partition
from headrace_broker.simulation.compaction import Compaction
from headrace_broker.simulation.loop import SimulatedNode
from headrace_broker.simulation.topics import UNCLEAN
from headrace_broker.simulation.world import Machine, Violation, World

_READ_BYTES = 1 << 20

Batch = tuple[int, int, int]
"""(next offset, leader epoch, CRC)."""


@dataclass(slots=True)
class Committed:
    """What was ever seen below a high watermark of one log: {base offset: batch}."""

    batches: dict[int, Batch] = field(default_factory=dict)
    end_offset: int = 0
    leaders: dict[int, int] = field(default_factory=dict)
    log_start: int = 0
    """The highest log start of any replica: nothing before it need be there."""
    compaction: Compaction | None = None
    """Of a compacted log, where batches may lack records, or be gone, on a node that has compacted it."""

    def led(self, epoch: int, leader: int, what: str) -> None:
        """`leader` acts as the leader of `epoch`."""
        known = self.leaders.setdefault(epoch, leader)
        if known != leader:
            raise Violation(f"{what}: nodes {known} and {leader} both lead epoch {epoch}")

    def compare(self, log: PartitionLog, start: int, end: int, what: str) -> int:
        """Look at the log's batches from `start` up to `end`, the high watermark; return where the last one ends."""
        while start < end:
            found = log.read(start, _READ_BYTES, upper_bound_offset=end)
            data = b"".join(found.buffers)
            before = start
            for position, header in iter_batches(data):
                if header.next_offset > end or header.next_offset <= start:
                    break
                self._compare(header.base_offset, header.next_offset, header.partition_leader_epoch, header.crc, what)
                if self.compaction is not None:
                    self.compaction.committed(memoryview(data), position, header)
                start = header.next_offset
            if start == before:
                break  # the high watermark lies within a batch, or compaction has taken the rest
        self.end_offset = max(self.end_offset, start)
        return start

    def _compare(self, base: int, end: int, epoch: int, crc: int, what: str) -> None:
        known = self.batches.get(base)
        if self.compaction is not None and base < self.end_offset and (known is None or known[:2] == (end, epoch)):
            return
        if known is None and base < self.end_offset:
            raise Violation(f"{what}: a batch at {base} to {end - 1} of epoch {epoch}, where none was committed")
        if known is None:
            self.batches[base] = (end, epoch, crc)
        elif known != (end, epoch, crc):
            raise Violation(
                f"{what}: at offset {base} it has the batch up to {end} of epoch {epoch}, "
                f"committed was the one up to {known[0]} of epoch {known[1]}"
            )


@dataclass(slots=True)
class _Seen:
    """What one process was last seen with, for one log."""

    high_watermark: int = -1
    checked_to: int = 0
    led_epoch: int = -1
    leader_epoch: int = -1
    log_start: int = 0
    segments: list[LogSegment] = field(default_factory=list)
    tombstones: dict[int, int | None] = field(default_factory=dict)


class _Watched:
    """One process of a node."""

    def __init__(self, machine: Machine, process: SimulatedNode, node: Node) -> None:
        self.machine = machine
        self.process = process
        self.node = node
        self.raft_epoch = -1
        self.raft_role: object = None
        self.raft_high_watermark = -1
        self.raft_checked_to = 0
        self.decided: MetadataImage | None = None
        self.partitions: dict[Partition, _Seen] = {}


class Invariants:
    """Looks at whatever node has just run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._quorum = Committed()
        self._image: MetadataImage = world.image
        self._topics: dict[bytes, TopicImage] = {}
        """Every topic there ever was, as it was last seen."""
        self._partitions: dict[tuple[bytes, int], Committed] = {}
        self._named: defaultdict[TopicPartition, dict[bytes, Committed]] = defaultdict(dict)
        """{topic id: what is committed} of every topic there ever was by that name."""
        self._watched: dict[SimulatedNode, _Watched] = {}
        self._votes: dict[int, QuorumState] = {}  # what each node had on disk when it was last looked at
        world.loop.on_callback = self._look
        world.on_start.append(self._started)

    def _committed_of(self, partition: Partition) -> Committed:
        key = partition.topic_id, partition.index
        committed = self._partitions.get(key)
        if committed is None:
            compaction = Compaction() if partition.log.config.cleanup_compact else None
            committed = self._partitions[key] = Committed(compaction=compaction)
            self._named[partition.topic, partition.index][partition.topic_id] = committed
        return committed

    def log_start(self, partition: TopicPartition) -> int:
        """The offset before which records may be gone by right."""
        return max((committed.log_start for committed in self._named[partition].values()), default=0)

    def acknowledged(self, partition: TopicPartition, offset: int) -> None:
        """A writer with acks=all was told that its record stands there (-1: stood there already).

        Nothing is known of a topic that is deleted: that may happen in the callback in which its last records are
        committed and acknowledged.
        """
        topic, named = self._image.topics.get(partition[0]), self._named[partition]
        if topic is None or named.keys() != {topic.topic_id}:
            return
        if named[topic.topic_id].end_offset <= offset:
            raise Violation(f"{partition[0]}-{partition[1]}: {offset} is acknowledged and not committed")

    def check_agreement(self, topic: str) -> None:
        """All replicas of a topic that have come to rest say the same."""
        said: dict[int, Committed] = {}
        for machine, node in self._world.nodes():
            assert node.broker is not None
            for index, partition in node.broker.partitions.by_name.get(topic, {}).items():
                log = partition.log
                what = f"{topic}-{index} at {machine.name}, in the end"
                said.setdefault(index, Committed()).compare(log, log.log_start_offset, log.high_watermark, what)

    def _started(self, machine: Machine) -> None:
        process, node = machine.process, machine.node
        assert process is not None
        assert node is not None
        self._watched[process] = _Watched(machine, process, node)
        process.on_crash.append(lambda: self._watched.__delitem__(process))

    def _look(self, process: SimulatedNode) -> None:
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
            self._look_at_quorum(watched)
            self._world.note_image(watched.node.committed.image)
            if self._world.image is not self._image:
                self._look_at_image()
        controller = watched.node.controller
        if controller is not None and (decided := controller.decided) is not watched.decided:
            watched.decided = decided
            if decided is not None:
                self._world.note_decided(decided)
        broker = watched.node.broker
        if broker is not None:
            seen = watched.partitions
            for partition in broker.partitions:
                known, log = seen.get(partition), partition.log
                if (
                    known is None
                    or log._high_watermark != known.high_watermark  # this runs after each callback: no properties
                    or log._log_end_offset < known.high_watermark
                    or log._log_start_offset != known.log_start
                    or partition.leader_epoch != known.leader_epoch
                    or (log.config.cleanup_compact and log._segments != known.segments)
                ):
                    self._look_at_partition(watched, partition)

    def _look_at_image(self) -> None:
        """What the controllers have decided: epochs only rise, and have one leader."""
        before, self._image = self._image, self._world.image
        if self._image.topics is before.topics:
            return
        for topic in before.topics.values():
            self._topics[topic.topic_id] = topic
        for name, topic in self._image.topics.items():
            if topic is not before.topics.get(name):
                self._look_at_topic(topic, before)

    def _look_at_topic(self, topic: TopicImage, before: MetadataImage) -> None:
        known = self._topics.get(topic.topic_id)
        if known is not None and before.topics.get(topic.name) is not known:
            raise Violation(f"{topic.name}: the id of a topic that was deleted is used again")
        for index, (partition, old) in enumerate(
            zip(topic.partitions, known.partitions if known else (), strict=False)
        ):
            what = f"{topic.name}-{index}"
            if partition.leader_epoch < old.leader_epoch or partition.partition_epoch < old.partition_epoch:
                raise Violation(f"{what}: its epochs went back, from {old} to {partition}")
            committed = self._partitions.get((topic.topic_id, index))
            if committed is not None and partition is not old:
                if partition.leader >= 0:
                    committed.led(partition.leader_epoch, partition.leader, what)
                self._look_at_isr(topic, index, partition, committed)

    def _look_at_isr(self, topic: TopicImage, index: int, image: PartitionImage, committed: Committed) -> None:
        """Who is in sync has everything that is committed, if it has not been harmed since."""
        for replica in image.isr if topic.name != UNCLEAN else ():
            machine = self._world.machines[replica]
            broker = machine.node.broker if machine.node is not None and machine.is_serving else None
            partition = None if broker is None else broker.partitions.get(topic.name, index)
            if machine.unclean_since is not None or partition is None or partition.topic_id != topic.topic_id:
                continue
            log = partition.log
            if log.offline_reason is None and log.log_end_offset < committed.end_offset:
                raise Violation(
                    f"{topic.name}-{index}: {machine.name} is in sync with a log up to {log.log_end_offset}, "
                    f"but everything before {committed.end_offset} is committed"
                )

    def _look_at_quorum(self, watched: _Watched) -> None:
        raft, name = watched.node.quorum.raft, watched.machine.name
        what = f"quorum at {name}"
        if raft.epoch < watched.raft_epoch:
            raise Violation(f"{what}: epoch {watched.raft_epoch} went back to {raft.epoch}")
        if isinstance(raft.role, Leader):
            self._quorum.led(raft.epoch, watched.machine.node_id, "quorum")
            is_newest = raft.epoch >= max(self._quorum.leaders)
            if raft.role is not watched.raft_role and is_newest and raft.log.log_end_offset < self._quorum.end_offset:
                raise Violation(
                    f"{what}: leads epoch {raft.epoch} with {raft.log.log_end_offset} records, "
                    f"{self._quorum.end_offset} are committed"
                )
        elif raft.leader_id >= 0:
            self._quorum.led(raft.epoch, raft.leader_id, "quorum")
        if raft.high_watermark < watched.raft_high_watermark:
            raise Violation(f"{what}: high watermark {watched.raft_high_watermark} went back to {raft.high_watermark}")
        self._look_at_vote(watched, what)
        log = watched.node.quorum.log.log
        start = max(watched.raft_checked_to, log.log_start_offset)
        watched.raft_checked_to = self._quorum.compare(log, start, raft.high_watermark, what)
        watched.raft_role, watched.raft_epoch = raft.role, raft.epoch
        watched.raft_high_watermark = raft.high_watermark

    def _look_at_vote(self, watched: _Watched, what: str) -> None:
        """What was acted upon outlives every crash: the epoch, and the one vote in it."""
        quorum, node_id = watched.node.quorum, watched.machine.node_id
        state, known = quorum.raft.state, self._votes.get(node_id)
        if known is not None and state.leader_epoch < known.leader_epoch:
            raise Violation(f"{what}: had seen epoch {known.leader_epoch} and begins again with {state.leader_epoch}")
        is_same_epoch = known is not None and state.leader_epoch == known.leader_epoch
        if known is not None and is_same_epoch and known.voted_id not in (NO_ONE, state.voted_id):
            raise Violation(f"{what}: voted for {known.voted_id} in epoch {known.leader_epoch}, now {state.voted_id}")
        if not quorum.is_persisting:
            self._votes[node_id] = state

    def _look_at_partition(self, watched: _Watched, partition: Partition) -> None:
        log, node_id = partition.log, watched.machine.node_id
        what = f"{partition.topic}-{partition.index} at {watched.machine.name}"
        committed = self._committed_of(partition)
        seen = watched.partitions.get(partition)
        if seen is None:
            seen = watched.partitions[partition] = _Seen()
        if partition.leader_epoch < seen.leader_epoch:
            raise Violation(f"{what}: leader epoch {seen.leader_epoch} went back to {partition.leader_epoch}")
        seen.leader_epoch = partition.leader_epoch
        if partition.topic == UNCLEAN:
            if partition.leader == node_id:
                committed.led(partition.leader_epoch, node_id, what)
            committed.end_offset = max(committed.end_offset, log.high_watermark)
            seen.high_watermark, seen.log_start = log.high_watermark, log.log_start_offset
            return
        high_watermark, log_start = log.high_watermark, log.log_start_offset
        if high_watermark < seen.high_watermark:
            raise Violation(f"{what}: high watermark {seen.high_watermark} went back to {high_watermark}")
        if log.log_end_offset < seen.high_watermark:
            raise Violation(f"{what}: cut to {log.log_end_offset}, below its high watermark {seen.high_watermark}")
        if log.offline_reason is not None and high_watermark == seen.high_watermark:
            return  # else it was told what is committed in the callback in which its disk failed
        if partition.leader == node_id and partition.leader_epoch != seen.led_epoch:
            self._takes_over(watched, partition, seen, committed, what)
        try:
            seen.checked_to = committed.compare(log, max(seen.checked_to, log_start), high_watermark, what)
            if committed.compaction is not None and log._segments != seen.segments:
                now_ms = self._world.loop.within(watched.process, self._world.loop.wall_ms)
                seen.tombstones = committed.compaction.check(log, seen.tombstones, now_ms, what)
                seen.segments = list(log._segments)
        except ApiError as error:
            raise Violation(f"{what}: cannot be read: {error.message}") from None
        if not seen.log_start <= log_start <= committed.end_offset:
            raise Violation(
                f"{what}: the log starts at {log_start}, where it had started at {seen.log_start} "
                f"and everything before {committed.end_offset} was committed"
            )
        committed.log_start = max(committed.log_start, log_start)
        is_higher = high_watermark > seen.high_watermark
        seen.high_watermark, seen.log_start = high_watermark, log_start
        topic = self._image.topics.get(partition.topic)
        if is_higher and topic is not None and topic.topic_id == partition.topic_id and partition.leader == node_id:
            self._look_at_isr(topic, partition.index, topic.partitions[partition.index], committed)

    def _takes_over(
        self, watched: _Watched, partition: Partition, seen: _Seen, committed: Committed, what: str
    ) -> None:
        committed.led(partition.leader_epoch, watched.machine.node_id, f"{partition.topic}-{partition.index}")
        seen.led_epoch = partition.leader_epoch
        log = partition.log
        topic = self._world.image.topics.get(partition.topic)
        if topic is None or topic.topic_id != partition.topic_id:
            return  # it hears of its office when the topic is gone already
        if topic.partitions[partition.index].leader_epoch > partition.leader_epoch:
            return  # it hears of its office when that is over already
        if log.log_end_offset < committed.end_offset:
            raise Violation(
                f"{what}: leads epoch {partition.leader_epoch} with a log up to {log.log_end_offset}, "
                f"but everything before {committed.end_offset} is committed"
            )
        start = max(seen.checked_to, log.log_start_offset)
        seen.checked_to = committed.compare(log, start, committed.end_offset, what)
