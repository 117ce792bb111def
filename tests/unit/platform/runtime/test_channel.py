"""Tests of calls between processes. The caller receives a response whatever the plug-in raises or returns."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.runtime.channel import Channel, ChannelClosed, Handler, RemoteError
from headrace.runtime.messages import CountersReported, HostMessage, ReadOffsets, Request, TopicUsed
from headrace.runtime.spec import InstanceId

pytestmark = pytest.mark.anyio

INSTANCE = InstanceId("c", 0, 1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Echo(Request[Any]):
    """A request to which the test's handler responds."""


async def _unexpected(message: Any) -> Any:
    raise AssertionError(message)


@asynccontextmanager
async def channels(receives: Any, handler: Handler) -> AsyncIterator[tuple[Channel, Channel]]:
    """Open both ends of a channel. `handler` handles the messages of type `receives` that the first end sends."""
    first_socket, second_socket = socket.socketpair()
    first = await Channel.open(first_socket, HostMessage, _unexpected)
    second = await Channel.open(second_socket, receives, handler)
    try:
        yield first, second
    finally:
        first.close()
        second.close()
        await first.closed.wait()
        await second.closed.wait()


async def call(result: Any) -> Any:
    """Return the response to a request whose handler returns or raises `result`."""

    async def handler(message: Echo) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    async with channels(Echo, handler) as (caller, _):
        return await caller.request(Echo())


async def test_error_response_with_invalid_utf_8_in_its_message_is_received_with_escapes() -> None:
    with pytest.raises(RemoteError, match=r"no file bad\\udcff") as caught:
        await call(ValueError("no file bad\udcff"))
    assert caught.value.kind == "ValueError"


class UnreadableError(Exception):
    details = object()

    def __str__(self) -> str:
        raise ValueError("no message")


class UnreadableObject:
    def __str__(self) -> str:
        raise ValueError("no text")


class OwnBaseException(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [UnreadableError(), OwnBaseException("own"), asyncio.CancelledError(), StopIteration()]
)
async def test_caller_receives_any_exception_that_the_request_handler_raises(error: BaseException) -> None:
    with pytest.raises(RemoteError) as caught:
        await asyncio.wait_for(call(error), 30)
    assert type(error).__name__ in caught.value.trace


async def test_caller_receives_an_error_without_its_details_if_the_details_cannot_be_encoded() -> None:
    error = ValueError("no")
    error.details = UnreadableObject()  # type: ignore[attr-defined]
    with pytest.raises(RemoteError, match="no") as caught:
        await asyncio.wait_for(call(error), 30)
    assert caught.value.details is None


async def test_invalid_utf_8_in_a_response_is_escaped() -> None:
    assert await call({"name\udcff": ["\udcff"]}) == {"name\\udcff": ["\\udcff"]}


async def test_caller_receives_an_error_if_the_response_cannot_be_encoded() -> None:
    with pytest.raises(RemoteError, match="The response to Echo cannot be sent") as caught:
        await call(2**70)
    assert caught.value.trace.startswith("OverflowError: The response to Echo cannot be sent")


async def test_caller_receives_an_error_if_the_request_handler_raises_system_exit() -> None:
    with pytest.raises(RemoteError) as caught:
        await call(SystemExit(5))
    assert caught.value.kind == "SystemExit"
    assert sys.exc_info()[0] is None


async def test_message_of_an_error_response_is_the_class_name_if_the_error_has_no_message() -> None:
    with pytest.raises(RemoteError, match=r"^ZeroDivisionError$"):
        await call(ZeroDivisionError())


async def test_channel_delivers_messages_as_typed_objects_in_order() -> None:
    received: list[Any] = []
    complete = asyncio.Event()

    async def handler(message: Any) -> None:
        received.append(message)
        if len(received) == 2:
            complete.set()

    sent = [TopicUsed(INSTANCE, "t"), CountersReported(INSTANCE, {"records": 2}, {"record_rate": 0.5})]
    async with channels(HostMessage, handler) as (sender, _):
        for message in sent:
            sender.notify(message)
        await asyncio.wait_for(complete.wait(), 30)
    assert received == sent


async def test_caller_receives_an_error_that_names_the_field_if_a_request_field_has_a_wrong_type() -> None:
    async with channels(HostMessage, _unexpected) as (sender, _):
        with pytest.raises(RemoteError, match=r"partitions\[0\]"):
            await sender.request(ReadOffsets(INSTANCE, ["no partition"]))  # type: ignore[list-item]


async def test_caller_receives_an_error_if_the_response_has_a_wrong_type() -> None:
    async def handler(message: Any) -> Any:
        return "no list"

    async with channels(HostMessage, handler) as (sender, _):
        with pytest.raises(RemoteError, match="invalid response"):
            await sender.request(ReadOffsets(INSTANCE, []))


async def test_pending_request_fails_when_the_other_end_of_the_channel_closes() -> None:
    async def handler(message: Any) -> Any:
        second.close()
        await asyncio.sleep(60)

    async with channels(HostMessage, handler) as (first, second):
        with pytest.raises(ChannelClosed):
            await first.request(ReadOffsets(INSTANCE, []))


@pytest.mark.parametrize("error", [None, ValueError("no")])
async def test_response_is_dropped_if_the_channel_closes_while_the_request_is_handled(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(message: Any) -> None:
        second.close()
        if error is not None:
            raise error

    async with channels(HostMessage, handler) as (first, second):
        with pytest.raises(ChannelClosed):
            await first.request(ReadOffsets(INSTANCE, []))
    gc.collect()
    await asyncio.sleep(0)
    assert "never retrieved" not in caplog.text


async def test_notification_through_a_closing_channel_is_dropped() -> None:
    async with channels(HostMessage, _unexpected) as (first, _):
        first.close()
        first.notify(TopicUsed(INSTANCE, "t"))  # raises no exception


async def test_invalid_utf_8_in_a_request_is_escaped() -> None:
    async def handler(message: ReadOffsets) -> Any:
        return message.partitions

    async with channels(HostMessage, handler) as (sender, _):
        response = await sender.request(ReadOffsets(INSTANCE, [{"file": "bad\udcff"}]))
    assert response == [{"file": "bad\\udcff"}]


async def test_caller_receives_an_error_for_a_frame_with_invalid_content_and_the_channel_stays_open() -> None:
    async def handler(message: Any) -> Any:
        return [None]

    async with channels(HostMessage, handler) as (sender, _):
        with pytest.raises(RemoteError, match="Invalid value 'Echo'"):
            await sender.request(Echo())
        assert await sender.request(ReadOffsets(INSTANCE, [{}])) == [None]


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff" + b"x" * 100, b"\0\0\0\4\xff\xff\xff\xff"])
async def test_channel_closes_if_it_receives_corrupt_data(data: bytes) -> None:
    near, far = socket.socketpair()
    channel = await Channel.open(near, HostMessage, _unexpected)
    with far:
        far.sendall(data)
        with pytest.raises(ChannelClosed):
            await asyncio.wait_for(channel.request(ReadOffsets(INSTANCE, [])), 30)
    assert "it sent corrupt data" in (channel.corruption or "")
