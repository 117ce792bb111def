from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import ClientError, ConnectionLostError, ProtocolViolationError, RequestTimeoutError
from headrace_broker.protocol.framing import encode_response, parse_request_header
from headrace_broker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace_broker.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from support.virtual_time import run_in_virtual_time


class FakeTransport(asyncio.Transport):
    """A transport that stores written requests.

    `written` contains each request without its size prefix.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False
        self.fake_socket: FakeSocket | None = None

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(b"".join(list_of_data)[4:])

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.fake_socket if name == "socket" else default


class FakeSocket:
    """A socket whose unread bytes are in a pipe. It stores each low-water mark that is set with SO_RCVLOWAT."""

    def __init__(self) -> None:
        self.low_water_marks: list[int] = []
        self.unread, self.arriving = os.pipe()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert option == socket.SO_RCVLOWAT
        self.low_water_marks.append(value)

    def fileno(self) -> int:
        return self.unread

    def close(self) -> None:
        os.close(self.unread)
        os.close(self.arriving)


def new_connection(*, reuses_frames: bool = False) -> tuple[BrokerConnection, FakeTransport]:
    connection = BrokerConnection("broker 1", "me", 30_000, reuses_frames=reuses_frames)
    transport = FakeTransport()
    connection.connection_made(transport)
    connection.versions = {0: (3, 12), 1: (4, 12), 12: (0, 4), 18: (0, 4)}
    return connection, transport


def feed(connection: BrokerConnection, data: bytes, chunk_bytes: int) -> None:
    """Deliver `data` to the connection in chunks of `chunk_bytes` bytes, as a socket would."""
    position = 0
    while position < len(data) and connection.is_open:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), chunk_bytes, len(data) - position)
        buffer[:size] = data[position : position + size]
        connection.buffer_updated(size)
        position += size


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            await test()

        run_in_virtual_time(main())

    run.__name__ = test.__name__
    return run


def heartbeat_response(connection_id: int, code: int = 0, version: int = 4) -> bytes:
    return b"".join(encode_response(connection_id, HeartbeatResponse(error_code=code), version))


def heartbeat_request() -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 1000, 10**9])
def test_connection_parses_responses_that_arrive_in_chunks_of_any_size(chunk_bytes: int) -> None:
    async def run() -> None:
        connection, transport = new_connection()
        futures = [connection.request(heartbeat_request()) for _ in range(3)]
        records = bytes(range(256)) * 1000
        fetch = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12)
        last = connection.request(heartbeat_request())
        assert [parse_request_header(frame)[:3] for frame in transport.written] == [
            (12, 4, 1), (12, 4, 2), (12, 4, 3), (1, 12, 4), (12, 4, 5),
        ]  # fmt: skip
        part = PartitionData(partition_index=0, high_watermark=9, records=records)
        response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
        stream = (
            heartbeat_response(1, 1)
            + heartbeat_response(2, 2)
            + heartbeat_response(3, 3)
            + b"".join(encode_response(4, response, 12))
            + heartbeat_response(5, 5)
        )
        feed(connection, stream, chunk_bytes)
        assert [(await future).error_code for future in futures] == [1, 2, 3]
        records_received = (await fetch).responses[0].partitions[0].records
        assert isinstance(records_received, memoryview)
        assert records_received == records
        assert (await last).error_code == 5
        assert connection.requests_in_flight == 0

    asyncio.run(run())


@pytest.mark.parametrize("reuses_frames", [False, True])
def test_connection_reuses_the_memory_of_a_long_response_only_if_frame_reuse_is_enabled(reuses_frames: bool) -> None:
    """With frame reuse, the next long response is read into the same memory.

    If a short response arrives between two long responses, the second long response is read into new memory.
    """

    async def run() -> None:
        connection, _ = new_connection(reuses_frames=reuses_frames)

        async def fetched(number: int, size: int) -> memoryview:
            future = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12)
            records = bytes([number]) * size
            part = PartitionData(partition_index=0, high_watermark=9, records=records)
            response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
            feed(connection, b"".join(encode_response(number, response, 12)), 10**9)
            records_received = (await future).responses[0].partitions[0].records
            assert isinstance(records_received, memoryview)
            assert records_received == records
            return records_received

        first, second = await fetched(1, 300_000), await fetched(2, 200_000)
        assert (first.obj is second.obj) == reuses_frames
        small = await fetched(3, 10)  # a small response ends the reuse of the large frame
        third = await fetched(4, 300_000)
        assert third.obj is not first.obj
        assert small == bytes([3]) * 10

    asyncio.run(run())


def long_response() -> bytes:
    part = PartitionData(partition_index=0, high_watermark=9, records=bytes(1_500_000))
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
    return b"".join(encode_response(1, response, 12))


@in_loop
async def test_receive_low_water_mark_is_the_number_of_remaining_bytes_but_at_most_one_megabyte() -> None:
    connection, transport = new_connection(reuses_frames=True)
    fake_socket = transport.fake_socket = FakeSocket()
    future = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12)
    frame = long_response()
    feed(connection, frame[:60_000], 60_000)
    feed(connection, frame[60_000:1_200_000], 10**9)
    assert fake_socket.low_water_marks == [1024 * 1024, len(frame) - 1_200_000]
    feed(connection, frame[1_200_000:], 10**9)
    await future
    assert fake_socket.low_water_marks[2:] == [1]
    fake_socket.close()


@in_loop
async def test_response_does_not_time_out_while_it_arrives_in_chunks_smaller_than_the_receive_low_water_mark() -> None:
    connection, transport = new_connection(reuses_frames=True)
    fake_socket = transport.fake_socket = FakeSocket()
    slow = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12, timeout_ms=20)
    frame = long_response()
    feed(connection, frame[:60_000], 60_000)
    for _ in range(5):
        os.write(fake_socket.arriving, b"more")
        await asyncio.sleep(0.015)  # simulate a slow network
    assert connection.is_open
    with pytest.raises(RequestTimeoutError):
        await slow
    fake_socket.close()


@in_loop
async def test_response_that_arrives_out_of_order_closes_the_connection() -> None:
    connection, transport = new_connection()
    first, second = connection.request(heartbeat_request()), connection.request(heartbeat_request())
    feed(connection, heartbeat_response(2), 100)
    with pytest.raises(ProtocolViolationError, match="the response has correlation id 2, but the request has 1"):
        await first
    with pytest.raises(ConnectionLostError):
        await second
    assert transport.aborted
    with pytest.raises(ClientError):
        connection.send(heartbeat_request(), 4, None)


@pytest.mark.parametrize("size", [-1, 0, 3, 2**31 - 1])
def test_connection_rejects_invalid_response_sizes_without_allocating_memory(size: int) -> None:
    async def run() -> None:
        connection, transport = new_connection()
        future = connection.request(heartbeat_request())
        feed(connection, size.to_bytes(4, "big", signed=True) + b"x" * 100, 50)
        with pytest.raises(ConnectionLostError, match=f"response size {size} is invalid"):
            await future
        assert transport.aborted

    asyncio.run(run())


@in_loop
async def test_error_for_undecodable_response_names_the_broker() -> None:
    connection, _ = new_connection()
    future = connection.request(heartbeat_request())
    feed(connection, (5).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\0", 100)
    with pytest.raises(ProtocolViolationError, match="broker 1: cannot decode HeartbeatResponse"):
        await future


@in_loop
async def test_connection_is_closed_if_a_response_arrives_while_no_request_is_in_flight() -> None:
    connection, transport = new_connection()
    feed(connection, heartbeat_response(1), 100)
    assert transport.aborted
    assert not connection.is_open


@in_loop
async def test_request_timeout_closes_the_connection_and_fails_all_requests() -> None:
    connection, transport = new_connection()
    slow, other = connection.request(heartbeat_request(), timeout_ms=1), connection.request(heartbeat_request())
    with pytest.raises(RequestTimeoutError, match="broker 1 did not respond to Heartbeat within 1 ms"):
        await slow
    with pytest.raises(ConnectionLostError):
        await other
    assert transport.aborted


@in_loop
async def test_response_that_arrives_slowly_does_not_time_out() -> None:
    connection, transport = new_connection()
    slow = connection.request(heartbeat_request(), timeout_ms=20)
    frame = heartbeat_response(1)
    feed(connection, frame[:5], 5)
    for position in range(5, len(frame)):
        feed(connection, frame[position : position + 1], 1)
        await asyncio.sleep(0.01)
    assert (await slow).error_code == 0
    assert not transport.aborted


@in_loop
async def test_response_that_stops_arriving_times_out() -> None:
    connection, transport = new_connection()
    slow = connection.request(heartbeat_request(), timeout_ms=5)
    feed(connection, heartbeat_response(1)[:-1], 100)
    with pytest.raises(RequestTimeoutError):
        await slow
    assert transport.aborted


@in_loop
async def test_each_request_times_out_after_its_own_timeout() -> None:
    connection, transport = new_connection()
    completed = connection.request(heartbeat_request(), timeout_ms=100)
    waiting = [connection.request(heartbeat_request(), timeout_ms=timeout_ms) for timeout_ms in (5_000, 2_000)]
    feed(connection, heartbeat_response(1), 100)
    assert (await completed).error_code == 0
    await asyncio.sleep(1.9)
    assert not transport.aborted
    await asyncio.sleep(0.2)
    assert transport.aborted
    for request in waiting:
        with pytest.raises(ConnectionLostError, match="2000 ms"):
            await request


@in_loop
async def test_lost_connection_fails_requests_in_flight_and_is_reported_once() -> None:
    closed: list[int] = []
    connection = BrokerConnection("broker 1", "me", 30_000, lambda: closed.append(1))
    connection.connection_made(FakeTransport())
    connection.versions = {12: (0, 4)}
    future = connection.request(heartbeat_request())
    connection.connection_lost(ConnectionResetError("reset by peer"))
    with pytest.raises(ConnectionLostError, match="broker 1: reset by peer"):
        await future
    connection.close()
    assert closed == [1]


@in_loop
async def test_client_retries_api_versions_request_with_an_older_version_if_the_broker_rejects_the_version() -> None:
    connection, transport = new_connection()
    negotiation = asyncio.ensure_future(connection._negotiate())
    await asyncio.sleep(0)
    assert parse_request_header(transport.written[0]).api_version == 4
    refusal = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)])
    feed(connection, b"".join(encode_response(1, refusal, 0)), 10)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert parse_request_header(transport.written[1]).api_version == 2
    listed = ApiVersionsResponse(api_keys=[ApiVersion(api_key=0, min_version=0, max_version=8)])
    feed(connection, b"".join(encode_response(2, listed, 2)), 10)
    await negotiation
    assert connection.versions == {0: (0, 8)}


@in_loop
async def test_join_group_request_that_waits_for_its_response_is_not_returned_as_the_oldest_request() -> None:
    connection, _ = new_connection()
    connection.versions[11] = (0, 5)
    joining = connection.request(JoinGroupRequest(group_id="g", session_timeout_ms=1, protocol_type="consumer"))
    assert connection.oldest_request is None
    beating = connection.request(heartbeat_request())
    feed(connection, b"".join(encode_response(1, JoinGroupResponse(), 5)), 10**9)
    await joining
    assert connection.oldest_request == (2, 0)
    feed(connection, heartbeat_response(2), 10**9)
    await beating
    assert connection.oldest_request is None
