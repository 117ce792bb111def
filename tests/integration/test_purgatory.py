"""Tests of delayed Produce and Fetch requests. A broker runs in this process, and tests advance its high watermark."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace_broker.log.log import AppendInfo
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.log.validator import AppendOrigin, RecordsCheck
from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.framing import encode_request, parse_response_header
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from headrace_broker.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace_broker.protocol.messages.produce import ProduceResponse
from headrace_broker.protocol.notation import Message
from headrace_broker.server.broker import Broker
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.network.connection import Connection, ConnectionLimits
from headrace_broker.server.node import Environment, Node
from headrace_broker.server.replicas.partitions import Partition
from support.raw_client import batch, fetch_request, produce_request

pytestmark = pytest.mark.integration


class UnreplicatedBroker:
    """A broker that leads topic `t`. Appends do not advance its high watermark, as if no follower fetched records."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.purgatory = broker.purgatory
        self._append = broker.append
        setattr(broker, "append", self.append)  # noqa: B010 - type checkers reject an assignment to a method

    def append(
        self,
        partition: Partition,
        records: memoryview,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        check: RecordsCheck | None = None,
    ) -> AppendInfo:
        if partition.topic != "t":
            return self._append(partition, records, origin, check)
        return partition.log.append_as_leader(
            records, leader_epoch=partition.leader_epoch, now_ms=self.broker.now_ms(), origin=origin, check=check
        )

    def replicate(self, offset: int) -> None:
        partition = self.broker.partitions.require("t", 0)
        partition.log.advance_high_watermark(offset)
        self.broker.on_high_watermark_advanced(partition, 1)


class Client:
    """A client connection without a socket. It stores the response frames."""

    def __init__(self, broker: Broker) -> None:
        self.frames: list[bytes] = []
        self.response_received = asyncio.Event()
        self.connection = Connection(broker.router, "PLAINTEXT", ConnectionLimits())
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def writelines(self, buffers: Any) -> None:
        self.frames.append(b"".join(buffers))
        self.response_received.set()

    def close(self) -> None:
        self.connection.connection_lost(None)

    def send(self, request: Message, version: int) -> None:
        data = b"".join(encode_request(1, "c", request, version))
        while data:
            part = data[: len(self.connection.get_buffer(-1))]
            self.connection.get_buffer(-1)[: len(part)] = part
            self.connection.buffer_updated(len(part))
            data = data[len(part) :]

    def response(self, response: type[Message], version: int) -> Any:
        frame = self.frames.pop(0)[4:]
        _, start = parse_response_header(frame, response.__api_key__, version)
        return decode(response, version, frame, start)


async def create_topic(client: Client) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    await asyncio.wait_for(client.response_received.wait(), 30)
    assert client.response(CreateTopicsResponse, 7).topics[0].error_code == 0


def with_broker(test: Callable[[UnreplicatedBroker, Client], Awaitable[None]]) -> None:
    async def run() -> None:
        properties = {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data"}
        environment = Environment(storage=MemoryStorage())
        node = await Node.start(BrokerConfig.from_properties(properties), environment=environment)
        assert node.broker is not None
        try:
            client = Client(node.broker)
            await create_topic(client)
            await test(UnreplicatedBroker(node.broker), client)
        finally:
            await node.stop()

    asyncio.run(run())


def test_produce_with_acks_all_waits_for_high_watermark_and_produce_with_acks_1_does_not() -> None:
    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        client.send(produce_request("t", batch(b"a", b"b"), acks=-1), 9)
        broker.replicate(1)
        await asyncio.sleep(0)
        assert client.frames == []
        broker.replicate(2)
        await asyncio.sleep(0)
        result = client.response(ProduceResponse, 9).responses[0].partition_responses[0]
        assert (result.error_code, result.base_offset) == (0, 0)
        client.send(produce_request("t", batch(b"c"), acks=1), 9)
        assert client.response(ProduceResponse, 9).responses[0].partition_responses[0].base_offset == 2
        assert len(broker.purgatory) == 0

    with_broker(test)


def test_produce_with_acks_all_times_out_without_replication() -> None:
    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        request = produce_request("t", batch(b"a"), acks=-1)
        request.timeout_ms = 20
        client.response_received.clear()
        client.send(request, 9)
        await asyncio.wait_for(client.response_received.wait(), 30)
        result = client.response(ProduceResponse, 9).responses[0].partition_responses[0]
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT

    with_broker(test)


def test_fetch_returns_a_record_only_after_the_high_watermark_has_passed_the_record() -> None:
    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        client.send(produce_request("t", batch(b"a"), acks=1), 9)
        client.response(ProduceResponse, 9)
        client.send(fetch_request("t"), 12)
        hidden = client.response(FetchResponse, 12).responses[0].partitions[0]
        assert (hidden.high_watermark, bytes(hidden.records)) == (0, b"")
        client.send(fetch_request("t", max_wait_ms=10_000), 12)
        assert client.frames == []
        broker.replicate(1)
        await asyncio.sleep(0)
        shown = client.response(FetchResponse, 12).responses[0].partitions[0]
        assert (shown.high_watermark, bytes(shown.records).count(b"a")) == (1, 1)

    with_broker(test)


def test_delayed_operations_of_a_closed_connection_are_cancelled() -> None:
    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        client.send(produce_request("t", batch(b"a"), acks=-1), 9)
        client.send(fetch_request("t", max_wait_ms=1_000_000_000), 12)
        assert len(broker.purgatory) == 2
        client.close()
        assert len(broker.purgatory) == 0
        broker.replicate(1)
        await asyncio.sleep(0)
        assert client.frames == []

    with_broker(test)


async def await_request_tasks(broker: UnreplicatedBroker) -> None:
    async with asyncio.timeout(10):
        await asyncio.gather(*broker.broker.router._tasks)


def test_delayed_fetch_of_many_partitions_is_cancelled_when_its_connection_is_closed() -> None:
    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        client.send(large_fetch_request(), 12)
        await await_request_tasks(broker)
        assert len(broker.purgatory) == 1
        client.close()
        assert len(broker.purgatory) == 0

    with_broker(test)


def test_fetch_of_many_partitions_whose_connection_is_closed_during_the_reads_does_not_wait() -> None:
    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        client.send(large_fetch_request(), 12)
        client.close()
        await await_request_tasks(broker)
        assert len(broker.purgatory) == 0

    with_broker(test)


def test_delayed_fetch_of_many_partitions_completes_when_a_record_is_committed() -> None:
    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        client.send(large_fetch_request(), 12)
        await await_request_tasks(broker)
        producer = Client(broker.broker)
        producer.send(produce_request("t", batch(b"a"), acks=1), 9)
        client.response_received.clear()
        broker.replicate(1)
        async with asyncio.timeout(3):  # the wait of a large request ends after 5 s
            await client.response_received.wait()
        first = client.response(FetchResponse, 12).responses[0].partitions[0]
        assert bytes(first.records).count(b"a") == 1

    with_broker(test)


def large_fetch_request() -> FetchRequest:
    """Return a Fetch request whose frame is so large that the broker reads the partitions in chunks."""
    request = fetch_request("t", max_wait_ms=1_000_000_000)
    request.topics[0].partitions *= 1000
    return request


def test_batches_that_are_sent_again_after_a_leadership_change_cause_no_sequence_gap() -> None:
    """The broker loses the leadership and becomes the leader again, while several batches are in flight.

    The broker rejects these batches. The client then sends all of them again.
    """

    async def test(broker: UnreplicatedBroker, client: Client) -> None:
        async def produce(sequence: int) -> int:
            data = batch(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
            client.send(produce_request("t", data, acks=-1), 9)
            broker.replicate(partition.log.log_end_offset)
            await asyncio.sleep(0)
            code: int = client.response(ProduceResponse, 9).responses[0].partition_responses[0].error_code
            return code

        partition = broker.broker.partitions.require("t", 0)
        assert await produce(0) == ErrorCode.NONE
        partition.leader = 2
        assert await produce(1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.leader = 1
        assert [await produce(2), await produce(3)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert [await produce(1), await produce(2), await produce(3)] == [ErrorCode.NONE] * 3
        assert await produce(5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    with_broker(test)
