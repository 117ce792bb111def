"""Calls between the worker and a child process: framed MessagePack over a socket pair, in both directions.

The response to a call is a value, or an error with the remote stack trace. If the other process dies, every pending
call fails with PeerGone and `closed` is set. Messages arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

_CALL, _RESULT, _ERROR, _NOTICE = range(4)
FRAME_SIZE_MAX = 256 << 20

log = logging.getLogger(__name__)
Handler = Callable[[str, list[Any]], Awaitable[Any]]


class PeerGone(ConnectionError):
    """The process at the other end has died or has closed the channel."""


class RemoteError(Exception):
    """The exception of a call at the other end: its class name, message, stack trace and details as plain data."""

    def __init__(self, kind: str, message: str, trace: str, details: Any = None) -> None:
        super().__init__(message or kind)  # NotImplementedError and others say nothing more
        self.kind = kind
        self.message = message
        self.trace = trace
        self.details = details


class Channel(asyncio.Protocol):
    """One end of a channel. `handler(method, arguments)` handles each received call or notification in its own task."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self._received = bytearray()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._serving: set[asyncio.Task[None]] = set()
        self._transport: asyncio.WriteTransport | None = None
        self.closed = asyncio.Event()

    @classmethod
    async def open(cls, end: socket.socket, handler: Handler) -> Channel:
        """Open a channel over one end of a socket pair."""
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        _, channel = await loop.create_unix_connection(lambda: cls(handler), sock=end)
        return channel

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method at the other end and return its result. Raises RemoteError, PeerGone."""
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self._send([_CALL, number, method, arguments])
            return await answer
        finally:
            self._calls.pop(number, None)

    def notify(self, method: str, *arguments: Any) -> None:
        """Send a message without a response; it is dropped if the other process is dead."""
        if not self.closed.is_set():
            self._send([_NOTICE, 0, method, arguments])

    def close(self) -> None:
        """Close this end after all written messages have been sent."""
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 4:
            end = 4 + int.from_bytes(received[:4], "big")
            if len(received) < end:
                return
            frame = bytes(received[4:end])
            del received[:end]
            self._dispatch(msgspec.msgpack.decode(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(PeerGone("the other process has exited"))

    def _dispatch(self, message: list[Any]) -> None:
        kind, number, *content = message
        if kind in (_CALL, _NOTICE):
            task = asyncio.ensure_future(self._serve(kind, number, *content))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
            return
        answer = self._calls.get(number)
        if answer is None or answer.done():
            return  # nobody waits any more
        if kind == _RESULT:
            answer.set_result(content[0])
        else:
            answer.set_exception(RemoteError(*content))

    async def _serve(self, kind: int, number: int, method: str, arguments: list[Any]) -> None:
        try:
            result = await self._handler(method, arguments)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # a plug-in's exit is its own affair
            if kind == _NOTICE:
                log.exception("Handler of the one-way message %s failed", method)
            else:
                trace = "".join(traceback.format_exception(error))
                self._send([_ERROR, number, type(error).__name__, str(error), trace, getattr(error, "details", None)])
            return
        if kind != _CALL:
            return
        try:
            self._send([_RESULT, number, result])
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._send(
                [_ERROR, number, type(error).__name__, f"The response to {method} cannot be sent: {error}", "", None]
            )

    def _send(self, message: list[Any]) -> None:
        if self._transport is None or self.closed.is_set() or self._transport.is_closing():
            raise PeerGone("the other process has exited")
        try:
            frame = self._encoder.encode(message)
        except UnicodeEncodeError:  # a file name that is not UTF-8, say, in an error's text
            frame = self._encoder.encode(_as_utf8(message))
        if len(frame) > FRAME_SIZE_MAX:
            raise ValueError(f"channel message of {len(frame)} bytes exceeds the limit of {FRAME_SIZE_MAX} bytes")
        self._transport.writelines([len(frame).to_bytes(4, "big"), frame])


def _as_utf8(value: Any) -> Any:
    """The same with what has no UTF-8 (halves of surrogate pairs) written as an escape."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list() | tuple():
            return [_as_utf8(item) for item in value]
        case dict():
            return {_as_utf8(key): _as_utf8(item) for key, item in value.items()}
    return value
