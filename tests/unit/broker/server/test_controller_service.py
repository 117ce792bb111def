"""Tests of ControllerService: responses after commits, discarded uncommitted changes, and fencing of silent brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.metadata.topics import TopicDefaults, create_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, Listener
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace_broker.server.controller import ControllerPolicy, ControllerService
from headrace_broker.server.log_config_provider import controller_topic_configs
from support.quorum import Storage, Voter
from support.virtual_time import VirtualTimeLoop, run_in_virtual_time


def run(work: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(work)


def next_block(image: MetadataImage) -> ControllerResult[range]:
    return allocate_producer_ids(image, 1)


class Cluster:
    """A controller (node 1) and brokers that the test simulates.

    Connections to the ports in `refusing_ports` are refused.
    """

    def __init__(self, storage: Storage, *, voters: tuple[int, ...] = (1,), **policy: Any) -> None:
        self.voter = Voter(storage, voters=voters)
        self.refusing_ports: set[int] = set()
        self.probed: list[int] = []
        self.service = ControllerService(
            self.voter.quorum,
            self.voter.committed,
            cluster_id="C",
            topic_configs=controller_topic_configs({}),
            policy=ControllerPolicy(**policy),
            refuses=self._refuses,
        )
        self._changed = asyncio.Event()
        self.voter.committed.subscribe(lambda delta, image: self._changed.set())
        self._incarnations = 0

    async def _refuses(self, host: str, port: int) -> bool:
        self.probed.append(port)
        self._changed.set()
        return port in self.refusing_ports

    @property
    def image(self) -> MetadataImage:
        return self.voter.image

    async def start(self) -> Cluster:
        self.voter.start()
        await self.voter.elected()
        return self

    async def stop(self) -> None:
        self.service.close()
        await self.voter.stop()

    async def until(self, holds: Any) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def join(self, broker_id: int, incarnation: bytes | None = None, *, is_local: bool = False) -> int:
        """Register and unfence a broker. Return the broker epoch.

        If `is_local` is true, the broker runs in the controller's process.
        """
        self._incarnations += 1
        listener = Listener(name="PLAINTEXT", host="localhost", port=9000 + broker_id, security_protocol=0)
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id="C",
            incarnation_id=incarnation or self._incarnations.to_bytes(16),
            listeners=[listener],
            log_dirs=[bytes([broker_id]) * 16],
        )
        epoch = (await self.service.register(request, is_local=is_local)).broker_epoch
        await self.send_heartbeat(broker_id, epoch)
        return epoch

    async def send_heartbeat(self, broker_id: int, epoch: int) -> bool:
        """Send a heartbeat of a caught-up broker. Return whether the broker is fenced."""
        request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=1 << 40)
        return (await self.service.heartbeat(request)).is_fenced

    async def create(self, name: str, factor: int) -> None:
        request = CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=factor)])
        response = await self.service.submit(
            lambda image: create_topics(
                image, request, defaults=TopicDefaults(), broker_properties={}, new_id=lambda: name.encode().ljust(16)
            )
        )
        assert response.topics[0].error_code == 0, response.topics[0].error_message

    def leader(self, name: str) -> int:
        return self.image.topics[name].partitions[0].leader


def test_controller_request_sees_earlier_uncommitted_changes() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage()).start()
        blocks = await asyncio.gather(*(cluster.service.submit(next_block) for _ in range(20)))
        assert blocks == [range(first, first + 1000) for first in range(0, 20_000, 1000)]
        await cluster.stop()

    run(work())


def test_response_is_sent_and_metadata_image_is_updated_only_after_the_records_are_committed() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), voters=(1, 2, 3)).start()
        waiting = asyncio.ensure_future(cluster.service.submit(next_block))
        await asyncio.sleep(0)
        await cluster.voter.until(cluster.voter.is_flushed)
        assert not waiting.done()
        assert cluster.image.next_producer_id == 0
        await cluster.voter.fetched()
        assert await waiting == range(1000)
        assert cluster.image.next_producer_id == 1000
        await cluster.stop()

    run(work())


def test_uncommitted_change_is_discarded_when_the_controller_loses_the_leadership() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), voters=(1, 2, 3)).start()
        waiting = asyncio.ensure_future(cluster.service.submit(next_block))
        await asyncio.sleep(0)
        await cluster.voter.deposed()
        with pytest.raises(ApiError) as caught:
            await waiting
        assert caught.value.code == ErrorCode.NOT_CONTROLLER
        assert not cluster.service.is_active
        assert cluster.image.next_producer_id == 0
        with pytest.raises(ApiError):
            await cluster.service.submit(next_block)
        await cluster.stop()

    run(work())


def test_error_response_waits_until_the_records_that_caused_the_error_are_committed() -> None:
    """The error depends on uncommitted records, which may be lost if the leader changes."""

    def refuse(image: MetadataImage) -> ControllerResult[None]:
        assert image.next_producer_id == 1000
        raise ApiError(ErrorCode.INVALID_UPDATE_VERSION)

    async def work() -> None:
        for is_deposed, code in ((False, ErrorCode.INVALID_UPDATE_VERSION), (True, ErrorCode.NOT_CONTROLLER)):
            cluster = await Cluster(Storage(), voters=(1, 2, 3)).start()
            change = asyncio.ensure_future(cluster.service.submit(next_block))
            await asyncio.sleep(0)
            refused = asyncio.ensure_future(cluster.service.submit(refuse))
            await cluster.voter.until(cluster.voter.is_flushed)
            assert not refused.done()
            await (cluster.voter.deposed() if is_deposed else cluster.voter.fetched())
            with pytest.raises(ApiError) as caught:
                await refused
            assert caught.value.code == code
            await asyncio.wait({change})
            assert (change.exception() is not None) == is_deposed
            await cluster.stop()

    run(work())


def test_metadata_change_is_reverted_if_its_records_cannot_be_appended() -> None:
    async def work() -> None:
        storage = Storage()
        cluster = await Cluster(storage).start()
        await cluster.service.submit(next_block)
        log = cluster.voter.quorum.log.log
        log.offline_reason = "the disk failed"
        with pytest.raises(ApiError, match="the disk failed"):
            await cluster.service.submit(next_block)
        log.offline_reason = None
        assert await cluster.service.submit(next_block) == range(1000, 2000)
        await cluster.stop()

    run(work())


def test_metadata_change_is_committed_even_if_its_request_is_cancelled() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage()).start()
        waiting = asyncio.ensure_future(cluster.service.submit(next_block))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await cluster.service.submit(next_block) == range(1000, 2000)
        await cluster.stop()

    run(work())


def test_silent_broker_is_fenced_when_its_session_expires() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=200).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        await cluster.create("t", 2)
        silent = cluster.leader("t")
        other = 5 - silent
        while not cluster.image.brokers[silent].fenced:
            assert not await cluster.send_heartbeat(other, epochs[other])
            await asyncio.sleep(0.02)
        assert cluster.leader("t") == other
        assert not cluster.image.brokers[other].fenced
        assert cluster.probed == []
        await cluster.stop()

    run(work())


def test_controller_whose_event_loop_was_blocked_handles_pending_heartbeats_before_it_fences_brokers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_broker.server.controller._LOOP_BLOCKED_MS", 100)

    async def scenario() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=300).start()
        epoch = await cluster.join(1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.call_later(0.05, loop.block, 0.6)
        await asyncio.sleep(0.35)  # the session's deadline has passed
        await cluster.send_heartbeat(1, epoch)  # this heartbeat arrived while the controller was blocked
        await asyncio.sleep(0.15)
        await cluster.stop()

    run(scenario())
    assert "Controller: the event loop was blocked for" in caplog.text
    assert "fencing the broker" not in caplog.text


def test_dead_broker_is_fenced_before_its_session_expires() -> None:
    """The controller tries to connect to the broker. The connection is refused, because the process is dead."""

    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        for broker in (2, 3):
            await cluster.join(broker)
        await cluster.create("t", 2)
        dead = cluster.leader("t")
        cluster.refusing_ports.add(9000 + dead)
        cluster.service.suspect(dead)
        await cluster.until(lambda: cluster.image.brokers[dead].fenced)
        assert cluster.leader("t") == 5 - dead
        await cluster.stop()

    run(work())


def test_broker_is_probed_again_if_it_accepts_and_closes_the_connection_of_the_probe() -> None:
    """The kernel accepts connections for a killed process until its listening socket is closed."""

    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        cluster.service.suspect(2)
        cluster.service.suspect(3)
        await cluster.until(lambda: {9002, 9003} <= set(cluster.probed))
        await asyncio.sleep(0.002)  # heartbeat times have a resolution of 1 ms
        await cluster.send_heartbeat(3, epochs[3])
        cluster.probed.clear()
        await cluster.until(lambda: cluster.probed.count(9002) == 2)
        cluster.refusing_ports.update((9002, 9003))
        await cluster.until(lambda: cluster.image.brokers[2].fenced)
        assert 9003 not in cluster.probed, "broker 3 sent a heartbeat"
        assert not cluster.image.brokers[3].fenced
        await cluster.stop()

    run(work())


def test_broker_that_was_fenced_by_mistake_is_unfenced_by_its_next_heartbeat() -> None:
    """The controller suspects that the broker is dead, and opens a connection to the broker as a probe.

    If the broker refuses the connection, the controller fences the broker. A live broker may refuse connections, too.
    """

    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        await cluster.create("t", 2)
        cluster.service.suspect(2)
        await cluster.until(lambda: cluster.probed)
        await cluster.service.submit(next_block)
        assert not cluster.image.brokers[2].fenced

        cluster.refusing_ports.add(9002)
        cluster.service.suspect(2)
        await cluster.until(lambda: cluster.image.brokers[2].fenced)
        assert not await cluster.send_heartbeat(2, epochs[2])
        assert not cluster.image.brokers[2].fenced
        partition = cluster.image.topics["t"].partitions[0]
        assert partition.leader in partition.isr
        await cluster.stop()

    run(work())


def test_broker_can_register_again_before_it_is_fenced_if_its_previous_process_is_dead() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        first = await cluster.join(2)
        with pytest.raises(ApiError) as caught:
            await cluster.join(2)
        assert caught.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert not await cluster.send_heartbeat(2, first)
        cluster.refusing_ports.add(9002)
        second = await cluster.join(2)
        assert second > first
        with pytest.raises(ApiError) as caught:
            await cluster.send_heartbeat(2, first)
        assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH
        await cluster.stop()

    run(work())


def test_heartbeats_of_a_brokers_previous_incarnation_do_not_extend_its_session() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=150).start()
        first = await cluster.join(2)
        cluster.refusing_ports.add(9002)
        await cluster.join(2)
        while not cluster.image.brokers[2].fenced:
            with pytest.raises(ApiError):
                await cluster.send_heartbeat(2, first)
            await asyncio.sleep(0.02)
        await cluster.stop()

    run(work())


def test_new_controller_probes_every_broker_except_the_broker_in_its_own_process() -> None:
    async def work() -> None:
        storage = Storage()
        cluster = await Cluster(storage).start()
        for broker in (1, 2, 3):
            await cluster.join(broker)
        await cluster.stop()
        again = Cluster(storage, session_timeout_ms=60_000)
        again.refusing_ports.add(9003)
        await again.start()
        await again.until(lambda: again.image.brokers[3].fenced)
        assert set(again.probed) == {9002, 9003}
        assert not again.image.brokers[2].fenced
        with pytest.raises(ApiError, match="is running"):
            await again.join(1, b"another".ljust(16))  # another process registers over the network
        # A local registration proves that the broker's previous process is dead.
        own = await again.join(1, b"new".ljust(16), is_local=True)
        assert own == again.image.brokers[1].epoch
        await again.stop()

    run(work())


def test_preferred_leader_is_elected_again_after_it_rejoins_the_isr() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        await cluster.create("t", 2)
        preferred = cluster.leader("t")
        cluster.refusing_ports.add(9000 + preferred)
        cluster.service.suspect(preferred)
        await cluster.until(lambda: cluster.leader("t") != preferred)
        await cluster.send_heartbeat(preferred, epochs[preferred])
        await cluster.service.balance_leaders()
        assert cluster.leader("t") != preferred  # the preferred leader is not in sync yet
        await cluster.service.submit(lambda image: _in_sync_again(image))
        await cluster.service.balance_leaders()
        assert cluster.leader("t") == preferred
        await cluster.stop()

    run(work())


def test_periodic_tasks_of_the_controller_continue_after_an_unexpected_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        cluster = await Cluster(Storage()).start()
        called_again = asyncio.Event()

        async def balance() -> None:
            if "unexpected exception" in caplog.text:
                called_again.set()
            raise AssertionError("unexpected exception")

        task = asyncio.ensure_future(cluster.service._run_periodically(0.01, balance))
        await called_again.wait()
        task.cancel()
        await cluster.stop()

    run(work())


def _in_sync_again(image: MetadataImage) -> ControllerResult[None]:
    from headrace_broker.protocol.metadata_records import PartitionChangeRecord

    topic = image.topics["t"]
    return ControllerResult(
        None, [PartitionChangeRecord(topic_id=topic.topic_id, partition_id=0, isr=list(topic.partitions[0].replicas))]
    )


def test_unregistered_broker_is_removed_from_the_image_and_its_heartbeats_are_rejected() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage()).start()
        epoch = await cluster.join(2)
        await cluster.service.unregister(2)
        assert 2 not in cluster.image.brokers
        with pytest.raises(ApiError) as caught:
            await cluster.send_heartbeat(2, epoch)
        assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH
        await cluster.stop()

    run(work())
