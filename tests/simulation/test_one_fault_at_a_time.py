"""Invariants of replication that one fault at the right moment shows better than chance does.

Real nodes in a simulated world: 1 to 3 are controllers and brokers, 4 and 5 brokers only, which hold the partition.
The numbers R4, R7 and R11 are those of ARCHITECTURE.md.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable

import pytest

from headrace_broker.client.admin import SET, Admin, NewTopic
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.connection import Connection
from headrace_broker.client.delivery import RecordMetadata
from headrace_broker.client.errors import BrokerError, ClientError
from headrace_broker.client.offsets import OffsetAndMetadata, commit_offsets, fetch_offsets
from headrace_broker.client.reader import Reader
from headrace_broker.client.writer import Writer
from headrace_broker.log.log import PartitionLog
from headrace_broker.metadata.image import TOPIC_RESOURCE
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace_broker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.simulation.invariants import Invariants
from headrace_broker.simulation.loop import SimulatedNode
from headrace_broker.simulation.world import Machine, World

CONTROLLERS = {"n1", "n2", "n3"}
TOPIC = "t"
_FIRST_VERSION_WITH_NAMES_ONLY = 12


def play(story: Callable[[World], Awaitable[None]]) -> None:
    """Tell the story in a cluster that has started; raises whatever it raises."""
    world = World(1, nodes=3, observers=2)
    Invariants(world)

    async def live() -> None:
        for machine in world.machines.values():
            world.boot(machine)
        everybody = world.machines.values()
        await world.until(lambda: all(machine.is_serving for machine in everybody), 10.0, lambda: "the cluster starts")
        client = world.loop.within(SimulatedNode("client"), lambda: world.loop.create_task(_as_task(story(world))))
        await world.until(client.done, 60.0, lambda: "the story ends")
        client.result()

    world.run(live())


async def _as_task(story: Awaitable[None]) -> None:
    await story


async def make_topic(*, min_insync: int) -> None:
    """One partition on the brokers 4, which leads, and 5."""
    admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n5:9092"}, "admin"))
    configs = {"min.insync.replicas": str(min_insync)}
    error = (await admin.create_topics([NewTopic(TOPIC, configs=configs, assignments={0: [4, 5]})]))[TOPIC]
    assert error is None or error.code == ErrorCode.TOPIC_ALREADY_EXISTS  # by an attempt without an answer
    await admin.close()


async def make_topic_again() -> None:
    """Delete the topic and make it once more, with one record, while broker 5 leads."""
    admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n1:9092"}, "admin"))
    assert await admin.delete_topics([TOPIC]) == {TOPIC: None}
    await admin.close()
    await make_topic(min_insync=1)
    assert await produce(await connection_to(5), b"new") == ErrorCode.NONE


async def connection_to(node_id: int) -> Connection:
    return await Connection.open(f"n{node_id}", 9092, setup_timeout_ms=500, request_timeout_ms=3000)


async def produce(connection: Connection, value: bytes, *, acks: int = -1) -> int:
    """The error code of the answer."""
    now_ms = asyncio.get_running_loop().wall_ms()  # type: ignore[attr-defined]
    batch = build_batch(RecordColumns(values=[value], timestamps=now_ms))  # an older one would not be retained
    data = PartitionProduceData(index=0, records=bytes(batch))
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=1500, topic_data=[topic])
    answer = await connection.request(request, version=_FIRST_VERSION_WITH_NAMES_ONLY)
    return answer.responses[0].partition_responses[0].error_code


async def fetch(connection: Connection, offset: int = 0) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])])
    answer = await connection.request(request, version=_FIRST_VERSION_WITH_NAMES_ONLY)
    return answer.responses[0].partitions[0]


def records_in(answer: PartitionData) -> bytes:
    return bytes(answer.records or b"")  # type: ignore[arg-type]


def log_on(machine: Machine) -> PartitionLog:
    assert machine.node is not None
    assert machine.node.broker is not None
    return machine.node.broker.logs.logs[TOPIC, 0]


async def until_led_by(world: World, leader: int, *, in_sync: int) -> None:
    def is_so() -> bool:
        topic = world.image.topics.get(TOPIC)
        return topic is not None and (topic.partitions[0].leader, len(topic.partitions[0].isr)) == (leader, in_sync)

    await world.until(is_so, 20.0, lambda: f"{leader} leads {in_sync} replicas")


def test_a_leader_cut_off_from_the_controllers_acknowledges_nothing() -> None:
    """R4: its follower has gone over to the next leader, and it cannot be alone by its own word."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        old = await connection_to(4)
        assert await produce(old, b"first") == ErrorCode.NONE
        world.network.isolate({"n4"}, CONTROLLERS)
        await until_led_by(world, 5, in_sync=1)
        for _ in range(2):  # the second when it has long wanted to be alone in sync
            assert await produce(old, b"unheard") == ErrorCode.REQUEST_TIMED_OUT
        new = await connection_to(5)
        assert await produce(new, b"second") == ErrorCode.NONE
        assert (await fetch(old)).high_watermark == 1
        world.network.heal()
        await until_led_by(world, 5, in_sync=2)
        records = records_in(await fetch(new, 1))
        assert b"second" in records
        assert b"unheard" not in records

    play(story)


def test_what_too_few_replicas_have_is_not_shown() -> None:
    """R7: a record that was acknowledged by its leader alone (acks=1) is nobody's to read until another has it."""

    async def story(world: World) -> None:
        await make_topic(min_insync=2)
        leader = await connection_to(4)
        assert await produce(leader, b"shown") == ErrorCode.NONE
        world.kill(world.machines[5])
        await until_led_by(world, 4, in_sync=1)
        assert await produce(leader, b"hidden", acks=1) == ErrorCode.NONE
        assert await produce(leader, b"refused") == ErrorCode.NOT_ENOUGH_REPLICAS
        answer = await fetch(leader, 1)
        assert (answer.error_code, answer.high_watermark, records_in(answer)) == (ErrorCode.NONE, 1, b"")
        world.boot(world.machines[5])
        await until_led_by(world, 4, in_sync=2)
        await asyncio.sleep(0.5)
        answer = await fetch(leader, 1)
        assert answer.high_watermark == 2
        assert b"hidden" in records_in(answer)

    play(story)


@pytest.mark.parametrize("is_held_at_its_registration", [False, True])
def test_a_broker_serves_only_when_it_knows_who_leads_by_now(is_held_at_its_registration: bool) -> None:
    """R11: back with the metadata of before its death, or without its own registration, it would still lead."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        assert await produce(await connection_to(4), b"first") == ErrorCode.NONE
        machine = world.machines[4]
        assert machine.node is not None
        known = machine.node.image.offset + 1
        world.kill(machine)
        await until_led_by(world, 5, in_sync=1)
        release = _hold_metadata_back(world, machine, world.image.offset + 1 if is_held_at_its_registration else known)
        world.boot(machine)
        await asyncio.sleep(2.0)
        assert machine.is_up
        with pytest.raises(ClientError):
            await connection_to(4)
        release()
        await until_led_by(world, 5, in_sync=2)
        assert await produce(await connection_to(4), b"astray") == ErrorCode.NOT_LEADER_OR_FOLLOWER

    play(story)


def _hold_metadata_back(world: World, machine: Machine, offset: int) -> Callable[[], None]:
    """The machine's next process learns of nothing that is committed from `offset` on until the function is called."""
    holding = [True]

    def on_start(started: Machine) -> None:
        node = started.node
        if started is not machine or node is None:
            return
        join = node._join_quorum

        def join_and_hold() -> None:
            join()
            raft = node.quorum.raft
            advance = raft.advance_high_watermark
            raft.advance_high_watermark = lambda to: advance(min(to, offset) if holding[0] else to)  # type: ignore[method-assign]

        node._join_quorum = join_and_hold  # type: ignore[method-assign]

    world.on_start.append(on_start)
    return lambda: holding.__setitem__(0, False)


def test_who_says_it_were_a_replica_commits_nothing() -> None:
    """A replica names the epoch of its process; requests before version 15 cannot."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        leader = await connection_to(4)
        world.network.isolate({"n5"}, {"n4"})
        assert await produce(leader, b"here alone", acks=1) == ErrorCode.NONE
        wanted = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
        request = FetchRequest(replica_id=5, max_wait_ms=0, topics=[FetchTopic(topic=TOPIC, partitions=[wanted])])
        answer = await leader.request(request, version=_FIRST_VERSION_WITH_NAMES_ONLY)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetch(leader)).high_watermark == 0

    play(story)


@pytest.mark.parametrize("is_known", [True, False])
def test_min_insync_replicas_counts_from_when_it_is_set(is_known: bool) -> None:
    """R7: who leaves from then on may be elected, so that nothing is acknowledged without it; were it the default that
    the partition began with, the leader alone would acknowledge what its successor lacks.

    `is_known`: whether the leader knows of it when the other is put out of sync, or hears of both at once.
    """

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        leader = await connection_to(4)
        assert await produce(leader, b"first") == ErrorCode.NONE
        node = world.machines[4].node
        assert node is not None
        advance, known = node.quorum.raft.advance_high_watermark, node.image.offset + 1
        if not is_known:
            node.quorum.raft.advance_high_watermark = lambda to: advance(min(to, known))  # type: ignore[method-assign]
        admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n1:9092"}, "admin"))
        resource = (TOPIC_RESOURCE, TOPIC)
        await admin.incremental_alter_configs({resource: [("min.insync.replicas", SET, "2")]})
        await admin.close()
        world.network.isolate({"n5"}, {"n4"})
        assert await produce(leader, b"more", acks=1) == ErrorCode.NONE  # in sync is who has everything there is
        await until_led_by(world, 4, in_sync=1)
        assert await produce(leader, b"second") != ErrorCode.NONE
        node.quorum.raft.advance_high_watermark = advance  # type: ignore[method-assign]
        await world.until(lambda: node.image.offset >= world.image.offset, 5.0, lambda: "broker 4 knows everything")
        assert await produce(leader, b"third") == ErrorCode.NOT_ENOUGH_REPLICAS
        world.kill(world.machines[4])
        world.network.heal()
        await until_led_by(world, 5, in_sync=1)

    play(story)


def test_a_broker_knows_the_configs_that_were_set_while_it_started() -> None:
    """R7: its logs are open by then, and it follows changes only from its registration on."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        machine = world.machines[4]
        world.kill(machine)
        await until_led_by(world, 5, in_sync=1)
        release = _hold_metadata_back(world, machine, world.image.offset + 1)
        world.boot(machine)
        await asyncio.sleep(2.0)
        admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n1:9092"}, "admin"))
        await admin.incremental_alter_configs({(TOPIC_RESOURCE, TOPIC): [("min.insync.replicas", SET, "2")]})
        await admin.close()
        release()
        await until_led_by(world, 5, in_sync=2)
        assert log_on(machine).config.min_insync_replicas == 2

    play(story)


def test_a_broker_that_starts_while_a_topic_is_made_again_has_nothing_of_the_old_one() -> None:
    """R12: it has opened the old one's log, and is told of the deletion only with its registration."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        for value in (b"old", b"older"):
            assert await produce(await connection_to(4), value) == ErrorCode.NONE
        machine = world.machines[4]
        world.kill(machine)
        await until_led_by(world, 5, in_sync=1)
        release = _hold_metadata_back(world, machine, world.image.offset + 1)
        world.boot(machine)
        await asyncio.sleep(2.0)
        await make_topic_again()
        release()
        await until_led_by(world, 5, in_sync=2)
        log = log_on(machine)
        assert log.topic_id == world.image.topics[TOPIC].topic_id
        assert log.log_end_offset == 1

    play(story)


def test_a_log_that_does_not_say_whose_it_is_does_not_serve_the_next_topic_of_its_name() -> None:
    """R12: a power failure may take its partition.metadata."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        for value in (b"old", b"older"):
            assert await produce(await connection_to(4), value) == ErrorCode.NONE
        machine = world.machines[4]
        path = f"{log_on(machine).directory}/partition.metadata"
        world.kill(machine)
        machine.disk.files.remove(path)
        await until_led_by(world, 5, in_sync=1)
        await make_topic_again()
        world.boot(machine)
        await until_led_by(world, 5, in_sync=2)
        assert log_on(machine).log_end_offset == 1
        assert machine.disk.files.exists(path)

    play(story)


def test_a_leader_whose_records_vanish_leaves_to_the_others() -> None:
    """R14: whoever reads what is not there gets an error, and then the records, from another."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        machine = world.machines[4]
        for value in (b"first", b"second"):
            assert await produce(await connection_to(4), value) == ErrorCode.NONE
            log_on(machine).roll(0)
        await asyncio.sleep(1.0)
        segment = log_on(machine).segments[0]
        segment.release()
        machine.disk.files.remove(segment.path(".log"))
        answer = await fetch(await connection_to(4))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await world.until(lambda: world.image.topics[TOPIC].partitions[0].leader == 5, 20.0, lambda: "5 leads")
        records = records_in(await fetch(await connection_to(5)))
        assert b"first" in records
        await until_led_by(world, 5, in_sync=2)
        assert log_on(machine).log_start_offset == 0
        assert log_on(machine).log_end_offset == 2

    play(story)


@pytest.mark.parametrize("loses", ["the end of its records", "its records", "its directory"])
def test_who_was_damaged_while_it_was_stopped_does_not_lead(loses: str) -> None:
    """R6: it had stopped in order, yet what it had acknowledged is not all there."""

    async def story(world: World) -> None:
        await make_topic(min_insync=2)
        machine = world.machines[4]
        path = log_on(machine).segments[-1].path(".log")
        for value in (b"first", b"second"):
            assert await produce(await connection_to(4), value) == ErrorCode.NONE
        await world.stop(world.machines[5])
        await world.stop(machine)
        if loses == "the end of its records":
            del machine.disk.files._files[path][-5:]
        elif loses == "its records":
            machine.disk.files.remove(path)
        else:
            machine.disk.files.remove_tree(path.rpartition("/")[0])
        world.boot(machine)
        await asyncio.sleep(5.0)
        assert machine.is_serving
        assert world.image.topics[TOPIC].partitions[0].leader == -1
        world.boot(world.machines[5])
        await until_led_by(world, 5, in_sync=2)
        assert log_on(machine).log_end_offset == 2

    play(story)


def test_the_last_in_sync_replica_keeps_what_is_sound_behind_what_it_has_lost() -> None:
    """It is turned to again, damaged or not: what it cut away for others to bring back nobody would have any more."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        machine = world.machines[4]
        for value in (b"first", b"second"):
            assert await produce(await connection_to(4), value) == ErrorCode.NONE
            log_on(machine).roll(0)
        lost = log_on(machine).segments[1].path(".log")
        await world.stop(world.machines[5])
        assert await produce(await connection_to(4), b"third") == ErrorCode.NONE
        await world.stop(machine)
        machine.disk.files.remove(lost)
        world.boot(world.machines[5])
        world.boot(machine)
        await until_led_by(world, 4, in_sync=2)
        assert log_on(machine).log_end_offset == 3
        assert b"third" in records_in(await fetch(await connection_to(4), offset=2))

    play(story)


def test_a_node_that_waits_in_vain_for_its_quorum_has_still_stopped_in_order() -> None:
    """Else it would have to check all of its logs, and be no eligible leader, though it has lost nothing."""

    async def story(world: World) -> None:
        await make_topic(min_insync=2)
        machine = world.machines[4]
        assert await produce(await connection_to(4), b"first") == ErrorCode.NONE
        others = [world.machines[node_id] for node_id in (5, 1, 2, 3)]
        for other in (machine, *others):
            await world.stop(other)
        world.properties["initial.broker.registration.timeout.ms"] = "2000"
        world.boot(machine)
        process = machine.process
        await world.until(lambda: machine.process is not process, 20.0, lambda: "it gives up")
        for other in others[1:]:
            world.boot(other)
        await world.until(lambda: machine.is_serving, 20.0, lambda: "it serves")
        assert machine.node is not None
        assert machine.node.broker is not None
        assert machine.node.broker.logs.was_closed_cleanly

    play(story)


def test_a_controller_whose_disk_fails_ends_and_another_decides() -> None:
    """It can commit nothing any more: staying would leave the cluster with nobody to decide."""

    async def story(world: World) -> None:
        active = next(machine for machine, node in world.nodes() if node.quorum.leads)
        starts = active.starts
        active.disk.sync_error = OSError(errno.EIO, os.strerror(errno.EIO))
        await make_topic(min_insync=1)
        await until_led_by(world, 4, in_sync=2)
        assert active.starts > starts

    play(story)


def test_a_client_does_not_wait_for_a_leader_that_hangs_once_another_leads() -> None:
    """Who is owed an answer looks who leads now: what the one has not answered goes to the other, and is there once."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        properties = {"bootstrap.servers": "n5:9092", "acks": "all", "linger.ms": "0", "request.timeout.ms": "30000"}
        writer = await Writer.open(ClientConfig.from_properties(properties, "producer"))
        properties = {"bootstrap.servers": "n5:9092", "auto.offset.reset": "earliest"}
        reader = await Reader.open(ClientConfig.from_properties(properties, "consumer"))
        reader.assign([(TOPIC, 0)])

        def send(value: bytes) -> asyncio.Future[RecordMetadata]:
            now_ms = asyncio.get_running_loop().wall_ms()  # type: ignore[attr-defined]
            return writer.send(TOPIC, 0, RecordColumns(values=[value], timestamps=now_ms))

        async def read() -> list[bytes | None]:
            return [value for batch in await reader.poll(20_000) for value in batch.columns.values]

        await send(b"0")
        assert await read() == [b"0"]
        world.pause(world.machines[4])
        hung = [send(b"1"), send(b"2")]
        await until_led_by(world, 5, in_sync=1)
        assert not any(sent.done() for sent in hung)
        others_s = world.now_s
        hung.append(send(b"3"))
        assert [(await sent).base_offset for sent in hung] == [1, 2, 3]
        values = await read()
        assert world.now_s - others_s < 7.0  # two looks
        while len(values) < 3:
            values += await read()
        assert values == [b"1", b"2", b"3"]
        world.resume(world.machines[4])
        await until_led_by(world, 5, in_sync=2)
        await asyncio.sleep(1.0)
        assert [log_on(world.machines[replica]).log_end_offset for replica in (4, 5)] == [4, 4]
        await writer.close()
        await reader.close()

    play(story)


def test_a_client_asks_another_when_the_broker_that_it_asked_who_leads_hangs() -> None:
    """It is the only one that it is connected to, and owed nothing before."""

    async def story(world: World) -> None:
        cluster = await patient_client("n4:9092", "producer")
        world.pause(world.machines[4])
        hung_s = world.now_s
        known, _ = await asyncio.gather(cluster.topic(TOPIC), coordinator_of(cluster, 30_000))
        assert known.partitions[0].replicas == (4, 5)
        assert world.now_s - hung_s < 8.0  # two looks
        await cluster.close()

    play(story)


def test_a_group_does_not_wait_for_a_coordinator_that_hangs_once_there_is_another() -> None:
    """What it is owed can be asked again."""

    async def story(world: World) -> None:
        cluster = await patient_client("n5:9092", "consumer")
        coordinator = await coordinator_of(cluster, 10_000)
        await commit_offset(cluster, 1)
        world.pause(world.machines[coordinator])
        hung_s = world.now_s
        await asyncio.gather(commit_offset(cluster, 2), committed(cluster))
        assert await committed(cluster) == 2
        assert world.now_s - hung_s < 8.0  # two looks, of which the first may be before the next one is found
        await cluster.close()

    play(story)


async def patient_client(bootstrap: str, role: str) -> Cluster:
    """Connected to one broker of the topic's, and content to wait half a minute for an answer."""
    await make_topic(min_insync=1)
    properties = {"bootstrap.servers": bootstrap, "request.timeout.ms": "30000"}
    return await Cluster.open(ClientConfig.from_properties(properties, role))


async def coordinator_of(cluster: Cluster, timeout_ms: int) -> int:
    return await cluster.retry(lambda: cluster.coordinator("g"), timeout_ms, "coordinator")


async def commit_offset(cluster: Cluster, offset: int) -> None:
    async def attempt() -> None:
        code = (await commit_offsets(cluster, "g", {(TOPIC, 0): OffsetAndMetadata(offset)}))[TOPIC, 0]
        if code != ErrorCode.NONE:
            cluster.forget_coordinator("g")
            raise BrokerError(code, "g")

    await cluster.retry(attempt, 60_000, "commit")


async def committed(cluster: Cluster) -> int:
    found = (await fetch_offsets(cluster, "g", [(TOPIC, 0)]))[TOPIC, 0]
    return -1 if found is None else found.offset


def test_no_fault_goes_beyond_what_is_survived_when_a_decision_is_committed_after_it() -> None:
    """Who is in sync by a decision that is yet to be committed counts: with it harmed, all that are in sync can be."""

    async def story(world: World) -> None:
        await make_topic(min_insync=1)
        world.network.isolate({"n5"}, {"n4"})
        assert await produce(await connection_to(4), b"here alone", acks=1) == ErrorCode.NONE
        await until_led_by(world, 4, in_sync=1)
        node = next(node for _, node in world.nodes() if node.quorum.leads)
        advance, known = node.quorum.raft.advance_high_watermark, node.quorum.raft.high_watermark
        node.quorum.raft.advance_high_watermark = lambda to: advance(min(to, known))  # type: ignore[method-assign]
        world.network.heal()

        def is_decided() -> bool:
            assert node.controller is not None
            decided = node.controller.decided
            return decided is not None and decided.topics[TOPIC].partitions[0].isr == (4, 5)

        await world.until(is_decided, 20.0, lambda: "5 is back in sync")
        assert world.image.topics[TOPIC].partitions[0].isr == (4,)
        assert world.may_kill(world.machines[4])
        world.cut_power(world.machines[5])
        assert not world.may_kill(world.machines[4])
        node.quorum.raft.advance_high_watermark = advance  # type: ignore[method-assign]
        await world.until(lambda: 5 in world.image.topics[TOPIC].partitions[0].isr, 20.0, lambda: "it is committed")
        assert not world.may_kill(world.machines[4])

    play(story)
