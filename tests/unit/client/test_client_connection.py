from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace_broker.client.connection import Connection
from headrace_broker.client.errors import ClientError, ConnectionLostError, ProtocolViolationError, RequestTimeoutError
from headrace_broker.protocol.framing import encode_response, parse_request_header
from headrace_broker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from headrace_broker.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse


class FakeTransport(asyncio.Transport):
    """Takes what is written; `written` holds whole requests without their size."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False
        self.wire: FakeWire | None = None

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(b"".join(list_of_data)[4:])

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.wire if name == "socket" else default


class FakeWire:
    """A socket that says how many bytes it was told to wait for; what was not read yet is in a pipe."""

    def __init__(self) -> None:
        self.awaited: list[int] = []
        self.unread, self.arriving = os.pipe()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        assert option == socket.SO_RCVLOWAT
        self.awaited.append(value)

    def fileno(self) -> int:
        return self.unread

    def close(self) -> None:
        os.close(self.unread)
        os.close(self.arriving)


def connected(*, reuses_frames: bool = False) -> tuple[Connection, FakeTransport]:
    connection = Connection("broker 1", "me", 30_000, reuses_frames=reuses_frames)
    transport = FakeTransport()
    connection.connection_made(transport)
    connection.versions = {0: (3, 12), 1: (4, 12), 12: (0, 4), 18: (0, 4)}
    return connection, transport


def feed(connection: Connection, data: bytes, chunk_bytes: int) -> None:
    """Deliver bytes as a socket would, in pieces."""
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

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def answer(connection_id: int, code: int = 0, version: int = 4) -> bytes:
    return b"".join(encode_response(connection_id, HeartbeatResponse(error_code=code), version))


def beat() -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


@pytest.mark.parametrize("chunk_bytes", [1, 3, 7, 1000, 10**9])
def test_answers_are_found_however_they_are_cut(chunk_bytes: int) -> None:
    async def run() -> None:
        connection, transport = connected()
        futures = [connection.request(beat()) for _ in range(3)]
        records = bytes(range(256)) * 1000
        fetch = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12)
        last = connection.request(beat())
        assert [parse_request_header(frame)[:3] for frame in transport.written] == [
            (12, 4, 1), (12, 4, 2), (12, 4, 3), (1, 12, 4), (12, 4, 5),
        ]  # fmt: skip
        part = PartitionData(partition_index=0, high_watermark=9, records=records)
        response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
        stream = answer(1, 1) + answer(2, 2) + answer(3, 3) + b"".join(encode_response(4, response, 12)) + answer(5, 5)
        feed(connection, stream, chunk_bytes)
        assert [(await future).error_code for future in futures] == [1, 2, 3]
        got = (await fetch).responses[0].partitions[0].records
        assert isinstance(got, memoryview)
        assert got == records
        assert (await last).error_code == 5
        assert connection.requests_in_flight == 0

    asyncio.run(run())


@pytest.mark.parametrize("reuses_frames", [False, True])
def test_long_answers_share_their_memory_where_that_was_asked_for(reuses_frames: bool) -> None:
    async def run() -> None:
        connection, _ = connected(reuses_frames=reuses_frames)

        async def fetched(number: int, size: int) -> memoryview:
            future = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12)
            records = bytes([number]) * size
            part = PartitionData(partition_index=0, high_watermark=9, records=records)
            response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
            feed(connection, b"".join(encode_response(number, response, 12)), 10**9)
            got = (await future).responses[0].partitions[0].records
            assert isinstance(got, memoryview)
            assert got == records
            return got

        first, second = await fetched(1, 300_000), await fetched(2, 200_000)
        assert (first.obj is second.obj) == reuses_frames
        small = await fetched(3, 10)  # nothing large is kept for small ones
        third = await fetched(4, 300_000)
        assert third.obj is not first.obj
        assert small == bytes([3]) * 10

    asyncio.run(run())


def long_answer() -> bytes:
    part = PartitionData(partition_index=0, high_watermark=9, records=bytes(1_500_000))
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
    return b"".join(encode_response(1, response, 12))


@in_loop
async def test_a_long_answer_wakes_once_for_a_megabyte_and_never_waits_for_more_than_there_is_to_come() -> None:
    connection, transport = connected(reuses_frames=True)
    wire = transport.wire = FakeWire()
    future = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12)
    frame = long_answer()
    feed(connection, frame[:60_000], 60_000)
    feed(connection, frame[60_000:1_200_000], 10**9)
    assert wire.awaited == [1024 * 1024, len(frame) - 1_200_000]
    feed(connection, frame[1_200_000:], 10**9)
    await future
    assert wire.awaited[2:] == [1]
    wire.close()


@in_loop
async def test_a_long_answer_that_arrives_slowly_is_waited_for_though_nobody_is_woken() -> None:
    connection, transport = connected(reuses_frames=True)
    wire = transport.wire = FakeWire()
    slow = connection.request(FetchRequest(max_wait_ms=1, min_bytes=1), version=12, timeout_ms=20)
    frame = long_answer()
    feed(connection, frame[:60_000], 60_000)
    for _ in range(5):
        os.write(wire.arriving, b"more")
        await asyncio.sleep(0.015)  # the pace of the network is what is played
    assert connection.is_open
    with pytest.raises(RequestTimeoutError):
        await slow
    wire.close()


@in_loop
async def test_an_answer_out_of_order_closes_the_connection() -> None:
    connection, transport = connected()
    first, second = connection.request(beat()), connection.request(beat())
    feed(connection, answer(2), 100)
    with pytest.raises(ProtocolViolationError, match="answer 2 came where 1 was due"):
        await first
    with pytest.raises(ConnectionLostError):
        await second
    assert transport.aborted
    with pytest.raises(ClientError):
        connection.send(beat(), 4, None)


@pytest.mark.parametrize("size", [-1, 0, 3, 2**31 - 1])
def test_sizes_that_cannot_be_are_refused_without_memory(size: int) -> None:
    async def run() -> None:
        connection, transport = connected()
        future = connection.request(beat())
        feed(connection, size.to_bytes(4, "big", signed=True) + b"x" * 100, 50)
        with pytest.raises(ConnectionLostError, match=f"an answer of {size} bytes"):
            await future
        assert transport.aborted

    asyncio.run(run())


@in_loop
async def test_an_answer_that_cannot_be_read_names_the_broker() -> None:
    connection, _ = connected()
    future = connection.request(beat())
    feed(connection, (5).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\0", 100)
    with pytest.raises(ProtocolViolationError, match="broker 1: cannot decode HeartbeatResponse"):
        await future


@in_loop
async def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    connection, transport = connected()
    feed(connection, answer(1), 100)
    assert transport.aborted
    assert not connection.is_open


@in_loop
async def test_a_late_answer_closes_the_connection_and_fails_all() -> None:
    connection, transport = connected()
    slow, other = connection.request(beat(), timeout_ms=1), connection.request(beat())
    with pytest.raises(RequestTimeoutError, match="broker 1 did not answer Heartbeat within 1 ms"):
        await slow
    with pytest.raises(ConnectionLostError):
        await other
    assert transport.aborted


@in_loop
async def test_an_answer_that_arrives_slowly_is_waited_for() -> None:
    connection, transport = connected()
    slow = connection.request(beat(), timeout_ms=20)
    frame = answer(1)
    feed(connection, frame[:5], 5)
    for position in range(5, len(frame)):
        feed(connection, frame[position : position + 1], 1)
        await asyncio.sleep(0.01)
    assert (await slow).error_code == 0
    assert not transport.aborted


@in_loop
async def test_an_answer_that_stops_arriving_is_not() -> None:
    connection, transport = connected()
    slow = connection.request(beat(), timeout_ms=5)
    feed(connection, answer(1)[:-1], 100)
    with pytest.raises(RequestTimeoutError):
        await slow
    assert transport.aborted


@in_loop
async def test_a_lost_connection_fails_what_is_in_flight_once() -> None:
    closed: list[int] = []
    connection = Connection("broker 1", "me", 30_000, lambda: closed.append(1))
    connection.connection_made(FakeTransport())
    connection.versions = {12: (0, 4)}
    future = connection.request(beat())
    connection.connection_lost(ConnectionResetError("reset by peer"))
    with pytest.raises(ConnectionLostError, match="broker 1: reset by peer"):
        await future
    connection.close()
    assert closed == [1]


@in_loop
async def test_old_brokers_are_asked_for_their_versions_again() -> None:
    connection, transport = connected()
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
async def test_who_waits_for_the_other_members_of_a_group_is_owed_nothing_yet() -> None:
    connection, _ = connected()
    connection.versions[11] = (0, 5)
    joining = connection.request(JoinGroupRequest(group_id="g", session_timeout_ms=1, protocol_type="consumer"))
    assert connection.oldest_request is None
    beating = connection.request(beat())
    feed(connection, b"".join(encode_response(1, JoinGroupResponse(), 5)), 10**9)
    await joining
    assert connection.oldest_request == (2, 0)
    feed(connection, answer(2), 10**9)
    await beating
    assert connection.oldest_request is None
