"""Clients at work in the simulated cluster, and the history of what they were told.

Writers are idempotent with acks=all and give up on nothing: in the end every record must be acknowledged, stand where
the acknowledgement said, once, in order.  A reader follows everything that is committed; two members of a consumer
group commit what they have read; an admin makes, deletes and makes again topics, deletes records, and asks for
elections; a visitor writes to what the admin deletes, and to the topic that anybody may lead.  `History.check` compares
what they saw with what the logs hold in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from headrace_broker.client.admin import Admin, NewTopic, checked
from headrace_broker.client.admin_replicas import PREFERRED, UNCLEAN
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientError, CommitFailedError
from headrace_broker.client.offsets import LATEST, OffsetAndMetadata
from headrace_broker.client.reader import Reader
from headrace_broker.client.writer import Writer
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.columns import RecordColumns
from headrace_broker.simulation import topics
from headrace_broker.simulation.history import Commits, Final, History, Sent, at
from headrace_broker.simulation.invariants import Invariants
from headrace_broker.simulation.loop import SimulatedNode
from headrace_broker.simulation.topics import COMPACTED, PARTITIONS, RETAINED
from headrace_broker.simulation.world import Violation, World

GROUP = "g"

_CLIENT_PROPERTIES = {
    "request.timeout.ms": "1500",
    "default.api.timeout.ms": "60000",
    "socket.connection.setup.timeout.ms": "800",
    "retry.backoff.ms": "20",
    "retry.backoff.max.ms": "200",
    "reconnect.backoff.ms": "20",
    "reconnect.backoff.max.ms": "200",
}


class Workload:
    """The clients of one run."""

    def __init__(
        self, world: World, invariants: Invariants, *, writers: int = 2, only_topics: tuple[str, ...] = ()
    ) -> None:
        self.world = world
        self.history = History(invariants.log_start)
        self._invariants = invariants
        self._topics = topics.drawn(Random(f"{world.seed} topics"), only_topics)
        self.partitions = PARTITIONS + [(name, 0) for name in (COMPACTED, RETAINED) if name in self._topics]
        """What the writers fill and the reader follows."""
        self._is_ending = False
        self._working: dict[str, asyncio.Task[None]] = {}
        self._writers = [f"writer-{number}" for number in range(1, writers + 1)]
        self.final: dict[TopicPartition, Final] = {}

    def _config(self, kind: Any, name: str, **more: str) -> ClientConfig:
        servers = ",".join(f"{machine.name}:9092" for machine in self.world.machines.values())
        properties = {"bootstrap.servers": servers, "client.id": name, **_CLIENT_PROPERTIES}
        return ClientConfig.from_properties({**properties, **{k.replace("_", "."): v for k, v in more.items()}}, kind)

    def start(self, name: str, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Let a client of its own work."""
        node = SimulatedNode(name)
        self._working[name] = self.world.loop.within(node, lambda: self.world.loop.create_task(work(name)))

    async def begin(self) -> None:
        """Make the topics, then start every client."""
        self.start("creator", self._create)
        await self.finish(["creator"], 10.0)
        for name in self._writers:
            self.start(name, self._write)
        self.start("reader", self._read)
        for name in ("member-1", "member-2"):
            self.start(name, self._consume)
        self.start("admin", self._administer)
        self.start("visitor", self._visit)

    async def end(self, within_s: float) -> None:
        """Write no more, and wait until everything written is acknowledged, read, and committed by the group."""
        self._is_ending = True
        await self.finish([*self._writers, "admin", "visitor"], within_s)
        self.start("auditor", self._audit)
        await self.finish(["auditor"], within_s)
        await self.world.until(self._is_all_read, within_s, self._unread)
        await self.finish(["reader", "member-1", "member-2"], within_s)
        self.history.check(self.final)

    async def finish(self, names: list[str], within_s: float) -> None:
        """Wait for these clients.  Raises Violation when one fails or takes too long."""

        def left() -> list[str]:
            return [name for name in names if not self._working[name].done()]

        await self.world.until(lambda: self._check() and not left(), within_s, lambda: f"{left()} have not finished")

    def _check(self) -> bool:
        for name, task in self._working.items():
            if task.done() and task.exception() is not None:
                error = task.exception()
                if isinstance(error, Violation):
                    raise error
                raise Violation(f"{name}: {type(error).__name__}: {error}") from error
        return True

    # -- clients -----------------------------------------------------------------------------------------------------

    async def _create(self, name: str) -> None:
        admin = await Admin.open(self._config("admin", name))
        checked(await admin.create_topics(self._topics.values()))
        await admin.close()

    async def _write(self, name: str) -> None:
        rng = Random(f"{self.world.seed} {name}")
        writer = await self._open(Writer, self._config("producer", name, acks="all", linger_ms="1"))
        unacknowledged: set[asyncio.Future[Any]] = set()
        number = 0
        while not self._is_ending:
            partition = rng.choice(self.partitions)
            sent = Sent(b"%s %d" % (name.encode(), number))
            if partition[0] == COMPACTED:
                sent.key = b"%s %d" % (name.encode(), rng.randrange(5))
                sent.value = sent.value if rng.random() < 0.8 else None
            number += 1
            self.history.sent.setdefault((name, partition), []).append(sent)
            future = self._send(writer, partition, sent)
            unacknowledged.add(future)
            future.add_done_callback(unacknowledged.discard)
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.03, 0.06)))
            while len(unacknowledged) > 20:
                await asyncio.sleep(0.01)
        while unacknowledged:
            await asyncio.sleep(0.01)
        await writer.close()

    def _send(self, writer: Writer, partition: TopicPartition, sent: Sent) -> asyncio.Future[Any]:
        columns = RecordColumns(values=[sent.value], keys=[sent.key], timestamps=self.world.loop.wall_ms())
        future = writer.send(*partition, columns)

        def acknowledged(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                raise Violation(f"the writer gave up {sent.value!r}: {error}")
            sent.offset = done.result().base_offset
            self._invariants.acknowledged(partition, sent.offset)

        future.add_done_callback(acknowledged)
        return future

    async def _open(self, kind: Any, config: ClientConfig) -> Any:
        while True:
            try:
                return await kind.open(config)
            except ClientError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.1)

    async def _read(self, name: str) -> None:
        """Follow every partition from its beginning; nothing may be missing, or be read again differently."""
        reader = await self._open(Reader, self._reader_config(name))
        reader.assign(self.partitions)
        positions = dict.fromkeys(self.partitions, 0)
        while not self._knows_all(positions):
            for batch in await self._poll(reader):
                partition = (batch.topic, batch.partition)
                for offset, value in zip(batch.columns.offsets, batch.columns.values, strict=True):
                    self.history.check_next(name, partition, offset, positions[partition])
                    positions[partition] = offset + 1
                    self.history.saw(name, partition, offset, value)
                positions[partition] = batch.next_offset
        await reader.close()

    def _reader_config(self, name: str, **more: str) -> ClientConfig:
        """Some are in the rack of a node, and read from it while it is in sync."""
        rack = Random(f"{self.world.seed} rack of {name}").choice(("", "rack-1", "rack-2", "rack-3"))
        settings = {
            "auto_offset_reset": "earliest",
            "enable_auto_commit": "false",
            "fetch_max_wait_ms": "250",
            "client_rack": rack,
            "metadata_max_age_ms": "3000",
        }
        return self._config("consumer", name, **settings | more)

    async def _poll(self, reader: Reader) -> list[Any]:
        try:
            return await reader.poll(250)
        except ClientError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.05)
            return []

    def _knows_all(self, positions: dict[TopicPartition, int]) -> bool:
        """But for what the topic with retention may have lost since."""
        return bool(self.final) and all(
            positions[item] >= final.end_offset for item, final in self.final.items() if item[0] != RETAINED
        )

    async def _consume(self, name: str) -> None:
        """Read as a member of the group and commit; leave and come back now and then."""
        rng = Random(f"{self.world.seed} {name}")
        while not self._is_all_committed():
            end_s = self.world.now_s + rng.uniform(2.0, 8.0)
            try:
                await self._be_member(name, end_s)
            except ClientError as error:
                if not (error.retriable or error.code in _GROUP_GOES_ON or isinstance(error, CommitFailedError)):
                    raise
                await asyncio.sleep(0.1)

    async def _be_member(self, name: str, end_s: float) -> None:
        config = self._reader_config(
            name, group_id=GROUP, session_timeout_ms="1000", heartbeat_interval_ms="250", max_poll_interval_ms="30000"
        )
        reader = await self._open(Reader, config)
        floors: dict[TopicPartition, int] = {}

        def assigned(partitions: list[TopicPartition]) -> None:
            floors.update({item: self._commits(item).acknowledged for item in partitions})

        try:
            await reader.subscribe([topics.TOPIC], on_assigned=assigned)
            while self.world.now_s < end_s and not self._is_all_committed():
                positions: dict[TopicPartition, int] = {}
                for batch in await self._poll(reader):
                    self._take(name, batch, floors)
                    positions[batch.topic, batch.partition] = batch.next_offset
                if positions:
                    await self._commit(reader, positions)
        except ClientError:
            await reader.close(timeout_ms=1000)
            raise
        await reader.close(timeout_ms=1000)

    def _commits(self, partition: TopicPartition) -> Commits:
        return self.history.commits.setdefault(partition, Commits())

    def _take(self, name: str, batch: Any, floors: dict[TopicPartition, int]) -> None:
        partition = (batch.topic, batch.partition)
        first = batch.columns.offsets[0]
        floor = floors.pop(partition, None)
        commits = self._commits(partition)
        if floor is not None and first < floor and first not in commits.attempted:
            raise Violation(f"{name} goes on at {at(partition, first)}, {floor} was committed")
        if floor is not None and first != 0 and first not in commits.tried_ever:
            raise Violation(f"{name} goes on at {at(partition, first)}, which nobody has committed")
        for offset, value in zip(batch.columns.offsets, batch.columns.values, strict=True):
            self.history.saw(name, partition, offset, value)

    async def _commit(self, reader: Reader, positions: dict[TopicPartition, int]) -> None:
        for partition, offset in positions.items():
            self._commits(partition).attempted.add(offset)
            self._commits(partition).tried_ever.add(offset)
        await reader.commit({partition: OffsetAndMetadata(offset) for partition, offset in positions.items()})
        for partition, offset in positions.items():
            commits = self._commits(partition)
            commits.acknowledged = max(commits.acknowledged, offset)
            # Whatever was tried before and is behind this must not come back.
            commits.attempted = {item for item in commits.attempted if item >= commits.acknowledged}

    def _is_all_committed(self) -> bool:
        return bool(self.final) and all(
            self._commits(item).acknowledged >= self.final[item].end_offset for item in PARTITIONS
        )

    async def _administer(self, name: str) -> None:
        """Make topics, delete some of them and make them again, and do what else operators do."""
        rng = Random(f"{self.world.seed} {name}")
        admin = await self._open(Admin, self._config("admin", name))
        topics = self.history.topics
        number = 0
        while not self._is_ending:
            await asyncio.sleep(rng.uniform(0.3, 1.0))
            present, deleted = ([topic for topic, there in topics.items() if there is so] for so in (True, False))
            kind = rng.random()
            if kind < 0.3:
                await self._change(admin, rng)
            elif present and kind < 0.65:
                topic = rng.choice(present)
                topics[topic] = None
                topics[topic] = await self._attempt(admin.delete_topics([topic]), topic, there=False)
            else:
                number += 1
                topic = rng.choice(deleted) if deleted and rng.random() < 0.7 else f"x{number}"
                topics[topic] = None
                topics[topic] = await self._attempt(admin.create_topics([NewTopic(topic, 1, 3)]), topic, there=True)
        await admin.close()

    async def _change(self, admin: Admin, rng: Random) -> None:
        """Delete records that were read, or have leaders elected; whether that succeeds is left open."""
        wishes: list[Callable[[], Coroutine[Any, Any, Any]]] = [lambda: admin.elect_leaders(PREFERRED, None)]
        if topics.UNCLEAN in self._topics:
            wishes.append(lambda: admin.elect_leaders(UNCLEAN, [(topics.UNCLEAN, 0)]))
        read = self.history.read.get((RETAINED, 0))
        if read:
            wishes += [lambda: admin.delete_records({(RETAINED, 0): rng.choice([*read, -1])})] * 3
        try:
            await rng.choice(wishes)()
        except ClientError:
            pass

    async def _visit(self, name: str) -> None:
        """Write to topics that may be deleted, or lose what they have; what is refused is forgotten."""
        rng = Random(f"{self.world.seed} {name}")
        writer = await self._open(Writer, self._config("producer", name, acks="all", delivery_timeout_ms="3000"))
        written: set[asyncio.Future[Any]] = set()
        while not self._is_ending:
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            names = [topic for topic in (*self.history.topics, topics.UNCLEAN) if topic in self.world.image.topics]
            if names:
                partition = rng.choice(names), 0
                columns = RecordColumns(values=[b"visit"], timestamps=self.world.loop.wall_ms())
                future = writer.send(*partition, columns)
                future.add_done_callback(lambda done, partition=partition: self._visited(partition, done))
                written.add(future)
                future.add_done_callback(written.discard)
        await writer.close(timeout_ms=1000)

    def _visited(self, partition: TopicPartition, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self._invariants.acknowledged(partition, done.result().base_offset)
        elif not isinstance(error, ClientError):
            raise error

    async def _attempt(self, call: Coroutine[Any, Any, Any], topic: str, *, there: bool) -> bool | None:
        """Whether the topic is there afterwards, None when the answer leaves that open."""
        try:
            error = (await call)[topic]
        except ClientError as failure:
            error = failure
        if error is None:
            return there
        return None

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _audit(self, name: str) -> None:
        """Read everything there is, by a client that knows nothing."""
        reader = await self._open(Reader, self._reader_config(name, client_rack=""))
        reader.assign(self.partitions)
        ends = await self._ends(reader)
        found = {partition: Final(ends[partition]) for partition in self.partitions}
        positions = dict.fromkeys(self.partitions, 0)
        idle_s = self.world.now_s + 2.0
        while self.world.now_s < idle_s and any(positions[item] < ends[item] for item in self.partitions):
            if self._take_all(name, await self._poll(reader), positions, found):
                idle_s = self.world.now_s + 2.0
        self._take_all(name, await self._poll(reader), positions, found)  # more than was ever written?
        await reader.close()
        self.final = found

    async def _ends(self, reader: Reader) -> dict[TopicPartition, int]:
        while True:
            try:
                listed = await reader.list_offsets(dict.fromkeys(self.partitions, LATEST))
                return {partition: listed[partition].offset for partition in self.partitions}
            except ClientError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.1)

    def _take_all(
        self, name: str, batches: list[Any], positions: dict[TopicPartition, int], found: dict[TopicPartition, Final]
    ) -> bool:
        """Take what was read into what is found; whether there was anything."""
        for batch in batches:
            partition, columns = (batch.topic, batch.partition), batch.columns
            self.history.check_next(name, partition, columns.offsets[0], positions[partition])
            positions[partition] = batch.next_offset
            keys = columns.keys or [None] * len(columns.values)
            records = zip(keys, columns.values, strict=True)
            found[partition].records.update(zip(columns.offsets, records, strict=True))
        return bool(batches)

    def _is_all_read(self) -> bool:
        return all(self._working[name].done() for name in ("reader", "member-1", "member-2")) and self._check()

    def _unread(self) -> str:
        return (
            f"reader and group have not come to the end "
            f"{ ({item: final.end_offset for item, final in self.final.items()}) }: "
            f"read { ({item: max(read) + 1 for item, read in self.history.read.items()}) }, committed "
            f"{ ({item: commits.acknowledged for item, commits in self.history.commits.items()}) }"
        )


_GROUP_GOES_ON = frozenset((ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS))
