"""Tests of consumer groups with real clients: membership, crashes, commits, and the protocol type `connect`."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.protocol.messages import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from headrace_broker.protocol.messages.join_group import JoinGroupRequestProtocol
from headrace_broker.protocol.messages.leave_group import MemberIdentity
from headrace_broker.protocol.messages.sync_group import SyncGroupRequestAssignment
from support.broker import BrokerProcess, running_broker
from support.group_processes import GroupProcesses

pytestmark = pytest.mark.wire

KINDS = ["confluent", "aiokafka", "kafka-python", "kcat"]
PARTITIONS = 6
SESSION_MS = 2_500
_names = count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("groups"), group_min_session_timeout_ms="500") as running:
        yield running


@pytest.fixture
def topic(broker: BrokerProcess) -> str:
    name = f"topic-{next(_names)}"
    client = admin(broker)
    client.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)
    return name


def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def produce(broker: BrokerProcess, topic: str, first: int, number: int) -> set[str]:
    """Send `number` values, numbered from `first`, to all partitions round-robin. Return the values."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
    values = [f"value-{n}" for n in range(first, first + number)]
    for n, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=n % PARTITIONS)
    assert producer.flush(10) == 0
    return set(values)


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_of_a_killed_group_member_are_assigned_to_other_members(
    broker: BrokerProcess, topic: str, kind: str
) -> None:
    if kind == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    values = produce(broker, topic, 0, 60)
    with GroupProcesses(broker.address, f"group-{kind}", topic, SESSION_MS) as members:
        members.start(kind)
        members.await_shared(PARTITIONS, 60)
        members.start(kind)
        members.await_shared(PARTITIONS, 60)
        members.start(kind)
        members.await_shared(PARTITIONS, 60)
        members.await_values(values, 60)
        victim = members.all[1]
        survivors = [members.all[0], members.all[2]]
        owned = victim.assigned
        assert owned
        victim.kill()
        members.await_(
            lambda: any(owned & (member.assigned or set()) for member in survivors), 60, "a survivor takes over"
        )
        assert re.search(rf"Group group-{kind}: removing member \S+, because its session expired", broker.log)
        members.await_shared(PARTITIONS, 60)
        late = produce(broker, topic, 60, 60)
        members.await_values(late, 60)
        received = {value for member in survivors for _, _, value in member.records}
        assert late <= received


def test_confluent_kafka_aiokafka_and_kafka_python_members_share_one_group(broker: BrokerProcess, topic: str) -> None:
    with GroupProcesses(broker.address, "mixed", topic, SESSION_MS) as members:
        for kind in ("confluent", "aiokafka", "kafka-python"):
            members.start(kind)
        members.await_shared(PARTITIONS, 20)
        members.await_values(produce(broker, topic, 0, 30), 60)


def test_static_member_restarts_without_rebalance(broker: BrokerProcess, topic: str) -> None:
    with GroupProcesses(broker.address, "static", topic, 10_000) as members:
        first = members.start("confluent", "a")
        second = members.start("confluent", "b")
        members.await_shared(PARTITIONS, 60)
        before, owned = first.assignments, second.assigned
        generation = _generation(broker, "static")
        for _ in range(2):
            second.kill()
            second = members.start("confluent", "b")
            members.await_(lambda: second.assigned == owned, 8, "the same partitions are assigned")  # noqa: B023
        members.await_values(produce(broker, topic, 0, 30), 60)
        assert first.assignments == before
        assert _generation(broker, "static") == generation


def _generation(broker: BrokerProcess, group: str) -> str:
    """Return the last generation of the group that the broker's log output mentions."""
    completed = f"Group {group}: join phase completed, generation "
    return [line.partition(completed)[2] for line in broker.log.splitlines() if completed in line][-1]


def test_committed_offsets_survive_a_clean_restart_and_a_kill_of_the_broker(broker: BrokerProcess, topic: str) -> None:
    committed = {f"g{n}": n * 100 for n in range(1, 20)}
    for group, offset in committed.items():
        commit(broker, group, TopicPartition(topic, 0, offset, metadata=f"note {group}"))
    for end in (broker.restart, lambda: (broker.kill(), broker.start())):
        end()
        for group, offset in committed.items():
            found = fetch(broker, group, topic, 0)
            assert (found.offset, found.metadata) == (offset, f"note {group}")


def commit(broker: BrokerProcess, group: str, *offsets: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    consumer.commit(offsets=list(offsets), asynchronous=False)
    consumer.close()


def fetch(broker: BrokerProcess, group: str, topic: str, partition: int) -> TopicPartition:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    (found,) = consumer.committed([TopicPartition(topic, partition)], 60)
    consumer.close()
    return found


def test_confluent_kafka_fetches_committed_offsets_with_their_metadata_and_leader_epoch(
    broker: BrokerProcess, topic: str
) -> None:
    commit(broker, "rounds-c", TopicPartition(topic, 1, 5, metadata="a note, ☃", leader_epoch=0))
    found = fetch(broker, "rounds-c", topic, 1)
    assert (found.offset, found.metadata, found.leader_epoch) == (5, "a note, ☃", 0)
    assert fetch(broker, "rounds-c", topic, 2).offset < 0


def test_aiokafka_commits_offsets_with_metadata(broker: BrokerProcess, topic: str) -> None:
    import aiokafka

    async def commit_and_fetch() -> tuple[Any, ...]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.address, group_id="rounds-a", enable_auto_commit=False
        )
        await consumer.start()
        partition = aiokafka.TopicPartition(topic, 1)
        consumer.assign([partition])
        await consumer.commit({partition: (5, "a note")})
        offset = await consumer.committed(partition)
        await consumer.stop()
        return offset

    assert asyncio.run(commit_and_fetch()) == 5
    assert fetch(broker, "rounds-a", topic, 1).metadata == "a note"


@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")  # kafka-python's schema loader
def test_kafka_python_fetches_committed_offsets_with_their_metadata_and_leader_epoch(
    broker: BrokerProcess, topic: str
) -> None:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.address, group_id="rounds-k", enable_auto_commit=False)
    partition = kafka.TopicPartition(topic, 1)
    consumer.assign([partition])
    consumer.commit({partition: kafka.OffsetAndMetadata(5, "a note", 0)})
    found = consumer.committed(partition, metadata=True)
    consumer.close()
    assert (found.offset, found.metadata, found.leader_epoch) == (5, "a note", 0)


def test_admin_client_describes_lists_alters_and_deletes_groups(broker: BrokerProcess, topic: str) -> None:
    client = admin(broker)
    with GroupProcesses(broker.address, "watched", topic, SESSION_MS) as members:
        members.start("confluent")
        members.await_shared(PARTITIONS, 60)
        values = produce(broker, topic, 0, 12)
        members.await_values(values, 60)
        described = client.describe_consumer_groups(["watched"])["watched"].result(30)
        assert described.state == ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        (member,) = described.members
        assert {p.partition for p in member.assignment.topic_partitions} == set(range(PARTITIONS))
        assert member.host == "/127.0.0.1"
        listed = client.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(30)
        assert "watched" in {group.group_id for group in listed.valid}
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            client.delete_consumer_groups(["watched"])["watched"].result(30)
        await_(lambda: committed(client, "watched") == dict.fromkeys(range(PARTITIONS), 2), "all offsets committed")
    state = ConsumerGroupState.EMPTY
    await_(lambda: client.describe_consumer_groups(["watched"])["watched"].result(30).state == state, "an empty group")
    moved = ConsumerGroupTopicPartitions("watched", [TopicPartition(topic, 0, 1)])
    client.alter_consumer_group_offsets([moved])["watched"].result(30)
    assert committed(client, "watched") == {0: 1} | dict.fromkeys(range(1, PARTITIONS), 2)
    client.delete_consumer_groups(["watched"])["watched"].result(30)
    listed = client.list_consumer_groups().result(30)
    assert "watched" not in {group.group_id for group in listed.valid}


def committed(client: AdminClient, group: str) -> dict[int, int]:
    """Return all committed offsets of the group, by partition."""
    offsets = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {partition.partition: partition.offset for partition in offsets.topic_partitions}


def await_(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def test_deleting_a_topic_deletes_its_committed_offsets(broker: BrokerProcess, topic: str) -> None:
    commit(broker, "forgetful", TopicPartition(topic, 0, 5))
    client = admin(broker)
    client.delete_topics([topic])[topic].result(30)
    client.create_topics([NewTopic(topic, 1)])[topic].result(30)
    assert fetch(broker, "forgetful", topic, 0).offset < 0


def test_members_of_a_group_with_protocol_type_connect_receive_their_assignments_unchanged(
    broker: BrokerProcess,
) -> None:
    """The protocol type `connect` has metadata and assignments that only Connect workers can decode."""

    async def work() -> None:
        workers = [await Worker.open(broker, "workers") for _ in range(3)]
        async with running(workers):
            await await_stable(workers)

    asyncio.run(work())


def test_group_stabilizes_after_members_join_leave_and_crash(broker: BrokerProcess) -> None:
    """All members that are still running are in the last generation, each with its own assignment."""

    async def churn() -> None:
        rng = random.Random(7)
        staying = [await Worker.open(broker, "churn") for _ in range(12)]
        async with running(staying):
            for _ in range(20):
                visitor = await Worker.open(broker, "churn")
                async with running([visitor]):
                    await asyncio.sleep(rng.random() / 10)
                    if rng.random() < 0.5:
                        await visitor.leave()
            await await_stable(staying)

    asyncio.run(churn())


class Worker:
    """A group member whose metadata and assignments are random bytes.

    It joins, syncs, sends heartbeats, and rejoins when the group rebalances.
    """

    def __init__(self, connection: BrokerConnection, group: str) -> None:
        self.connection = connection
        self.group = group
        self.metadata = os.urandom(1000)
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self.seen: dict[str, bytes] = {}
        self.handed_out: dict[str, bytes] = {}

    @classmethod
    async def open(cls, broker: BrokerProcess, group: str) -> Worker:
        connection = await BrokerConnection.open(broker.host, broker.port)
        await connection.request(FindCoordinatorRequest(coordinator_keys=[group]))
        return cls(connection, group)

    async def work(self) -> None:
        while True:
            joined = await self.connection.request(join_request(self.group, self.member_id, self.metadata))
            self.member_id = joined.member_id
            if joined.error_code == 0 and await self._sync(joined):
                while (await self._heartbeat()) == 0:  # noqa: ASYNC110  the pause is the heartbeat interval
                    await asyncio.sleep(0.02)

    async def _sync(self, joined: JoinGroupResponse) -> bool:
        self.seen = {member.member_id: member.metadata for member in joined.members}
        self.handed_out = {member: os.urandom(1000) for member in self.seen}
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            protocol_type="connect",
            protocol_name="sessioned",
            assignments=[SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in self.handed_out.items()],
        )
        synced = await self.connection.request(request)
        self.generation, self.assignment = joined.generation_id, synced.assignment
        return synced.error_code == 0

    async def _heartbeat(self) -> int:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        return (await self.connection.request(request)).error_code

    async def leave(self) -> None:
        request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self.member_id)])
        await self.connection.request(request)


@asynccontextmanager
async def running(workers: list[Worker]) -> AsyncIterator[None]:
    """Run the workers until the block ends. The workers then stop without sending LeaveGroup."""
    tasks = [asyncio.ensure_future(worker.work()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            worker.connection.close()
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends


async def await_stable(workers: list[Worker]) -> None:
    """Wait until exactly these workers form one generation, each with the assignment that the leader computed."""

    def is_stable() -> bool:
        leaders = [worker for worker in workers if worker.seen]
        if len({worker.generation for worker in workers}) != 1 or len(leaders) != 1:
            return False
        (leader,) = leaders
        return leader.seen == {worker.member_id: worker.metadata for worker in workers} and leader.handed_out == {
            worker.member_id: worker.assignment for worker in workers
        }

    async with asyncio.timeout(30):
        while not is_stable():  # noqa: ASYNC110  the asyncio tasks of the workers change the state
            await asyncio.sleep(0.02)


def join_request(group: str, member_id: str, metadata: bytes) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=1_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="connect",
        protocols=[
            JoinGroupRequestProtocol(name="sessioned", metadata=metadata),
            JoinGroupRequestProtocol(name="default", metadata=b"\0\0"),
        ],
    )


def test_member_stays_in_its_group_after_losing_its_connection(broker: BrokerProcess) -> None:
    async def reconnect() -> None:
        connection = await BrokerConnection.open(broker.host, broker.port)
        await connection.request(FindCoordinatorRequest(coordinator_keys=["lonely"]))
        member_id = (await connection.request(join_request("lonely", "", b""))).member_id
        joined = await connection.request(join_request("lonely", member_id, b""))
        connection.close()
        again = await BrokerConnection.open(broker.host, broker.port)
        heartbeat = HeartbeatRequest(group_id="lonely", generation_id=joined.generation_id, member_id=joined.member_id)
        assert (await again.request(heartbeat)).error_code == 0
        again.close()

    asyncio.run(reconnect())
