"""Calls between processes: the caller receives a response whatever a plug-in raises or returns."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from headrace.runtime.channel import Channel, RemoteError

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _unexpected_call(method: str, arguments: list[Any]) -> Any:
    raise AssertionError(method)


async def call(result: Any) -> Any:
    """Return the response to a call whose handler returns or raises `result`."""

    async def handler(method: str, arguments: list[Any]) -> Any:
        if isinstance(result, BaseException):
            raise result
        return result

    caller_socket, peer_socket = socket.socketpair()
    caller, peer = await Channel.open(caller_socket, _unexpected_call), await Channel.open(peer_socket, handler)
    try:
        return await caller.call("it")
    finally:
        caller.close()
        peer.close()
        await caller.closed.wait()
        await peer.closed.wait()


async def test_error_with_invalid_utf_8_message_is_received() -> None:
    with pytest.raises(RemoteError, match=r"no file bad\\udcff") as caught:
        await call(ValueError("no file bad\udcff"))
    assert caught.value.kind == "ValueError"


async def test_invalid_utf_8_in_results_is_escaped() -> None:
    assert await call({"name\udcff": ["\udcff"]}) == {"name\\udcff": ["\\udcff"]}


async def test_response_that_cannot_be_encoded_is_an_error() -> None:
    with pytest.raises(RemoteError, match="The response to it cannot be sent"):
        await call(2**70)


async def test_system_exit_in_handler_is_an_error() -> None:
    with pytest.raises(RemoteError) as caught:
        await call(SystemExit(5))
    assert caught.value.kind == "SystemExit"
    assert sys.exc_info()[0] is None


async def test_error_without_message_is_reported_by_class_name() -> None:
    with pytest.raises(RemoteError, match=r"^ZeroDivisionError$"):
        await call(ZeroDivisionError())
