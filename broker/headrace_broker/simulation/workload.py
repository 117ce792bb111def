"""Runs clients against the simulated cluster and stores their operations in a `History`.

The clients of a run are:

- Idempotent producers with acks=all that retry until the end of the run. Every record must then be
  acknowledged, and be in the log once, in order, at the acknowledged offset.
- A consumer that reads all committed records.
- Two members of a consumer group that read records and commit offsets.
- An admin client that creates, deletes and recreates topics, deletes records and requests leader
  elections.
- The client `visitor`, which writes to topics that the admin client deletes, and to the topic with
  unclean leader election.

At the end of the run, `History.check` compares the history with the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from headrace_broker.client.admin import Admin, NewTopic, values_or_raise
from headrace_broker.client.admin_replicas import PREFERRED, UNCLEAN
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer
from headrace_broker.client.errors import ClientError, CommitFailedError
from headrace_broker.client.offsets import LATEST, OffsetAndMetadata
from headrace_broker.client.producer import Producer
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.columns import RecordColumns
from headrace_broker.simulation import topics
from headrace_broker.simulation.history import FinalLog, GroupCommits, History, SentRecord, format_offset
from headrace_broker.simulation.invariants import Invariants
from headrace_broker.simulation.loop import SimulatedNode
from headrace_broker.simulation.simulated_cluster import SimulatedCluster, Violation
from headrace_broker.simulation.topics import COMPACTED, PARTITIONS, RETAINED

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
    """Runs the clients of one simulation run."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        invariants: Invariants,
        *,
        producers: int = 2,
        only_topics: tuple[str, ...] = (),
    ) -> None:
        self.cluster = cluster
        self.history = History(invariants.log_start)
        self._invariants = invariants
        self._topics = topics.choose_topics(Random(f"{cluster.seed} topics"), only_topics)
        self.partitions = PARTITIONS + [(name, 0) for name in (COMPACTED, RETAINED) if name in self._topics]
        """The partitions to which the producers write and from which the consumer reads."""
        self._is_stopping = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._producers = [f"producer-{number}" for number in range(1, producers + 1)]
        self.final: dict[TopicPartition, FinalLog] = {}

    def _config(self, kind: Any, name: str, **more: str) -> ClientConfig:
        servers = ",".join(f"{machine.name}:9092" for machine in self.cluster.machines.values())
        properties = {"bootstrap.servers": servers, "client.id": name, **_CLIENT_PROPERTIES}
        return ClientConfig.from_properties({**properties, **{k.replace("_", "."): v for k, v in more.items()}}, kind)

    def start_client(self, name: str, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Start a client, which runs `work(name)`, on a new simulated node."""
        node = SimulatedNode(name)
        self._tasks[name] = self.cluster.loop.run_in_node(node, lambda: self.cluster.loop.create_task(work(name)))

    async def start_clients(self) -> None:
        """Create the topics, then start all clients."""
        self.start_client("creator", self._create)
        await self.wait_for_clients(["creator"], 10.0)
        for name in self._producers:
            self.start_client(name, self._write)
        self.start_client("consumer", self._read)
        for name in ("member-1", "member-2"):
            self.start_client(name, self._consume)
        self.start_client("admin", self._administer)
        self.start_client("visitor", self._write_unreliably)

    async def stop_and_check(self, timeout_s: float) -> None:
        """Stop the producers, wait until the consumer and the group have read all records, and check the history."""
        self._is_stopping = True
        await self.wait_for_clients([*self._producers, "admin", "visitor"], timeout_s)
        self.start_client("auditor", self._audit)
        await self.wait_for_clients(["auditor"], timeout_s)
        await self.cluster.wait_until(self._is_all_read, timeout_s, self._describe_progress)
        await self.wait_for_clients(["consumer", "member-1", "member-2"], timeout_s)
        self.history.check(self.final)

    async def wait_for_clients(self, names: list[str], timeout_s: float) -> None:
        """Wait until the clients with these names finish. Raises Violation if a client fails or times out."""

        def unfinished() -> list[str]:
            return [name for name in names if not self._tasks[name].done()]

        await self.cluster.wait_until(
            lambda: self._raise_client_errors() and not unfinished(),
            timeout_s,
            lambda: f"the clients {unfinished()} finish",
        )

    def _raise_client_errors(self) -> bool:
        """Raise Violation if a client failed; otherwise return True."""
        for name, task in self._tasks.items():
            if task.done() and task.exception() is not None:
                error = task.exception()
                if isinstance(error, Violation):
                    raise error
                raise Violation(f"{name}: {type(error).__name__}: {error}") from error
        return True

    # -- clients -----------------------------------------------------------------------------------------------------

    async def _create(self, name: str) -> None:
        admin = await Admin.open(self._config("admin", name))
        values_or_raise(await admin.create_topics(self._topics.values()))
        await admin.close()

    async def _write(self, name: str) -> None:
        rng = Random(f"{self.cluster.seed} {name}")
        producer = await self._open(Producer, self._config("producer", name, acks="all", linger_ms="1"))
        unacknowledged: set[asyncio.Future[Any]] = set()
        number = 0
        while not self._is_stopping:
            partition = rng.choice(self.partitions)
            sent = SentRecord(b"%s %d" % (name.encode(), number))
            if partition[0] == COMPACTED:
                sent.key = b"%s %d" % (name.encode(), rng.randrange(5))
                sent.value = sent.value if rng.random() < 0.8 else None
            number += 1
            self.history.sent.setdefault((name, partition), []).append(sent)
            future = self._send(producer, partition, sent)
            unacknowledged.add(future)
            future.add_done_callback(unacknowledged.discard)
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.03, 0.06)))
            while len(unacknowledged) > 20:
                await asyncio.sleep(0.01)
        while unacknowledged:
            await asyncio.sleep(0.01)
        await producer.close()

    def _send(self, producer: Producer, partition: TopicPartition, sent: SentRecord) -> asyncio.Future[Any]:
        columns = RecordColumns(values=[sent.value], keys=[sent.key], timestamps=self.cluster.loop.wall_ms())
        future = producer.send(*partition, columns)

        def acknowledged(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            if error is not None:
                raise Violation(f"producing {sent.value!r} failed: {error}")
            sent.offset = done.result().base_offset
            self._invariants.check_acknowledged(partition, sent.offset)

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
        """Read every partition from offset 0 as client `name`; check that no record is missing or has changed."""
        consumer = await self._open(Consumer, self._consumer_config(name))
        consumer.assign(self.partitions)
        positions = dict.fromkeys(self.partitions, 0)
        while not self._has_read_all(positions):
            for batch in await self._poll(consumer):
                partition = (batch.topic, batch.partition)
                for offset, value in zip(batch.columns.offsets, batch.columns.values, strict=True):
                    self.history.check_next(name, partition, offset, positions[partition])
                    positions[partition] = offset + 1
                    self.history.record_read(name, partition, offset, value)
                positions[partition] = batch.next_offset
        await consumer.close()

    def _consumer_config(self, name: str, **more: str) -> ClientConfig:
        """Return a consumer's config.

        Some consumers set client.rack and fetch from the in-sync replica in their rack.
        """
        rack = Random(f"{self.cluster.seed} rack of {name}").choice(("", "rack-1", "rack-2", "rack-3"))
        settings = {
            "auto_offset_reset": "earliest",
            "enable_auto_commit": "false",
            "fetch_max_wait_ms": "250",
            "client_rack": rack,
            "metadata_max_age_ms": "3000",
        }
        return self._config("consumer", name, **settings | more)

    async def _poll(self, consumer: Consumer) -> list[Any]:
        try:
            return await consumer.poll(250)
        except ClientError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.05)
            return []

    def _has_read_all(self, positions: dict[TopicPartition, int]) -> bool:
        """Return whether `positions` has reached the log end offset of every partition.

        The topic with retention is not checked.
        """
        return bool(self.final) and all(
            positions[item] >= final.end_offset for item, final in self.final.items() if item[0] != RETAINED
        )

    async def _consume(self, name: str) -> None:
        """Read records and commit offsets as a group member that leaves and rejoins periodically."""
        rng = Random(f"{self.cluster.seed} {name}")
        while not self._is_all_committed():
            end_s = self.cluster.now_s + rng.uniform(2.0, 8.0)
            try:
                await self._be_member(name, end_s)
            except ClientError as error:
                if not (error.retriable or error.code in _REJOIN_ERRORS or isinstance(error, CommitFailedError)):
                    raise
                await asyncio.sleep(0.1)

    async def _be_member(self, name: str, end_s: float) -> None:
        config = self._consumer_config(
            name, group_id=GROUP, session_timeout_ms="1000", heartbeat_interval_ms="250", max_poll_interval_ms="30000"
        )
        consumer = await self._open(Consumer, config)
        floors: dict[TopicPartition, int] = {}

        def assigned(partitions: list[TopicPartition]) -> None:
            floors.update({item: self._commits(item).acknowledged for item in partitions})

        try:
            await consumer.subscribe([topics.TOPIC], on_assigned=assigned)
            while self.cluster.now_s < end_s and not self._is_all_committed():
                positions: dict[TopicPartition, int] = {}
                for batch in await self._poll(consumer):
                    self._check_group_batch(name, batch, floors)
                    positions[batch.topic, batch.partition] = batch.next_offset
                if positions:
                    await self._commit(consumer, positions)
        except ClientError:
            await consumer.close(timeout_ms=1000)
            raise
        await consumer.close(timeout_ms=1000)

    def _commits(self, partition: TopicPartition) -> GroupCommits:
        return self.history.commits.setdefault(partition, GroupCommits())

    def _check_group_batch(self, name: str, batch: Any, floors: dict[TopicPartition, int]) -> None:
        partition = (batch.topic, batch.partition)
        first = batch.columns.offsets[0]
        floor = floors.pop(partition, None)
        commits = self._commits(partition)
        if floor is not None and first < floor and first not in commits.attempted:
            raise Violation(
                f"{name} starts reading at {format_offset(partition, first)}, but the group has committed offset "
                f"{floor}"
            )
        if floor is not None and first != 0 and first not in commits.ever_attempted:
            raise Violation(
                f"{name} starts reading at {format_offset(partition, first)}, an offset that no member has committed"
            )
        for offset, value in zip(batch.columns.offsets, batch.columns.values, strict=True):
            self.history.record_read(name, partition, offset, value)

    async def _commit(self, consumer: Consumer, positions: dict[TopicPartition, int]) -> None:
        for partition, offset in positions.items():
            self._commits(partition).attempted.add(offset)
            self._commits(partition).ever_attempted.add(offset)
        await consumer.commit({partition: OffsetAndMetadata(offset) for partition, offset in positions.items()})
        for partition, offset in positions.items():
            commits = self._commits(partition)
            commits.acknowledged = max(commits.acknowledged, offset)
            # Earlier attempts to commit a lower offset must not take effect after the acknowledged commit.
            commits.attempted = {item for item in commits.attempted if item >= commits.acknowledged}

    def _is_all_committed(self) -> bool:
        return bool(self.final) and all(
            self._commits(item).acknowledged >= self.final[item].end_offset for item in PARTITIONS
        )

    async def _administer(self, name: str) -> None:
        """Create, delete and recreate topics, delete records, and request leader elections, as client `name`."""
        rng = Random(f"{self.cluster.seed} {name}")
        admin = await self._open(Admin, self._config("admin", name))
        topics = self.history.topics
        number = 0
        while not self._is_stopping:
            await asyncio.sleep(rng.uniform(0.3, 1.0))
            present, deleted = ([topic for topic, exists in topics.items() if exists is so] for so in (True, False))
            kind = rng.random()
            if kind < 0.3:
                await self._change_records_or_leaders(admin, rng)
            elif present and kind < 0.65:
                topic = rng.choice(present)
                topics[topic] = None
                topics[topic] = await self._attempt(admin.delete_topics([topic]), topic, exists=False)
            else:
                number += 1
                topic = rng.choice(deleted) if deleted and rng.random() < 0.7 else f"x{number}"
                topics[topic] = None
                topics[topic] = await self._attempt(admin.create_topics([NewTopic(topic, 1, 3)]), topic, exists=True)
        await admin.close()

    async def _change_records_or_leaders(self, admin: Admin, rng: Random) -> None:
        """Delete records that were read, or request a leader election; ignore errors."""
        requests: list[Callable[[], Coroutine[Any, Any, Any]]] = [lambda: admin.elect_leaders(PREFERRED, None)]
        if topics.UNCLEAN in self._topics:
            requests.append(lambda: admin.elect_leaders(UNCLEAN, [(topics.UNCLEAN, 0)]))
        read = self.history.read.get((RETAINED, 0))
        if read:
            requests += [lambda: admin.delete_records({(RETAINED, 0): rng.choice([*read, -1])})] * 3
        try:
            await rng.choice(requests)()
        except ClientError:
            pass

    async def _write_unreliably(self, name: str) -> None:
        """Write as client `name` to topics that may be deleted or lose records. A failed write is not retried."""
        rng = Random(f"{self.cluster.seed} {name}")
        producer = await self._open(Producer, self._config("producer", name, acks="all", delivery_timeout_ms="3000"))
        written: set[asyncio.Future[Any]] = set()
        while not self._is_stopping:
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            names = [topic for topic in (*self.history.topics, topics.UNCLEAN) if topic in self.cluster.image.topics]
            if names:
                partition = rng.choice(names), 0
                columns = RecordColumns(values=[b"visit"], timestamps=self.cluster.loop.wall_ms())
                future = producer.send(*partition, columns)
                future.add_done_callback(lambda done, partition=partition: self._on_unreliable_write(partition, done))
                written.add(future)
                future.add_done_callback(written.discard)
        await producer.close(timeout_ms=1000)

    def _on_unreliable_write(self, partition: TopicPartition, done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if error is None:
            self._invariants.check_acknowledged(partition, done.result().base_offset)
        elif not isinstance(error, ClientError):
            raise error

    async def _attempt(self, call: Coroutine[Any, Any, Any], topic: str, *, exists: bool) -> bool | None:
        """Run `call`, which creates or deletes a topic. Return `exists` if it succeeds, or None if it fails.

        `exists` is true if `call` creates the topic, and false if `call` deletes it.
        """
        try:
            error = (await call)[topic]
        except ClientError as failure:
            error = failure
        if error is None:
            return exists
        return None

    # -- the end of the run ------------------------------------------------------------------------------------------

    async def _audit(self, name: str) -> None:
        """Read every partition from offset 0 to the log end offset, with a new client that is named `name`."""
        consumer = await self._open(Consumer, self._consumer_config(name, client_rack=""))
        consumer.assign(self.partitions)
        ends = await self._log_end_offsets(consumer)
        found = {partition: FinalLog(ends[partition]) for partition in self.partitions}
        positions = dict.fromkeys(self.partitions, 0)
        idle_s = self.cluster.now_s + 2.0
        while self.cluster.now_s < idle_s and any(positions[item] < ends[item] for item in self.partitions):
            if self._collect(name, await self._poll(consumer), positions, found):
                idle_s = self.cluster.now_s + 2.0
        # Poll once more, to find records beyond the log end offset.
        self._collect(name, await self._poll(consumer), positions, found)
        await consumer.close()
        self.final = found

    async def _log_end_offsets(self, consumer: Consumer) -> dict[TopicPartition, int]:
        while True:
            try:
                listed = await consumer.list_offsets(dict.fromkeys(self.partitions, LATEST))
                return {partition: listed[partition].offset for partition in self.partitions}
            except ClientError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(0.1)

    def _collect(
        self, name: str, batches: list[Any], positions: dict[TopicPartition, int], found: dict[TopicPartition, FinalLog]
    ) -> bool:
        """Add `batches` to `found`, and update `positions`. Return False if `batches` is empty.

        The client `name` has read these batches. Each batch must start at the client's position. The batch may start
        after the position only if the records in between may have been removed. Otherwise, this method raises
        Violation.
        """
        for batch in batches:
            partition, columns = (batch.topic, batch.partition), batch.columns
            self.history.check_next(name, partition, columns.offsets[0], positions[partition])
            positions[partition] = batch.next_offset
            keys = columns.keys or [None] * len(columns.values)
            records = zip(keys, columns.values, strict=True)
            found[partition].records.update(zip(columns.offsets, records, strict=True))
        return bool(batches)

    def _is_all_read(self) -> bool:
        return (
            all(self._tasks[name].done() for name in ("consumer", "member-1", "member-2"))
            and self._raise_client_errors()
        )

    def _describe_progress(self) -> str:
        return (
            f"consumer and group reach the end offsets "
            f"{ ({item: final.end_offset for item, final in self.final.items()}) }: "
            f"read { ({item: max(read) + 1 for item, read in self.history.read.items()}) }, committed "
            f"{ ({item: commits.acknowledged for item, commits in self.history.commits.items()}) }"
        )


_REJOIN_ERRORS = frozenset((ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS))
