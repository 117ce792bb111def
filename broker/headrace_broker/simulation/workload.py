"""Clients at work in the simulated cluster, and the history of what they were told.

Writers are idempotent with acks=all and give up on nothing: in the end every record must be acknowledged, stand where
the acknowledgement said, once, in order.  A reader follows everything that is committed; two members of a consumer
group commit what they have read; an admin makes and deletes topics.  `History.check` compares what they saw with what
the logs hold in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from headrace_broker.client.admin import Admin, NewTopic
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientError, CommitFailedError
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.client.reader import Reader
from headrace_broker.client.writer import Writer
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.columns import RecordColumns
from headrace_broker.simulation.loop import SimulatedNode
from headrace_broker.simulation.world import Violation, World

TOPIC = "t"
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


@dataclass(slots=True)
class Sent:
    """One record that a writer was given; `offset` is None until it is acknowledged."""

    value: bytes
    offset: int | None = None


@dataclass(slots=True)
class Commits:
    """What a group was told of its committed offset of one partition."""

    acknowledged: int = 0
    attempted: set[int] = field(default_factory=set)
    """Offsets of commits whose fate nobody knows, and the acknowledged ones."""
    tried_ever: set[int] = field(default_factory=set)
    """All there were: a member may have looked up its position before others went on."""


class History:
    """What the clients did and were told."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, TopicPartition], list[Sent]] = {}
        self.read: dict[TopicPartition, dict[int, bytes]] = {}
        self.commits: dict[TopicPartition, Commits] = {}
        self.topics: dict[str, bool | None] = {}
        """Whether a topic must be there in the end; None when nobody can know."""

    @property
    def records_sent(self) -> int:
        return sum(len(items) for items in self.sent.values())

    def saw(self, who: str, partition: TopicPartition, offset: int, value: bytes) -> None:
        """Somebody read a record: whoever reads that offset, at whatever time, reads the same."""
        known = self.read.setdefault(partition, {}).setdefault(offset, value)
        if known != value:
            raise Violation(f"{who} read {value!r} at {_at(partition, offset)}, where {known!r} was read before")

    def check(self, final: dict[TopicPartition, list[bytes]]) -> None:
        """Compare with what the log of each partition holds in the end."""
        for partition, read in self.read.items():
            for offset, value in read.items():
                held = final[partition][offset] if offset < len(final[partition]) else None
                if held != value:
                    raise Violation(f"{value!r} was read at {_at(partition, offset)}, where {held!r} is in the end")
        for (writer, partition), items in self.sent.items():
            self._check_writer(writer, partition, items, final[partition])

    def _check_writer(self, writer: str, partition: TopicPartition, items: list[Sent], values: list[bytes]) -> None:
        prefix = f"{writer} ".encode()
        for item in items:
            held = values[item.offset] if item.offset is not None and 0 <= item.offset < len(values) else None
            if item.offset is not None and item.offset >= 0 and held != item.value:
                raise Violation(f"{item.value!r} was acknowledged at {_at(partition, item.offset)}: there is {held!r}")
        written = [value for value in values if value.startswith(prefix)]
        if written != [item.value for item in items]:
            raise Violation(f"{writer}, {partition[0]}-{partition[1]}: {_difference(written, items)}")


def _at(partition: TopicPartition, offset: int) -> str:
    return f"{partition[0]}-{partition[1]}@{offset}"


def _difference(written: list[bytes], items: list[Sent]) -> str:
    wanted = [item.value for item in items]
    lost = [value for value in wanted if value not in written]
    twice = sorted({value for value in written if written.count(value) > 1})
    if lost:
        return f"{len(lost)} of {len(wanted)} records are lost, first {lost[0]!r}"
    return f"{len(twice)} records stand there twice, first {twice[0]!r}" if twice else "records are out of order"


class Workload:
    """The clients of one run."""

    def __init__(self, world: World, *, writers: int = 2, partitions: int = 2) -> None:
        self.world = world
        self.history = History()
        self.partitions: list[TopicPartition] = [(TOPIC, index) for index in range(partitions)]
        self._rng = Random(f"{world.seed} workload")
        self._is_ending = False
        self._working: dict[str, asyncio.Task[None]] = {}
        self._writers = [f"writer-{number}" for number in range(1, writers + 1)]
        self._positions: dict[TopicPartition, int] = {}
        self.final: dict[TopicPartition, list[bytes]] = {}

    def _config(self, kind: Any, name: str, **more: str) -> ClientConfig:
        servers = ",".join(f"{machine.name}:9092" for machine in self.world.machines.values())
        properties = {"bootstrap.servers": servers, "client.id": name, **_CLIENT_PROPERTIES}
        return ClientConfig.from_properties({**properties, **{k.replace("_", "."): v for k, v in more.items()}}, kind)

    def start(self, name: str, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Let a client of its own work."""
        node = SimulatedNode(name)
        self._working[name] = self.world.loop.within(node, lambda: self.world.loop.create_task(work(name)))

    async def begin(self) -> None:
        """Make the topic, then start every client."""
        self.start("creator", self._create)
        await self.finish(["creator"], 10.0)
        for name in self._writers:
            self.start(name, self._write)
        self.start("reader", self._read)
        for name in ("member-1", "member-2"):
            self.start(name, self._consume)
        self.start("admin", self._administer)

    async def end(self, within_s: float) -> None:
        """Write no more, and wait until everything written is acknowledged, read, and committed by the group."""
        self._is_ending = True
        await self.finish([*self._writers, "admin"], within_s)
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
        results = await admin.create_topics([NewTopic(TOPIC, len(self.partitions), 3)])
        if results[TOPIC] is not None:
            raise results[TOPIC]  # type: ignore[misc]
        await admin.close()

    async def _write(self, name: str) -> None:
        rng = Random(f"{self.world.seed} {name}")
        writer = await self._open(Writer, self._config("producer", name, acks="all", linger_ms="1"))
        unacknowledged: set[asyncio.Future[Any]] = set()
        number = 0
        while not self._is_ending:
            partition = rng.choice(self.partitions)
            sent = Sent(b"%s %d" % (name.encode(), number))
            number += 1
            self.history.sent.setdefault((name, partition), []).append(sent)
            future = writer.send(*partition, RecordColumns(values=[sent.value], timestamps=self.world.loop.wall_ms()))
            future.add_done_callback(lambda done, sent=sent: _acknowledged(done, sent))
            unacknowledged.add(future)
            future.add_done_callback(unacknowledged.discard)
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.03, 0.06)))
            while len(unacknowledged) > 20:
                await asyncio.sleep(0.01)
        while unacknowledged:
            await asyncio.sleep(0.01)
        await writer.close()

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
                    if offset != positions[partition]:
                        raise Violation(f"{name} read {_at(partition, offset)}, {positions[partition]} was next")
                    positions[partition] = offset + 1
                    self.history.saw(name, partition, offset, value)
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
        return bool(self.final) and all(positions[item] >= len(self.final[item]) for item in self.partitions)

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
            await reader.subscribe([TOPIC], on_assigned=assigned)
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
            raise Violation(f"{name} goes on at {_at(partition, first)}, {floor} was committed")
        if floor is not None and first != 0 and first not in commits.tried_ever:
            raise Violation(f"{name} goes on at {_at(partition, first)}, which nobody has committed")
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
            self._commits(item).acknowledged >= len(self.final[item]) for item in self.partitions
        )

    async def _administer(self, name: str) -> None:
        """Make topics and delete some of them."""
        rng = Random(f"{self.world.seed} {name}")
        admin = await self._open(Admin, self._config("admin", name))
        topics = self.history.topics
        number = 0
        while not self._is_ending:
            await asyncio.sleep(rng.uniform(0.5, 1.5))
            present = [topic for topic, there in topics.items() if there]
            if present and rng.random() < 0.5:
                topic = rng.choice(present)
                topics[topic] = None
                topics[topic] = await self._attempt(admin.delete_topics([topic]), topic, there=False)
            else:
                number += 1
                topic = f"x{number}"
                topics[topic] = None
                topics[topic] = await self._attempt(admin.create_topics([NewTopic(topic, 1, 3)]), topic, there=True)
        await admin.close()

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
        wanted = {
            partition: sum(len(items) for (_, of), items in self.history.sent.items() if of == partition)
            for partition in self.partitions
        }
        found: dict[TopicPartition, list[bytes]] = {partition: [] for partition in self.partitions}
        idle_s = self.world.now_s + 2.0
        while any(len(found[item]) < wanted[item] for item in self.partitions) and self.world.now_s < idle_s:
            for batch in await self._poll(reader):
                partition = (batch.topic, batch.partition)
                if batch.columns.offsets[0] != len(found[partition]):
                    first = batch.columns.offsets[0]
                    raise Violation(f"{_at(partition, first)} can be read, {len(found[partition])} cannot")
                found[partition] += batch.columns.values
                idle_s = self.world.now_s + 2.0
        for batch in await self._poll(reader):  # more than was ever written?
            found[batch.topic, batch.partition] += batch.columns.values
        await reader.close()
        self.final = found

    def _is_all_read(self) -> bool:
        return all(self._working[name].done() for name in ("reader", "member-1", "member-2")) and self._check()

    def _unread(self) -> str:
        return (
            f"reader and group have not come to the end { ({item[1]: len(self.final[item]) for item in self.final}) }: "
            f"read { ({item[1]: len(read) for item, read in self.history.read.items()}) }, committed "
            f"{ ({item[1]: commits.acknowledged for item, commits in self.history.commits.items()}) }"
        )


_GROUP_GOES_ON = frozenset((ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS))


def _acknowledged(done: asyncio.Future[Any], sent: Sent) -> None:
    error = done.exception()
    if error is not None:
        raise Violation(f"the writer gave up {sent.value!r}: {error}")
    sent.offset = done.result().base_offset
