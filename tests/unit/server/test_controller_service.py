"""The controller at work: answers after commit, forgets what was not committed, fences the silent and the dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.metadata.topics import TopicDefaults, create_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, Listener
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace_broker.server.controller import ControllerPolicy, ControllerService
from headrace_broker.server.topic_rules import topic_rules
from support.quorum import Storage, Voter


def run(work: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(in_time())


def next_block(image: MetadataImage) -> Outcome[range]:
    return allocate_producer_ids(image, 1)


class Cluster:
    """A controller (node 1) of brokers that a test plays; `refusing` are the ports at which nobody listens."""

    def __init__(self, storage: Storage, *, voters: tuple[int, ...] = (1,), **policy: Any) -> None:
        self.voter = Voter(storage, voters=voters)
        self.refusing: set[int] = set()
        self.probed: list[int] = []
        self.service = ControllerService(
            self.voter.quorum,
            self.voter.committed,
            cluster_id="C",
            rules=topic_rules({}),
            policy=ControllerPolicy(**policy),
            refuses=self._refuses,
        )
        self._changed = asyncio.Event()
        self.voter.committed.subscribe(lambda delta, image: self._changed.set())
        self._incarnations = 0

    async def _refuses(self, host: str, port: int) -> bool:
        self.probed.append(port)
        self._changed.set()
        return port in self.refusing

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

    async def join(self, broker_id: int, incarnation: bytes | None = None, *, is_from_here: bool = False) -> int:
        """Register and unfence a broker; returns its epoch."""
        self._incarnations += 1
        listener = Listener(name="PLAINTEXT", host="localhost", port=9000 + broker_id, security_protocol=0)
        request = BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id="C",
            incarnation_id=incarnation or self._incarnations.to_bytes(16),
            listeners=[listener],
            log_dirs=[bytes([broker_id]) * 16],
        )
        epoch = (await self.service.register(request, is_from_here=is_from_here)).broker_epoch
        await self.beat(broker_id, epoch)
        return epoch

    async def beat(self, broker_id: int, epoch: int) -> bool:
        """A heartbeat of a broker that has read everything; returns whether it is fenced."""
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


def test_decisions_see_those_before_them() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage()).start()
        blocks = await asyncio.gather(*(cluster.service.submit(next_block) for _ in range(20)))
        assert blocks == [range(first, first + 1000) for first in range(0, 20_000, 1000)]
        await cluster.stop()

    run(work())


def test_nothing_is_answered_or_shown_before_it_is_committed() -> None:
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


def test_what_was_not_committed_is_forgotten_with_leadership() -> None:
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


def test_a_refusal_is_not_told_before_what_it_knew_is_committed() -> None:
    """Whoever is told that its state is old waits for the newer one, which might be forgotten."""

    def refuse(image: MetadataImage) -> Outcome[None]:
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


def test_a_decision_that_cannot_be_appended_leaves_no_trace() -> None:
    async def work() -> None:
        storage = Storage()
        cluster = await Cluster(storage).start()
        await cluster.service.submit(next_block)
        log = cluster.voter.quorum.log.log
        log.offline_reason = "the disk is gone"
        with pytest.raises(ApiError, match="the disk is gone"):
            await cluster.service.submit(next_block)
        log.offline_reason = None
        assert await cluster.service.submit(next_block) == range(1000, 2000)
        await cluster.stop()

    run(work())


def test_an_abandoned_request_is_still_carried_out() -> None:
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


def test_a_silent_broker_is_fenced_when_its_session_is_over() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=200).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        await cluster.create("t", 2)
        silent = cluster.leader("t")
        other = 5 - silent
        while not cluster.image.brokers[silent].fenced:
            assert not await cluster.beat(other, epochs[other])
            await asyncio.sleep(0.02)
        assert cluster.leader("t") == other
        assert not cluster.image.brokers[other].fenced
        assert cluster.probed == []
        await cluster.stop()

    run(work())


def test_a_controller_that_was_held_up_hears_what_waits_before_it_fences(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_broker.server.controller._HELD_UP_MS", 100)

    async def scenario() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=300).start()
        epoch = await cluster.join(1)
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.6)
        await asyncio.sleep(0.35)  # later than the deadline of its session
        await cluster.beat(1, epoch)  # which came while the controller was held up
        await asyncio.sleep(0.15)
        await cluster.stop()

    run(scenario())
    assert "was held up for" in caplog.text
    assert "fencing it" not in caplog.text


def test_a_dead_broker_is_fenced_long_before_its_session_is_over() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        for broker in (2, 3):
            await cluster.join(broker)
        await cluster.create("t", 2)
        dead = cluster.leader("t")
        cluster.refusing.add(9000 + dead)
        cluster.service.suspect(dead)
        await cluster.until(lambda: cluster.image.brokers[dead].fenced)
        assert cluster.leader("t") == 5 - dead
        await cluster.stop()

    run(work())


def test_a_process_that_takes_connections_while_it_dies_is_looked_at_again() -> None:
    """The kernel takes connections for a process that was killed until its listening socket is closed."""

    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        cluster.service.suspect(2)
        cluster.service.suspect(3)
        await cluster.until(lambda: {9002, 9003} <= set(cluster.probed))
        await asyncio.sleep(0.002)  # the clock of heartbeats has milliseconds
        await cluster.beat(3, epochs[3])
        cluster.probed.clear()
        await cluster.until(lambda: cluster.probed.count(9002) == 2)
        cluster.refusing.update((9002, 9003))
        await cluster.until(lambda: cluster.image.brokers[2].fenced)
        assert 9003 not in cluster.probed, "it was heard of"
        assert not cluster.image.brokers[3].fenced
        await cluster.stop()

    run(work())


def test_a_false_alarm_is_harmless() -> None:
    """Who answers the probe stays; who was taken for dead though it lives serves again from its next heartbeat on."""

    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        await cluster.create("t", 2)
        cluster.service.suspect(2)
        await cluster.until(lambda: cluster.probed)
        await cluster.service.submit(next_block)
        assert not cluster.image.brokers[2].fenced

        cluster.refusing.add(9002)
        cluster.service.suspect(2)
        await cluster.until(lambda: cluster.image.brokers[2].fenced)
        assert not await cluster.beat(2, epochs[2])
        assert not cluster.image.brokers[2].fenced
        partition = cluster.image.topics["t"].partitions[0]
        assert partition.leader in partition.isr
        await cluster.stop()

    run(work())


def test_a_restart_that_is_quicker_than_the_alarm_is_no_duplicate() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        first = await cluster.join(2)
        with pytest.raises(ApiError) as caught:
            await cluster.join(2)
        assert caught.value.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        assert not await cluster.beat(2, first)
        cluster.refusing.add(9002)
        second = await cluster.join(2)
        assert second > first
        with pytest.raises(ApiError) as caught:
            await cluster.beat(2, first)
        assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH
        await cluster.stop()

    run(work())


def test_heartbeats_of_an_old_incarnation_keep_nobody_alive() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=150).start()
        first = await cluster.join(2)
        cluster.refusing.add(9002)
        await cluster.join(2)
        while not cluster.image.brokers[2].fenced:
            with pytest.raises(ApiError):
                await cluster.beat(2, first)
            await asyncio.sleep(0.02)
        await cluster.stop()

    run(work())


def test_a_new_controller_looks_for_every_broker_but_its_own() -> None:
    async def work() -> None:
        storage = Storage()
        cluster = await Cluster(storage).start()
        for broker in (1, 2, 3):
            await cluster.join(broker)
        await cluster.stop()
        again = Cluster(storage, session_timeout_ms=60_000)
        again.refusing.add(9003)
        await again.start()
        await again.until(lambda: again.image.brokers[3].fenced)
        assert set(again.probed) == {9002, 9003}
        assert not again.image.brokers[2].fenced
        with pytest.raises(ApiError, match="is alive"):
            await again.join(1, b"another".ljust(16))  # by the network, from whomever
        own = await again.join(
            1, b"new".ljust(16), is_from_here=True
        )  # the process is new, its predecessor needs no proof of death
        assert own == again.image.brokers[1].epoch
        await again.stop()

    run(work())


def test_leaders_come_back_to_their_preferred_replicas() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage(), session_timeout_ms=60_000).start()
        epochs = {broker: await cluster.join(broker) for broker in (2, 3)}
        await cluster.create("t", 2)
        preferred = cluster.leader("t")
        cluster.refusing.add(9000 + preferred)
        cluster.service.suspect(preferred)
        await cluster.until(lambda: cluster.leader("t") != preferred)
        await cluster.beat(preferred, epochs[preferred])
        await cluster.service.balance_leaders()
        assert cluster.leader("t") != preferred  # it is not in sync yet
        await cluster.service.submit(lambda image: _in_sync_again(image))
        await cluster.service.balance_leaders()
        assert cluster.leader("t") == preferred
        await cluster.stop()

    run(work())


def test_what_nobody_expected_ends_no_housekeeping(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        cluster = await Cluster(Storage()).start()
        again = asyncio.Event()

        async def balance() -> None:
            if "nobody expected that" in caplog.text:
                again.set()
            raise AssertionError("nobody expected that")

        housekeeping = asyncio.ensure_future(cluster.service._housekeep(0.01, balance))
        await again.wait()
        housekeeping.cancel()
        await cluster.stop()

    run(work())


def _in_sync_again(image: MetadataImage) -> Outcome[None]:
    from headrace_broker.protocol.metadata_records import PartitionChangeRecord

    topic = image.topics["t"]
    return Outcome(
        None, [PartitionChangeRecord(topic_id=topic.topic_id, partition_id=0, isr=list(topic.partitions[0].replicas))]
    )


def test_unregistered_brokers_are_forgotten() -> None:
    async def work() -> None:
        cluster = await Cluster(Storage()).start()
        epoch = await cluster.join(2)
        await cluster.service.unregister(2)
        assert 2 not in cluster.image.brokers
        with pytest.raises(ApiError) as caught:
            await cluster.beat(2, epoch)
        assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH
        await cluster.stop()

    run(work())
