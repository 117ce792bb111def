"""Replication on a broker that a test plays: who joins and who is waited for, and fetching that nothing ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.client.connection import Connection
from headrace_broker.client.errors import ConnectionLostError
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace_broker.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchResponse,
    PartitionData,
)
from headrace_broker.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.handlers import delete_records
from headrace_broker.server.membership.departures import Departures
from headrace_broker.server.network.waiting import Waiting
from headrace_broker.server.replicas import replica_fetcher
from headrace_broker.server.replicas.partitions import Partition, PartitionTable
from headrace_broker.server.replicas.replication import Replication
from support.images import TOPIC_ID, cluster_image, partition_image

NOW = 1_700_000_000_000


def run(work: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(5):
            await work

    asyncio.run(in_time())


class PlayedBroker:
    """Broker 1 with partition t-0; a test answers what it asks of the controller."""

    def __init__(self, image: MetadataImage) -> None:
        self.node_id = 1
        self.image = image
        self.config = BrokerConfig.from_properties({"node.id": "1", "replica.fetch.backoff.ms": "40"})
        self.waiting = Waiting(asyncio.get_running_loop())
        self.lifecycle = SimpleNamespace(epoch=101)
        self.departures = Departures()
        self.router = SimpleNamespace(wakefulness=SimpleNamespace(heard=lambda size_bytes: None))
        self.fetch_sessions = SimpleNamespace(disturbed=lambda partition: None)
        self.node = SimpleNamespace(own_channel=self)
        self.has_committed = asyncio.Event()
        self.asked: asyncio.Queue[tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]]
        self.asked = asyncio.Queue()
        self.replication = Replication(self)  # type: ignore[arg-type]
        self.partitions = PartitionTable(1, self._open, self._changed)
        self.partitions.open(image.topics["t"], 0)
        (self.partition,) = self.partitions

    def _open(self, topic: Any, index: int) -> PartitionLog:
        return PartitionLog.open(MemoryStorage(), "/data/t-0", "t", index, LogConfig(min_insync_replicas=2), NOW)

    def _changed(self, partition: Partition, image: Any, is_new_epoch: bool) -> None:
        self.replication.follow(partition, image, is_new_epoch=is_new_epoch)

    async def request(self, request: AlterPartitionRequest, timeout_ms: int) -> AlterPartitionResponse:
        answer: asyncio.Future[AlterPartitionResponse] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((request, answer))
        return await answer

    def committed(self, partition: Partition, size_bytes: int) -> None:
        self.has_committed.set()

    def readable(self, partition: Partition, size_bytes: int) -> None:
        """Nobody reads."""

    def now_ms(self) -> int:
        return NOW

    def append(self) -> None:
        records = memoryview(build_batch(RecordColumns(values=[b"v"], timestamps=NOW)))
        self.partition.log.append_as_leader(records, leader_epoch=0, now_ms=NOW)

    def fetched(self, replica: int) -> None:
        """A follower has everything."""
        wanted = FetchPartition(partition=0, fetch_offset=self.partition.log.log_end_offset, log_start_offset=0)
        self.replication.fetched(self.partition, replica, 100 + replica, wanted)


def wanted_isr(request: AlterPartitionRequest) -> list[int]:
    return [state.broker_id for state in request.topics[0].partitions[0].new_isr_with_epochs]


def test_a_follower_that_was_fenced_joins_as_soon_as_it_is_not() -> None:
    """Also where nothing is written any more, so that it has nothing to ask."""

    async def work() -> None:
        partition = partition_image("123", "12", 1)
        broker = PlayedBroker(cluster_image(partition, fenced="3"))
        broker.fetched(3)
        assert broker.asked.empty()
        broker.image = cluster_image(partition)
        broker.replication.brokers_changed()
        request, _ = await broker.asked.get()
        assert wanted_isr(request) == [1, 2, 3]
        broker.replication.close()

    run(work())


@pytest.mark.parametrize("epoch", [-1, 101, 103, 2**62])
def test_who_names_another_epoch_than_the_replicas_own_commits_nothing(epoch: int) -> None:
    """Else any client would have records committed that no replica has: it would say it were one."""

    async def work() -> None:
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 1)))
        broker.append()
        broker.fetched(3)
        wanted = FetchPartition(partition=0, fetch_offset=1, log_start_offset=0)
        with pytest.raises(ApiError) as refused:
            broker.replication.fetched(broker.partition, 2, epoch, wanted)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.partition.log.high_watermark == 0
        broker.fetched(2)
        assert broker.partition.log.high_watermark == 1
        broker.replication.close()

    run(work())


def refusal(code: ErrorCode) -> AlterPartitionResponse:
    partition = AlterPartitionResponsePartitionData(partition_index=0, error_code=code)
    return AlterPartitionResponse(topics=[AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=[partition])])


def test_nobody_waits_for_a_follower_that_the_controller_does_not_let_join() -> None:
    async def work() -> None:
        broker = PlayedBroker(cluster_image(partition_image("123", "12", 1)))
        broker.fetched(3)
        broker.append()
        broker.fetched(2)
        request, answer = await broker.asked.get()
        assert wanted_isr(request) == [1, 2, 3]
        assert broker.partition.log.high_watermark == 0
        broker.image = cluster_image(partition_image("123", "12", 1), fenced="3")
        answer.set_result(refusal(ErrorCode.INELIGIBLE_REPLICA))
        await broker.has_committed.wait()
        assert broker.partition.log.high_watermark == 1
        broker.replication.close()

    run(work())


def test_a_change_of_the_in_sync_replicas_that_went_wrong_is_asked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        broker = PlayedBroker(cluster_image(partition_image("123", "12", 1)))
        broker.fetched(3)
        _, answer = await broker.asked.get()
        answer.set_exception(AssertionError("nobody expected that"))
        request, _ = await broker.asked.get()
        assert wanted_isr(request) == [1, 2, 3]
        assert "nobody expected that" in caplog.text
        broker.replication.close()

    run(work())


class PlayedLeader:
    """In the place of a connection: answers requests as it is told, and asked for more sets `silent`, where given."""

    is_open = True

    def __init__(self, *answers: Callable[[], Any], silent: asyncio.Event | None = None) -> None:
        self._answers = list(answers)
        self._silent = silent

    def version_for(self, *arguments: Any, **bounds: int) -> int:
        return 17

    def request(self, request: Any, version: int | None = None) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._answer(request))

    async def _answer(self, request: Any) -> Any:
        if self._silent is not None and not self._answers:
            self._silent.set()
            return await asyncio.Future()
        return self._answers.pop(0)()

    def close(self) -> None:
        pass


def fetch_answer(**partition: Any) -> FetchResponse:
    answer = PartitionData(partition_index=0, **{"high_watermark": 0, "records": b"", **partition})
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[answer])
    return FetchResponse(session_id=1, responses=[topic])


def lost() -> Any:
    raise ConnectionLostError("the leader is gone")


def broken() -> Any:
    raise AssertionError("nobody expected that")


@pytest.mark.parametrize("second", [lost, broken])
def test_fetching_goes_on_whatever_happens_to_a_leader(
    monkeypatch: pytest.MonkeyPatch, second: Callable[[], Any]
) -> None:
    """Here while it is asked where its log begins, which is no fetch."""
    done = asyncio.Event()

    def last() -> Any:
        done.set()
        return fetch_answer()

    def out_of_range() -> FetchResponse:
        return fetch_answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)

    leaders = iter([PlayedLeader(out_of_range, second, last, lost), PlayedLeader(last, lost)])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return next(leaders)

    async def work() -> None:
        monkeypatch.setattr(Connection, "open", opened)
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 2)))
        await done.wait()
        broker.replication.close()

    run(work())


def test_a_partition_that_is_taken_away_while_the_leader_is_asked_where_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was asked for again all the same, which ended the fetching of all others for good."""
    asked_after = asyncio.Event()

    class Leader(PlayedLeader):
        async def _answer(self, request: Any) -> Any:
            if isinstance(request, ListOffsetsRequest):
                fetcher.remove(broker.partition)
                answer = ListOffsetsPartitionResponse(partition_index=0, offset=5)
                return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[answer])])
            if self._answers:
                return self._answers.pop()()
            await asyncio.sleep(0.03)  # as a long poll, and longer than it rested
            if fetcher.fetches > 3:
                asked_after.set()
            return FetchResponse(session_id=1, responses=[])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return Leader(lambda: fetch_answer(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))

    async def work() -> None:
        nonlocal broker, fetcher
        monkeypatch.setattr(Connection, "open", opened)
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 2)))
        fetcher = broker.replication.fetchers[2]
        topic = broker.image.topics["t"]
        fetcher.add(Partition(topic, 1, broker._open(topic, 1)), 1)
        await asked_after.wait()
        broker.replication.close()

    broker: PlayedBroker
    fetcher: replica_fetcher.ReplicaFetcher
    run(work())


def test_what_nobody_expected_ends_no_fetching(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    def last() -> Any:
        done.set()
        return fetch_answer()

    leaders = iter([PlayedLeader(broken), PlayedLeader(last, lost)])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return next(leaders)

    async def work() -> None:
        monkeypatch.setattr(Connection, "open", opened)
        monkeypatch.setattr(replica_fetcher, "_AFTER_FAULT_S", 0.01)
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 2)))
        await done.wait()
        broker.replication.close()

    run(work())
    assert "nobody expected that" in caplog.text


@pytest.mark.parametrize("asked_before_s", [0.0, 0.3])
def test_a_new_partition_waits_for_no_long_poll(monkeypatch: pytest.MonkeyPatch, asked_before_s: float) -> None:
    """Neither for one that has just begun, of which nobody knows yet whether it will be one."""
    nudged, polled = asyncio.Event(), asyncio.Event()

    class Polled(PlayedLeader):
        def send(self, request: Any, version: int, callback: Any) -> None:
            nudged.set()

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return Polled(fetch_answer, silent=polled)

    async def work() -> None:
        monkeypatch.setattr(Connection, "open", opened)
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 2)))
        await polled.wait()
        fetcher = broker.replication.fetchers[2]
        if asked_before_s:
            assert fetcher._asked_at is not None
            fetcher._asked_at -= asked_before_s
        fetcher.add(broker.partition, 1)
        async with asyncio.timeout(5):
            await nudged.wait()
        broker.replication.close()

    run(work())


def test_a_follower_that_is_far_behind_asks_for_more_before_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless what comes is the last it lacks: then the leader hears of it when it is there."""
    done, asked = asyncio.Event(), list[tuple[int, int, int]]()
    batches = [
        bytes(build_batch(RecordColumns(values=[b"v"], timestamps=NOW), base_offset=offset, partition_leader_epoch=0))
        for offset in range(3)
    ]

    async def opened(*arguments: Any, **settings: Any) -> Any:
        answers = (lambda batch=batch: fetch_answer(high_watermark=3, records=batch) for batch in batches)
        return PlayedLeader(*answers, silent=done)

    async def work() -> None:
        monkeypatch.setattr(Connection, "open", opened)
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 2)))
        plain = PlayedLeader.request

        def request(self: PlayedLeader, request: Any, version: int | None = None) -> asyncio.Future[Any]:
            (wanted,) = request.topics[0].partitions
            asked.append((wanted.fetch_offset, wanted.last_fetched_epoch, broker.partition.log.log_end_offset))
            return plain(self, request, version)

        monkeypatch.setattr(PlayedLeader, "request", request)
        await done.wait()
        assert asked == [(0, -1, 0), (1, 0, 0), (2, 0, 1), (3, 0, 3)]
        broker.replication.close()

    run(work())


def test_a_log_start_that_moved_while_more_was_asked_for_ahead_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who deletes records waits for that, and of a partition without news nothing else would be asked."""
    done, asked = asyncio.Event(), list[dict[int, int]]()
    behind = [
        bytes(build_batch(RecordColumns(values=[b"v"], timestamps=NOW), base_offset=offset, partition_leader_epoch=0))
        for offset in range(3)
    ]

    def answer(idle: list[PartitionData], records: bytes) -> Callable[[], FetchResponse]:
        more = PartitionData(partition_index=1, high_watermark=3, log_start_offset=0, records=records)
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[*idle, more])
        return lambda: FetchResponse(session_id=1, responses=[topic])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        idle = [PartitionData(partition_index=0, high_watermark=1, log_start_offset=start) for start in (0, 1)]
        answers = answer(idle[:1], behind[0]), answer(idle[1:], behind[1]), answer([], behind[2])
        return Leader(*answers, silent=done)

    class Leader(PlayedLeader):
        def request(self, request: Any, version: int | None = None) -> asyncio.Future[Any]:
            named = [partition for topic in request.topics for partition in topic.partitions]
            asked.append({partition.partition: partition.log_start_offset for partition in named})
            return super().request(request, version)

    async def work() -> None:
        monkeypatch.setattr(Connection, "open", opened)
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 2)))
        broker.append()
        topic = broker.image.topics["t"]
        other = broker.partitions.by_name["t"][1] = Partition(topic, 1, broker._open(topic, 1))
        broker.replication.fetchers[2].add(other, 0)
        await done.wait()
        assert asked == [{0: 0, 1: 0}, {1: 0}, {1: 0}, {0: 1, 1: 0}]
        broker.replication.close()

    run(work())


def test_a_partition_that_is_gone_is_not_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics come and go for as long as a broker runs, and each partition has a log."""
    asked = asyncio.Event()

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return PlayedLeader(silent=asked)

    async def work() -> None:
        monkeypatch.setattr(Connection, "open", opened)
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 2)))
        await asked.wait()
        fetcher = broker.replication.fetchers[2]
        broker.replication.forget(broker.partition)
        told_with_the_next_request = fetcher._gone
        assert broker.partition in told_with_the_next_request
        kept = [name for name, value in vars(fetcher).items() if isinstance(value, dict) and broker.partition in value]
        assert kept == ["_gone"]
        broker.replication.close()

    run(work())


def is_fenced(broker: PlayedBroker) -> None:
    broker.image = cluster_image(partition_image("123", "123", 1), fenced="3")
    broker.replication.brokers_changed()


def has_lost_leadership(broker: PlayedBroker) -> None:
    broker.image = cluster_image(partition_image("123", "123", 3, leader_epoch=1))
    broker.partitions.follow(broker.image.topics["t"], (0,))


@pytest.mark.parametrize(
    ("what_happens", "told"),
    [(is_fenced, ErrorCode.NONE), (has_lost_leadership, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_who_deletes_records_is_told_as_soon_as_nobody_is_waited_for(
    what_happens: Callable[[PlayedBroker], None], told: ErrorCode
) -> None:
    """The next leader may be the one that has not followed: there the records are."""

    async def work() -> None:
        broker = PlayedBroker(cluster_image(partition_image("123", "123", 1)))
        broker.append()
        for replica in (2, 3):
            broker.fetched(replica)
        checkpoints = SimpleNamespace(write=lambda name, durable: None)
        context: Any = SimpleNamespace(
            broker=broker, partitions=broker.partitions, logs=SimpleNamespace(checkpoints=checkpoints)
        )
        wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
        deleting = asyncio.ensure_future(
            delete_records.handle(context, DeleteRecordsRequest(topics=[wanted], timeout_ms=60_000), 2)
        )
        await asyncio.sleep(0)
        deleted = FetchPartition(partition=0, fetch_offset=1, log_start_offset=1)
        broker.replication.fetched(broker.partition, 2, 102, deleted)
        await asyncio.sleep(0.01)
        assert not deleting.done()
        what_happens(broker)
        assert (await deleting).topics[0].partitions[0].error_code == told
        broker.replication.close()

    run(work())
