"""Calls between processes: whatever a plug-in says or returns, the other side gets an answer."""

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


async def _nothing(method: str, arguments: list[Any]) -> Any:
    raise AssertionError(method)


async def ask(answer: Any) -> Any:
    """What a call gets whose handler returns or raises `answer`."""

    async def handler(method: str, arguments: list[Any]) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    ours, theirs = socket.socketpair()
    caller, peer = await Channel.open(ours, _nothing), await Channel.open(theirs, handler)
    try:
        return await caller.call("it")
    finally:
        caller.close()
        peer.close()
        await caller.closed.wait()
        await peer.closed.wait()


async def test_an_error_whose_text_is_not_utf_8_arrives() -> None:
    with pytest.raises(RemoteError, match=r"no file bad\\udcff") as caught:
        await ask(ValueError("no file bad\udcff"))
    assert caught.value.kind == "ValueError"


async def test_a_text_that_is_not_utf_8_is_written_as_escapes() -> None:
    assert await ask({"name\udcff": ["\udcff"]}) == {"name\\udcff": ["\\udcff"]}


async def test_an_answer_that_cannot_be_sent_is_an_error() -> None:
    with pytest.raises(RemoteError, match="The answer to it cannot be sent"):
        await ask(2**70)


async def test_an_exit_is_an_error() -> None:
    with pytest.raises(RemoteError) as caught:
        await ask(SystemExit(5))
    assert caught.value.kind == "SystemExit"
    assert sys.exc_info()[0] is None


async def test_an_error_without_a_text_is_told_by_its_name() -> None:
    with pytest.raises(RemoteError, match=r"^ZeroDivisionError$"):
        await ask(ZeroDivisionError())
