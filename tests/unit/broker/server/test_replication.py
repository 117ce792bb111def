"""Tests of replication with a fake broker: ISR changes, the high watermark, and a fetcher that survives errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.client.connection import BrokerConnection
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
    EpochEndOffset,
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
from headrace_broker.server.liveness.suspected_brokers import SuspectedBrokers
from headrace_broker.server.network.purgatory import Purgatory
from headrace_broker.server.replicas import replica_fetcher
from headrace_broker.server.replicas.partitions import Partition, PartitionTable
from headrace_broker.server.replicas.replication import Replication
from support.images import TOPIC_ID, cluster_image, partition_image
from support.virtual_time import run_in_virtual_time

NOW = 1_700_000_000_000


def run(work: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(work, timeout_s=5)


class FakeBroker:
    """Broker 1 with partition t-0.

    Its requests to the controller wait in `alter_requests` until the test responds.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.node_id = 1
        self.image = image
        self.config = BrokerConfig.from_properties({"node.id": "1", "replica.fetch.backoff.ms": "40"})
        self.purgatory = Purgatory(asyncio.get_running_loop())
        self.lifecycle = SimpleNamespace(epoch=101)
        self.suspected_brokers = SuspectedBrokers()
        self.logs: Any = None
        self.router = SimpleNamespace(busy_poll=SimpleNamespace(record_read=lambda size_bytes: None))
        self.fetch_sessions = SimpleNamespace(force_complete=lambda partition: None)
        self.node = SimpleNamespace(own_channel=self)
        self.high_watermark_advanced = asyncio.Event()
        self.alter_requests: asyncio.Queue[tuple[AlterPartitionRequest, asyncio.Future[AlterPartitionResponse]]]
        self.alter_requests = asyncio.Queue()
        self.replication = Replication(self)  # type: ignore[arg-type]
        self.partitions = PartitionTable(1, self._open, self._on_change)
        self.partitions.open(image.topics["t"], 0)
        (self.partition,) = self.partitions

    def _open(self, topic: Any, index: int) -> PartitionLog:
        return PartitionLog.open(MemoryStorage(), "/data/t-0", "t", index, LogConfig(min_insync_replicas=2), NOW)

    def _on_change(self, partition: Partition, image: Any, is_new_epoch: bool) -> None:
        self.replication.on_partition_change(partition, image, is_new_epoch=is_new_epoch)

    async def request(self, request: AlterPartitionRequest, timeout_ms: int) -> AlterPartitionResponse:
        response: asyncio.Future[AlterPartitionResponse] = asyncio.get_running_loop().create_future()
        self.alter_requests.put_nowait((request, response))
        return await response

    def on_high_watermark_advanced(self, partition: Partition, size_bytes: int) -> None:
        self.high_watermark_advanced.set()

    def complete_delayed_reads(self, partition: Partition, size_bytes: int) -> None:
        """Do nothing, because the test has no consumers."""

    def now_ms(self) -> int:
        return NOW

    def append(self) -> None:
        records = memoryview(build_batch(RecordColumns(values=[b"v"], timestamps=NOW)))
        self.partition.log.append_as_leader(records, leader_epoch=0, now_ms=NOW)

    def fetched(self, replica: int) -> None:
        """Handle a fetch by follower `replica` from the log end offset."""
        wanted = FetchPartition(partition=0, fetch_offset=self.partition.log.log_end_offset, log_start_offset=0)
        self.replication.on_follower_fetch(self.partition, replica, 100 + replica, wanted)


def wanted_isr(request: AlterPartitionRequest) -> list[int]:
    return [state.broker_id for state in request.topics[0].partitions[0].new_isr_with_epochs]


def test_caught_up_follower_joins_the_isr_when_it_is_unfenced() -> None:
    """The partition has no new records, so no fetch of the follower triggers the ISR change."""

    async def work() -> None:
        partition = partition_image("123", "12", 1)
        broker = FakeBroker(cluster_image(partition, fenced="3"))
        broker.fetched(3)
        assert broker.alter_requests.empty()
        broker.image = cluster_image(partition)
        broker.replication.on_brokers_change()
        request, _ = await broker.alter_requests.get()
        assert wanted_isr(request) == [1, 2, 3]
        broker.replication.close()

    run(work())


@pytest.mark.parametrize("epoch", [-1, 101, 103, 2**62])
def test_fetch_with_a_wrong_broker_epoch_does_not_advance_the_high_watermark(epoch: int) -> None:
    """A client that claims to be a replica must not advance the high watermark past records that the replica lacks."""

    async def work() -> None:
        broker = FakeBroker(cluster_image(partition_image("123", "123", 1)))
        broker.append()
        broker.fetched(3)
        wanted = FetchPartition(partition=0, fetch_offset=1, log_start_offset=0)
        with pytest.raises(ApiError) as refused:
            broker.replication.on_follower_fetch(broker.partition, 2, epoch, wanted)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.partition.log.high_watermark == 0
        broker.fetched(2)
        assert broker.partition.log.high_watermark == 1
        broker.replication.close()

    run(work())


def error_response(code: ErrorCode) -> AlterPartitionResponse:
    partition = AlterPartitionResponsePartitionData(partition_index=0, error_code=code)
    return AlterPartitionResponse(topics=[AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=[partition])])


def test_high_watermark_advances_without_a_follower_that_the_controller_refuses_to_add_to_the_isr() -> None:
    async def work() -> None:
        broker = FakeBroker(cluster_image(partition_image("123", "12", 1)))
        broker.fetched(3)
        broker.append()
        broker.fetched(2)
        request, response = await broker.alter_requests.get()
        assert wanted_isr(request) == [1, 2, 3]
        assert broker.partition.log.high_watermark == 0
        broker.image = cluster_image(partition_image("123", "12", 1), fenced="3")
        response.set_result(error_response(ErrorCode.INELIGIBLE_REPLICA))
        await broker.high_watermark_advanced.wait()
        assert broker.partition.log.high_watermark == 1
        broker.replication.close()

    run(work())


def test_isr_change_is_sent_again_after_its_request_fails(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        broker = FakeBroker(cluster_image(partition_image("123", "12", 1)))
        broker.fetched(3)
        _, response = await broker.alter_requests.get()
        response.set_exception(AssertionError("unexpected exception"))
        request, _ = await broker.alter_requests.get()
        assert wanted_isr(request) == [1, 2, 3]
        assert "unexpected exception" in caplog.text
        broker.replication.close()

    run(work())


class FakeLeader:
    """A connection to a leader that sends `responses`, then sets `exhausted` and never responds again."""

    is_open = True

    def __init__(self, *responses: Callable[[], Any], exhausted: asyncio.Event | None = None) -> None:
        self._responses = list(responses)
        self._exhausted = exhausted

    def version_for(self, *arguments: Any, **bounds: int) -> int:
        return 17

    def request(self, request: Any, version: int | None = None) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._respond(request))

    async def _respond(self, request: Any) -> Any:
        if self._exhausted is not None and not self._responses:
            self._exhausted.set()
            return await asyncio.Future()
        return self._responses.pop(0)()

    def close(self) -> None:
        pass


def fetch_response(**partition: Any) -> FetchResponse:
    data = PartitionData(partition_index=0, **{"high_watermark": 0, "records": b"", **partition})
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
    return FetchResponse(session_id=1, responses=[topic])


def disconnect() -> Any:
    raise ConnectionLostError("the leader is dead")


def fail_unexpectedly() -> Any:
    raise AssertionError("unexpected exception")


@pytest.mark.parametrize("second", [disconnect, fail_unexpectedly])
def test_replica_fetcher_continues_after_the_connection_fails_during_list_offsets(
    monkeypatch: pytest.MonkeyPatch, second: Callable[[], Any]
) -> None:
    done = asyncio.Event()

    def last() -> Any:
        done.set()
        return fetch_response()

    def out_of_range() -> FetchResponse:
        return fetch_response(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)

    leaders = iter([FakeLeader(out_of_range, second, last, disconnect), FakeLeader(last, disconnect)])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return next(leaders)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        await done.wait()
        broker.replication.close()

    run(work())


def test_partition_that_is_removed_during_list_offsets_is_not_fetched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a fetcher requested a removed partition, all partitions of the fetcher would fail permanently."""
    fetched_after = asyncio.Event()

    class Leader(FakeLeader):
        async def _respond(self, request: Any) -> Any:
            if isinstance(request, ListOffsetsRequest):
                fetcher.remove(broker.partition)
                result = ListOffsetsPartitionResponse(partition_index=0, offset=5)
                return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[result])])
            if self._responses:
                return self._responses.pop()()
            await asyncio.sleep(0.03)  # this long poll takes longer than the backoff
            if fetcher.fetches > 3:
                fetched_after.set()
            return FetchResponse(session_id=1, responses=[])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return Leader(lambda: fetch_response(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))

    async def work() -> None:
        nonlocal broker, fetcher
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        fetcher = broker.replication.fetchers[2]
        topic = broker.image.topics["t"]
        fetcher.add(Partition(topic, 1, broker._open(topic, 1)), 1)
        await fetched_after.wait()
        broker.replication.close()

    broker: FakeBroker
    fetcher: replica_fetcher.ReplicaFetcher
    run(work())


def test_replica_fetcher_continues_after_an_unexpected_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done = asyncio.Event()

    def last() -> Any:
        done.set()
        return fetch_response()

    leaders = iter([FakeLeader(fail_unexpectedly), FakeLeader(last, disconnect)])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return next(leaders)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)

        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        await done.wait()
        broker.replication.close()

    run(work())
    assert "unexpected exception" in caplog.text


@pytest.mark.parametrize("requested_before_s", [0.0, 0.3])
def test_partition_that_is_added_to_a_fetcher_is_fetched_before_the_current_long_poll_ends(
    monkeypatch: pytest.MonkeyPatch, requested_before_s: float
) -> None:
    """If the fetch request was just sent, the fetcher waits briefly for its response before it ends the long poll."""
    second_request_sent, polled = asyncio.Event(), asyncio.Event()

    class LongPollingLeader(FakeLeader):
        def send(self, request: Any, version: int, callback: Any) -> None:
            second_request_sent.set()

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return LongPollingLeader(fetch_response, exhausted=polled)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        await polled.wait()
        fetcher = broker.replication.fetchers[2]
        if requested_before_s:
            assert fetcher._requested_at is not None
            fetcher._requested_at -= requested_before_s
        fetcher.add(broker.partition, 1)
        await second_request_sent.wait()
        broker.replication.close()

    run(work())


def test_follower_sends_the_next_fetch_before_the_append_if_it_is_far_behind_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower that has caught up appends the records first. Its next fetch then reports the new log end offset."""
    done, requested = asyncio.Event(), list[tuple[int, int, int]]()
    batches = [
        bytes(build_batch(RecordColumns(values=[b"v"], timestamps=NOW), base_offset=offset, partition_leader_epoch=0))
        for offset in range(3)
    ]

    async def opened(*arguments: Any, **settings: Any) -> Any:
        responses = (lambda batch=batch: fetch_response(high_watermark=3, records=batch) for batch in batches)
        return FakeLeader(*responses, exhausted=done)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        original_request = FakeLeader.request

        def request(self: FakeLeader, request: Any, version: int | None = None) -> asyncio.Future[Any]:
            (wanted,) = request.topics[0].partitions
            requested.append((wanted.fetch_offset, wanted.last_fetched_epoch, broker.partition.log.log_end_offset))
            return original_request(self, request, version)

        monkeypatch.setattr(FakeLeader, "request", request)
        await done.wait()
        assert requested == [(0, -1, 0), (1, 0, 0), (2, 0, 1), (3, 0, 3)]
        broker.replication.close()

    run(work())


def test_log_start_offset_that_changes_while_a_fetch_is_in_flight_is_reported_in_the_next_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DeleteRecords waits until the follower reports the new log start offset.

    Although the partition has no new records, the next fetch request must list the partition.
    """
    done, requested = asyncio.Event(), list[dict[int, int]]()
    behind = [
        bytes(build_batch(RecordColumns(values=[b"v"], timestamps=NOW), base_offset=offset, partition_leader_epoch=0))
        for offset in range(3)
    ]

    def respond(idle: list[PartitionData], records: bytes) -> Callable[[], FetchResponse]:
        more = PartitionData(partition_index=1, high_watermark=3, log_start_offset=0, records=records)
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[*idle, more])
        return lambda: FetchResponse(session_id=1, responses=[topic])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        idle = [PartitionData(partition_index=0, high_watermark=1, log_start_offset=start) for start in (0, 1)]
        responses = respond(idle[:1], behind[0]), respond(idle[1:], behind[1]), respond([], behind[2])
        return Leader(*responses, exhausted=done)

    class Leader(FakeLeader):
        def request(self, request: Any, version: int | None = None) -> asyncio.Future[Any]:
            partitions = [partition for topic in request.topics for partition in topic.partitions]
            requested.append({partition.partition: partition.log_start_offset for partition in partitions})
            return super().request(request, version)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        broker.append()
        topic = broker.image.topics["t"]
        other = broker.partitions.by_name["t"][1] = Partition(topic, 1, broker._open(topic, 1))
        broker.replication.fetchers[2].add(other, 0)
        await done.wait()
        assert requested == [{0: 0, 1: 0}, {1: 0}, {1: 0}, {0: 1, 1: 0}]
        broker.replication.close()

    run(work())


def test_log_line_about_a_truncation_names_the_diverging_epoch_and_its_end_offset(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The follower has fetched with epoch 2. The leader has no such epoch: its epoch 1 ends at offset 5."""
    caplog.set_level("INFO")
    truncated = asyncio.Event()

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return FakeLeader(lambda: fetch_response(diverging_epoch=EpochEndOffset(epoch=1, end_offset=5)), exhausted=done)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        broker.logs = SimpleNamespace(sync_truncation=lambda log, synced: truncated.set())
        for epoch in (0, 0, 2):
            records = memoryview(build_batch(RecordColumns(values=[b"v"], timestamps=NOW)))
            broker.partition.log.append_as_leader(records, leader_epoch=epoch, now_ms=NOW)
        await truncated.wait()
        assert broker.partition.log.log_end_offset == 2
        broker.replication.close()

    done = asyncio.Event()
    run(work())
    assert (
        "Partition t-0: truncating from 3 to 2, because the log diverges from the leader's log, in which leader epoch "
        "1 ends at 5" in caplog.text
    )


def test_follower_without_a_fetch_session_fetches_partitions_first_that_returned_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader's session cache is full, and each response has room for one batch."""
    done, requested = asyncio.Event(), list[list[int]]()

    def respond(index: int, offset: int) -> FetchResponse:
        options = {"base_offset": offset, "partition_leader_epoch": 0}
        records = bytes(build_batch(RecordColumns(values=[b"v"], timestamps=NOW), **options))
        data = [
            PartitionData(partition_index=each, high_watermark=offset, records=records if each == index else b"")
            for each in (0, 1, 2)
        ]
        return FetchResponse(session_id=0, responses=[FetchableTopicResponse(topic_id=TOPIC_ID, partitions=data)])

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return Leader(*(partial(respond, index, 0) for index in (0, 1, 2)), partial(respond, 0, 1), exhausted=done)

    class Leader(FakeLeader):
        def request(self, request: Any, version: int | None = None) -> asyncio.Future[Any]:
            requested.append([partition.partition for topic in request.topics for partition in topic.partitions])
            return super().request(request, version)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        topic = broker.image.topics["t"]
        for index in (1, 2):
            other = broker.partitions.by_name["t"][index] = Partition(topic, index, broker._open(topic, index))
            broker.replication.fetchers[2].add(other, 0)
        await done.wait()
        assert requested == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2], [1, 2, 0]]
        broker.replication.close()

    run(work())


def test_fetcher_keeps_no_reference_to_a_removed_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to the partition would keep its log in memory, even if the partition was deleted."""
    requested = asyncio.Event()

    async def opened(*arguments: Any, **settings: Any) -> Any:
        return FakeLeader(exhausted=requested)

    async def work() -> None:
        monkeypatch.setattr(BrokerConnection, "open", opened)
        broker = FakeBroker(cluster_image(partition_image("123", "123", 2)))
        await requested.wait()
        fetcher = broker.replication.fetchers[2]
        broker.replication.remove(broker.partition)
        assert broker.partition in fetcher._to_forget  # the next fetch request removes the partition
        kept = [name for name, value in vars(fetcher).items() if isinstance(value, dict) and broker.partition in value]
        assert kept == ["_to_forget"]
        broker.replication.close()

    run(work())


def fence_lagging_follower(broker: FakeBroker) -> None:
    broker.image = cluster_image(partition_image("123", "123", 1), fenced="3")
    broker.replication.on_brokers_change()


def lose_leadership(broker: FakeBroker) -> None:
    broker.image = cluster_image(partition_image("123", "123", 3, leader_epoch=1))
    broker.partitions.update(broker.image.topics["t"], (0,))


@pytest.mark.parametrize(
    ("event", "expected_code"),
    [(fence_lagging_follower, ErrorCode.NONE), (lose_leadership, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_delete_records_request_completes_when_the_last_lagging_follower_is_fenced_or_the_leader_changes(
    event: Callable[[FakeBroker], None], expected_code: ErrorCode
) -> None:
    """If the leader changes, the request fails, because the new leader may be a follower that still has the records."""

    async def work() -> None:
        broker = FakeBroker(cluster_image(partition_image("123", "123", 1)))
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
        broker.replication.on_follower_fetch(broker.partition, 2, 102, deleted)
        await asyncio.sleep(0.01)
        assert not deleting.done()
        event(broker)
        assert (await deleting).topics[0].partitions[0].error_code == expected_code
        broker.replication.close()

    run(work())
