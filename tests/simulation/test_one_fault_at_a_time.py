"""Tests of replication invariants. Each test injects one fault at a moment at which random faults seldom occur.

Real nodes run in a simulation. Nodes 1 to 3 are brokers and controllers. Nodes 4 and 5 are only
brokers and have the replicas of the test's partition. docs/broker.md lists the rules by number
(R1 to R15).
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
from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.consumer import Consumer
from headrace_broker.client.delivery import RecordMetadata
from headrace_broker.client.errors import BrokerError, ClientError
from headrace_broker.client.offsets import OffsetAndMetadata, commit_offsets, fetch_offsets
from headrace_broker.client.producer import Producer
from headrace_broker.log.log import PartitionLog
from headrace_broker.metadata.image import TOPIC_RESOURCE
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace_broker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.simulation.invariants import Invariants
from headrace_broker.simulation.loop import SimulatedNode
from headrace_broker.simulation.simulated_cluster import Machine, SimulatedCluster

CONTROLLERS = {"n1", "n2", "n3"}
TOPIC = "t"
_FIRST_VERSION_WITH_NAMES_ONLY = 12


def run_scenario(scenario: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
    """Run `scenario` in a started cluster. Raises the exceptions of `scenario`."""
    cluster = SimulatedCluster(1, nodes=3, observers=2)
    Invariants(cluster)

    async def run() -> None:
        for machine in cluster.machines.values():
            cluster.boot(machine)
        machines = cluster.machines.values()
        await cluster.wait_until(
            lambda: all(machine.is_serving for machine in machines), 10.0, lambda: "all nodes serve"
        )
        client = cluster.loop.run_in_node(
            SimulatedNode("client"), lambda: cluster.loop.create_task(_await(scenario(cluster)))
        )
        await cluster.wait_until(client.done, 60.0, lambda: "the scenario ends")
        client.result()

    cluster.run(run())


async def _await(scenario: Awaitable[None]) -> None:
    await scenario


async def create_topic(*, min_insync: int) -> None:
    """Create the topic with one partition that has replicas on brokers 4 and 5. Broker 4 is the leader."""
    admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n5:9092"}, "admin"))
    configs = {"min.insync.replicas": str(min_insync)}
    error = (await admin.create_topics([NewTopic(TOPIC, configs=configs, assignments={0: [4, 5]})]))[TOPIC]
    assert error is None or error.code == ErrorCode.TOPIC_ALREADY_EXISTS  # an earlier attempt may have succeeded
    await admin.close()


async def recreate_topic() -> None:
    """Delete and recreate the topic, and write one record to broker 5, which must be the leader."""
    admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n1:9092"}, "admin"))
    assert await admin.delete_topics([TOPIC]) == {TOPIC: None}
    await admin.close()
    await create_topic(min_insync=1)
    assert await produce(await connect(5), b"new") == ErrorCode.NONE


async def connect(node_id: int) -> BrokerConnection:
    return await BrokerConnection.open(f"n{node_id}", 9092, setup_timeout_ms=500, request_timeout_ms=3000)


async def produce(connection: BrokerConnection, value: bytes, *, acks: int = -1) -> int:
    """Produce one record and return the response's error code."""
    now_ms = asyncio.get_running_loop().wall_ms()  # type: ignore[attr-defined]
    # Retention would delete a record whose timestamp is not from the simulation's clock.
    batch = build_batch(RecordColumns(values=[value], timestamps=now_ms))
    data = PartitionProduceData(index=0, records=bytes(batch))
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    request = ProduceRequest(acks=acks, timeout_ms=1500, topic_data=[topic])
    response = await connection.request(request, version=_FIRST_VERSION_WITH_NAMES_ONLY)
    return response.responses[0].partition_responses[0].error_code


async def fetch(connection: BrokerConnection, offset: int = 0) -> PartitionData:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=TOPIC, partitions=[partition])])
    response = await connection.request(request, version=_FIRST_VERSION_WITH_NAMES_ONLY)
    return response.responses[0].partitions[0]


def records_in(response: PartitionData) -> bytes:
    return bytes(response.records or b"")  # type: ignore[arg-type]


def log_of(machine: Machine) -> PartitionLog:
    assert machine.node is not None
    assert machine.node.broker is not None
    return machine.node.broker.logs.logs[TOPIC, 0]


async def wait_for_leader(cluster: SimulatedCluster, leader: int, *, in_sync: int) -> None:
    def is_led() -> bool:
        topic = cluster.image.topics.get(TOPIC)
        return topic is not None and (topic.partitions[0].leader, len(topic.partitions[0].isr)) == (leader, in_sync)

    await cluster.wait_until(is_led, 20.0, lambda: f"broker {leader} leads with {in_sync} replicas in sync")


def test_leader_that_is_isolated_from_the_controllers_acknowledges_no_record() -> None:
    """A test of rule R4 in docs/broker.md. The controllers elect the follower as the new leader.

    Without the controllers, the old leader cannot remove the follower from the ISR.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        old = await connect(4)
        assert await produce(old, b"first") == ErrorCode.NONE
        cluster.network.isolate({"n4"}, CONTROLLERS)
        await wait_for_leader(cluster, 5, in_sync=1)
        for _ in range(2):  # before the second request, the leader proposes an ISR that contains only itself
            assert await produce(old, b"unacknowledged") == ErrorCode.REQUEST_TIMED_OUT
        new = await connect(5)
        assert await produce(new, b"second") == ErrorCode.NONE
        assert (await fetch(old)).high_watermark == 1
        cluster.network.heal()
        await wait_for_leader(cluster, 5, in_sync=2)
        records = records_in(await fetch(new, 1))
        assert b"second" in records
        assert b"unacknowledged" not in records

    run_scenario(scenario)


def test_consumers_cannot_read_a_record_acknowledged_with_acks_1_while_the_isr_is_below_min_insync_replicas() -> None:
    """A test of rule R7 in docs/broker.md. The leader acknowledges a record that was sent with acks=1.

    Consumers can read the record only after a follower has replicated the record.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=2)
        leader = await connect(4)
        assert await produce(leader, b"replicated") == ErrorCode.NONE
        cluster.kill(cluster.machines[5])
        await wait_for_leader(cluster, 4, in_sync=1)
        assert await produce(leader, b"unreplicated", acks=1) == ErrorCode.NONE
        assert await produce(leader, b"rejected") == ErrorCode.NOT_ENOUGH_REPLICAS
        response = await fetch(leader, 1)
        assert (response.error_code, response.high_watermark, records_in(response)) == (ErrorCode.NONE, 1, b"")
        cluster.boot(cluster.machines[5])
        await wait_for_leader(cluster, 4, in_sync=2)
        await asyncio.sleep(0.5)
        response = await fetch(leader, 1)
        assert response.high_watermark == 2
        assert b"unreplicated" in records_in(response)

    run_scenario(scenario)


@pytest.mark.parametrize("lacks_only_its_registration", [False, True])
def test_restarted_broker_accepts_requests_only_after_it_has_caught_up_with_metadata(
    lacks_only_its_registration: bool,
) -> None:
    """A test of rule R11 in docs/broker.md. The test hides metadata records from the restarted broker for a while.

    If `lacks_only_its_registration` is True, only the broker's new registration is hidden. Otherwise, all records that
    were written after the broker's crash are hidden. According to the older records, the broker is still the leader.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        assert await produce(await connect(4), b"first") == ErrorCode.NONE
        machine = cluster.machines[4]
        assert machine.node is not None
        known = machine.node.image.offset + 1
        cluster.kill(machine)
        await wait_for_leader(cluster, 5, in_sync=1)
        release = _hide_metadata(cluster, machine, cluster.image.offset + 1 if lacks_only_its_registration else known)
        cluster.boot(machine)
        await asyncio.sleep(2.0)
        assert machine.is_up
        with pytest.raises(ClientError):
            await connect(4)
        release()
        await wait_for_leader(cluster, 5, in_sync=2)
        assert await produce(await connect(4), b"to the old leader") == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_scenario(scenario)


def _hide_metadata(cluster: SimulatedCluster, machine: Machine, offset: int) -> Callable[[], None]:
    """Hide the metadata records at and above `offset` from the machine's next process.

    Return a function that makes the records visible.
    """
    hiding = [True]

    def on_start(started: Machine) -> None:
        node = started.node
        if started is not machine or node is None:
            return
        join = node._join_quorum

        def join_and_hide() -> None:
            join()
            raft = node.quorum.raft
            advance = raft.advance_high_watermark
            raft.advance_high_watermark = lambda to: advance(min(to, offset) if hiding[0] else to)  # type: ignore[method-assign]

        node._join_quorum = join_and_hide  # type: ignore[method-assign]

    cluster.on_start.append(on_start)
    return lambda: hiding.__setitem__(0, False)


def test_fetch_with_replica_id_but_without_replica_epoch_does_not_advance_high_watermark() -> None:
    """A Fetch request before version 15 has no replica epoch, so the leader cannot verify the sender."""

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        leader = await connect(4)
        cluster.network.isolate({"n5"}, {"n4"})
        assert await produce(leader, b"unreplicated", acks=1) == ErrorCode.NONE
        partition = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1 << 20)
        request = FetchRequest(replica_id=5, max_wait_ms=0, topics=[FetchTopic(topic=TOPIC, partitions=[partition])])
        response = await leader.request(request, version=_FIRST_VERSION_WITH_NAMES_ONLY)
        assert response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await fetch(leader)).high_watermark == 0

    run_scenario(scenario)


@pytest.mark.parametrize("is_known", [True, False])
def test_leader_alone_in_the_isr_acknowledges_no_record_after_min_insync_replicas_is_raised(is_known: bool) -> None:
    """A test of rule R7 in docs/broker.md. The leader must not acknowledge records that a replica in the ELR lacks.

    In the test, the follower leaves the ISR, and the ISR is then smaller than the new min.insync.replicas. The follower
    therefore joins the ELR, and can be elected leader later. If the leader still used the old min.insync.replicas, the
    leader would acknowledge records that the follower lacks. If `is_known` is True, the leader receives the new config
    before the ISR change. Otherwise, the leader receives both changes at the same time.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        leader = await connect(4)
        assert await produce(leader, b"first") == ErrorCode.NONE
        node = cluster.machines[4].node
        assert node is not None
        advance, known = node.quorum.raft.advance_high_watermark, node.image.offset + 1
        if not is_known:
            node.quorum.raft.advance_high_watermark = lambda to: advance(min(to, known))  # type: ignore[method-assign]
        admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n1:9092"}, "admin"))
        resource = (TOPIC_RESOURCE, TOPIC)
        await admin.incremental_alter_configs({resource: [("min.insync.replicas", SET, "2")]})
        await admin.close()
        cluster.network.isolate({"n5"}, {"n4"})
        # Without a new record, the follower would count as caught up and stay in the ISR.
        assert await produce(leader, b"more", acks=1) == ErrorCode.NONE
        await wait_for_leader(cluster, 4, in_sync=1)
        assert await produce(leader, b"second") != ErrorCode.NONE
        node.quorum.raft.advance_high_watermark = advance  # type: ignore[method-assign]
        await cluster.wait_until(lambda: node.image.offset >= cluster.image.offset, 5.0, lambda: "broker 4 catches up")
        assert await produce(leader, b"third") == ErrorCode.NOT_ENOUGH_REPLICAS
        cluster.kill(cluster.machines[4])
        cluster.network.heal()
        await wait_for_leader(cluster, 5, in_sync=1)

    run_scenario(scenario)


def test_broker_applies_a_topic_config_that_changes_during_its_startup() -> None:
    """A test of rule R7 in docs/broker.md. The broker opens its logs before the config changes.

    The broker applies the metadata records after the config has changed.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        machine = cluster.machines[4]
        cluster.kill(machine)
        await wait_for_leader(cluster, 5, in_sync=1)
        release = _hide_metadata(cluster, machine, cluster.image.offset + 1)
        cluster.boot(machine)
        await asyncio.sleep(2.0)
        admin = await Admin.open(ClientConfig.from_properties({"bootstrap.servers": "n1:9092"}, "admin"))
        await admin.incremental_alter_configs({(TOPIC_RESOURCE, TOPIC): [("min.insync.replicas", SET, "2")]})
        await admin.close()
        release()
        await wait_for_leader(cluster, 5, in_sync=2)
        assert log_of(machine).config.min_insync_replicas == 2

    run_scenario(scenario)


def test_topic_that_is_recreated_during_broker_startup_contains_no_records_of_the_deleted_topic() -> None:
    """A test of rule R12 in docs/broker.md. The broker opens the log of the old topic before the topic is deleted."""

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        for value in (b"old", b"older"):
            assert await produce(await connect(4), value) == ErrorCode.NONE
        machine = cluster.machines[4]
        cluster.kill(machine)
        await wait_for_leader(cluster, 5, in_sync=1)
        release = _hide_metadata(cluster, machine, cluster.image.offset + 1)
        cluster.boot(machine)
        await asyncio.sleep(2.0)
        await recreate_topic()
        release()
        await wait_for_leader(cluster, 5, in_sync=2)
        log = log_of(machine)
        assert log.topic_id == cluster.image.topics[TOPIC].topic_id
        assert log.log_end_offset == 1

    run_scenario(scenario)


def test_log_without_partition_metadata_is_not_used_for_a_recreated_topic() -> None:
    """A test of rule R12 in docs/broker.md. The test removes the log's file partition.metadata.

    A power failure can have the same effect. The file contains the topic id.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        for value in (b"old", b"older"):
            assert await produce(await connect(4), value) == ErrorCode.NONE
        machine = cluster.machines[4]
        path = f"{log_of(machine).directory}/partition.metadata"
        cluster.kill(machine)
        machine.disk.files.remove(path)
        await wait_for_leader(cluster, 5, in_sync=1)
        await recreate_topic()
        cluster.boot(machine)
        await wait_for_leader(cluster, 5, in_sync=2)
        assert log_of(machine).log_end_offset == 1
        assert machine.disk.files.exists(path)

    run_scenario(scenario)


def test_leader_with_a_missing_segment_resigns_and_another_replica_is_elected() -> None:
    """A test of rule R14 in docs/broker.md. A fetch of the missing records from the old leader fails.

    The same fetch from the new leader succeeds.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        machine = cluster.machines[4]
        for value in (b"first", b"second"):
            assert await produce(await connect(4), value) == ErrorCode.NONE
            log_of(machine).roll(0)
        await asyncio.sleep(1.0)
        segment = log_of(machine).segments[0]
        segment.release()
        machine.disk.files.remove(segment.path(".log"))
        response = await fetch(await connect(4))
        assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.wait_until(
            lambda: cluster.image.topics[TOPIC].partitions[0].leader == 5, 20.0, lambda: "broker 5 leads"
        )
        records = records_in(await fetch(await connect(5)))
        assert b"first" in records
        await wait_for_leader(cluster, 5, in_sync=2)
        assert log_of(machine).log_start_offset == 0
        assert log_of(machine).log_end_offset == 2

    run_scenario(scenario)


@pytest.mark.parametrize("loses", ["end of segment", "segment", "directory"])
def test_replica_that_lost_records_while_its_broker_was_stopped_is_not_elected(loses: str) -> None:
    """A test of rule R6 in docs/broker.md.

    After a clean shutdown of the broker, the test removes acknowledged records from the replica's log. `loses` names
    the removed part of the log.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=2)
        machine = cluster.machines[4]
        path = log_of(machine).segments[-1].path(".log")
        for value in (b"first", b"second"):
            assert await produce(await connect(4), value) == ErrorCode.NONE
        await cluster.stop(cluster.machines[5])
        await cluster.stop(machine)
        if loses == "end of segment":
            del machine.disk.files._files[path][-5:]
        elif loses == "segment":
            machine.disk.files.remove(path)
        else:
            machine.disk.files.remove_tree(path.rpartition("/")[0])
        cluster.boot(machine)
        await asyncio.sleep(5.0)
        assert machine.is_serving
        assert cluster.image.topics[TOPIC].partitions[0].leader == -1
        cluster.boot(cluster.machines[5])
        await wait_for_leader(cluster, 5, in_sync=2)
        assert log_of(machine).log_end_offset == 2

    run_scenario(scenario)


def test_last_in_sync_replica_that_lost_a_segment_is_elected_and_keeps_the_records_after_this_segment() -> None:
    """The replica with the lost segment is elected, because no other replica has the records after the segment."""

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        machine = cluster.machines[4]
        for value in (b"first", b"second"):
            assert await produce(await connect(4), value) == ErrorCode.NONE
            log_of(machine).roll(0)
        lost = log_of(machine).segments[1].path(".log")
        await cluster.stop(cluster.machines[5])
        assert await produce(await connect(4), b"third") == ErrorCode.NONE
        await cluster.stop(machine)
        machine.disk.files.remove(lost)
        cluster.boot(cluster.machines[5])
        cluster.boot(machine)
        await wait_for_leader(cluster, 4, in_sync=2)
        assert log_of(machine).log_end_offset == 3
        assert b"third" in records_in(await fetch(await connect(4), offset=2))

    run_scenario(scenario)


def test_broker_that_exits_because_it_finds_no_quorum_keeps_its_clean_shutdown_marker() -> None:
    """The broker has lost no record, so at its next start it must not recover its logs and must stay in the ELR."""

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=2)
        machine = cluster.machines[4]
        assert await produce(await connect(4), b"first") == ErrorCode.NONE
        others = [cluster.machines[node_id] for node_id in (5, 1, 2, 3)]
        for other in (machine, *others):
            await cluster.stop(other)
        cluster.properties["initial.broker.registration.timeout.ms"] = "2000"
        cluster.boot(machine)
        process = machine.process
        await cluster.wait_until(lambda: machine.process is not process, 20.0, lambda: "the process exits")
        for other in others[1:]:
            cluster.boot(other)
        await cluster.wait_until(lambda: machine.is_serving, 20.0, lambda: "the node serves")
        assert machine.node is not None
        assert machine.node.broker is not None
        assert machine.node.broker.logs.was_closed_cleanly

    run_scenario(scenario)


def test_active_controller_with_a_failed_disk_exits_and_another_controller_is_elected() -> None:
    """A controller whose disk fails cannot commit records, so another node must become the active controller."""

    async def scenario(cluster: SimulatedCluster) -> None:
        active = next(machine for machine, node in cluster.nodes() if node.quorum.is_active_leader)
        starts = active.starts
        active.disk.sync_error = OSError(errno.EIO, os.strerror(errno.EIO))
        await create_topic(min_insync=1)
        await wait_for_leader(cluster, 4, in_sync=2)
        assert active.starts > starts

    run_scenario(scenario)


def test_client_switches_to_new_leader_while_old_leader_hangs() -> None:
    """The client finds the new leader while its requests are pending, and resends the requests to the new leader.

    The log must not contain duplicates.
    """

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        properties = {"bootstrap.servers": "n5:9092", "acks": "all", "linger.ms": "0", "request.timeout.ms": "30000"}
        producer = await Producer.open(ClientConfig.from_properties(properties, "producer"))
        properties = {"bootstrap.servers": "n5:9092", "auto.offset.reset": "earliest"}
        consumer = await Consumer.open(ClientConfig.from_properties(properties, "consumer"))
        consumer.assign([(TOPIC, 0)])

        def send(value: bytes) -> asyncio.Future[RecordMetadata]:
            now_ms = asyncio.get_running_loop().wall_ms()  # type: ignore[attr-defined]
            return producer.send(TOPIC, 0, RecordColumns(values=[value], timestamps=now_ms))

        async def read() -> list[bytes | None]:
            return [value for batch in await consumer.poll(20_000) for value in batch.columns.values]

        await send(b"0")
        assert await read() == [b"0"]
        cluster.pause(cluster.machines[4])
        hung = [send(b"1"), send(b"2")]
        await wait_for_leader(cluster, 5, in_sync=1)
        assert not any(sent.done() for sent in hung)
        elected_s = cluster.now_s
        hung.append(send(b"3"))
        assert [(await sent).base_offset for sent in hung] == [1, 2, 3]
        values = await read()
        # Two of the client's checks for hung brokers take up to 6 s.
        assert cluster.now_s - elected_s < 7.0
        while len(values) < 3:
            values += await read()
        assert values == [b"1", b"2", b"3"]
        cluster.resume(cluster.machines[4])
        await wait_for_leader(cluster, 5, in_sync=2)
        await asyncio.sleep(1.0)
        assert [log_of(cluster.machines[replica]).log_end_offset for replica in (4, 5)] == [4, 4]
        await producer.close()
        await consumer.close()

    run_scenario(scenario)


def test_client_requests_metadata_from_another_broker_when_the_broker_that_it_is_connected_to_hangs() -> None:
    """The client is connected only to one broker. When this broker hangs, the client has no pending request."""

    async def scenario(cluster: SimulatedCluster) -> None:
        client = await open_client_with_long_timeout("n4:9092", "producer")
        cluster.pause(cluster.machines[4])
        hung_s = cluster.now_s
        known, _ = await asyncio.gather(client.topic(TOPIC), find_coordinator(client, 30_000))
        assert known.partitions[0].replicas == (4, 5)
        # Two of the client's checks for hung brokers take up to 6 s.
        assert cluster.now_s - hung_s < 8.0
        await client.close()

    run_scenario(scenario)


def test_group_member_switches_to_new_coordinator_while_old_coordinator_hangs() -> None:
    """The client resends the member's pending requests to the new coordinator."""

    async def scenario(cluster: SimulatedCluster) -> None:
        client = await open_client_with_long_timeout("n5:9092", "consumer")
        coordinator = await find_coordinator(client, 10_000)
        await commit_offset(client, 1)
        cluster.pause(cluster.machines[coordinator])
        hung_s = cluster.now_s
        await asyncio.gather(commit_offset(client, 2), committed_offset(client))
        assert await committed_offset(client) == 2
        # Two of the client's checks for hung brokers take up to 6 s. At the first check, the new coordinator may
        # not be elected yet.
        assert cluster.now_s - hung_s < 8.0
        await client.close()

    run_scenario(scenario)


async def open_client_with_long_timeout(bootstrap: str, role: str) -> Cluster:
    """Create the test topic, and return a client of `bootstrap` with the role `role` ("producer" or "consumer").

    The client's request timeout is 30 s.
    """
    await create_topic(min_insync=1)
    properties = {"bootstrap.servers": bootstrap, "request.timeout.ms": "30000"}
    return await Cluster.open(ClientConfig.from_properties(properties, role))


async def find_coordinator(client: Cluster, timeout_ms: int) -> int:
    return await client.retry(lambda: client.coordinator("g"), timeout_ms, "coordinator")


async def commit_offset(client: Cluster, offset: int) -> None:
    async def attempt() -> None:
        code = (await commit_offsets(client, "g", {(TOPIC, 0): OffsetAndMetadata(offset)}))[TOPIC, 0]
        if code != ErrorCode.NONE:
            client.forget_coordinator("g")
            raise BrokerError(code, "g")

    await client.retry(attempt, 60_000, "commit")


async def committed_offset(client: Cluster) -> int:
    found = (await fetch_offsets(client, "g", [(TOPIC, 0)]))[TOPIC, 0]
    return -1 if found is None else found.offset


def test_simulation_considers_the_uncommitted_isr_when_it_decides_whether_it_may_kill_a_broker() -> None:
    """`may_kill` also counts the members of an uncommitted ISR, because this ISR may be committed after the fault."""

    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        cluster.network.isolate({"n5"}, {"n4"})
        assert await produce(await connect(4), b"unreplicated", acks=1) == ErrorCode.NONE
        await wait_for_leader(cluster, 4, in_sync=1)
        node = next(node for _, node in cluster.nodes() if node.quorum.is_active_leader)
        advance, known = node.quorum.raft.advance_high_watermark, node.quorum.raft.high_watermark
        node.quorum.raft.advance_high_watermark = lambda to: advance(min(to, known))  # type: ignore[method-assign]
        cluster.network.heal()

        def is_in_uncommitted_isr() -> bool:
            assert node.controller is not None
            decided = node.controller.latest_image
            return decided is not None and decided.topics[TOPIC].partitions[0].isr == (4, 5)

        await cluster.wait_until(is_in_uncommitted_isr, 20.0, lambda: "broker 5 is in an uncommitted ISR")
        assert cluster.image.topics[TOPIC].partitions[0].isr == (4,)
        assert cluster.may_kill(cluster.machines[4])
        cluster.cut_power(cluster.machines[5])
        assert not cluster.may_kill(cluster.machines[4])
        node.quorum.raft.advance_high_watermark = advance  # type: ignore[method-assign]
        await cluster.wait_until(
            lambda: 5 in cluster.image.topics[TOPIC].partitions[0].isr, 20.0, lambda: "the ISR is committed"
        )
        assert not cluster.may_kill(cluster.machines[4])

    run_scenario(scenario)


@pytest.mark.parametrize("can_sync", [True, False])
def test_simulation_counts_a_stop_as_clean_only_if_the_node_could_sync_its_logs(can_sync: bool) -> None:
    async def scenario(cluster: SimulatedCluster) -> None:
        await create_topic(min_insync=1)
        assert await produce(await connect(4), b"replicated", acks=-1) == ErrorCode.NONE
        machine = cluster.machines[5]
        if not can_sync:
            machine.disk.sync_error = OSError(errno.EIO, os.strerror(errno.EIO))
        await cluster.stop(machine)
        assert (machine.unclean_shutdown_epoch is None) == can_sync

    run_scenario(scenario)
