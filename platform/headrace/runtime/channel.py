"""Messages between the worker and a child process: framed MessagePack over a socket pair, in both directions.

The response to a request is a value, or an error with the remote stack trace. If the other process dies, every pending
request fails with ChannelClosed and `closed` is set. Messages arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from headrace.metrics import logs
from headrace.runtime.messages import Notification, Request, response_type
from headrace.runtime.traces import trace_of

FRAME_SIZE_MAX = 256 << 20

log = logging.getLogger(__name__)
Handler = Callable[[Any], Awaitable[Any]]
"""Handles a received message; the result is the response to a request."""
R = TypeVar("R")


class _Kind(IntEnum):
    REQUEST = 0
    RESPONSE = 1
    ERROR = 2
    NOTIFICATION = 3


class _ErrorDetails(msgspec.Struct, array_like=True):
    kind: str
    message: str
    trace: str
    details: Any = None


@cache
def decoder(receives: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of messages of this type. It is cached, because creating it takes time and memory."""
    return msgspec.msgpack.Decoder(receives)


_FRAMES = msgspec.msgpack.Decoder(tuple[int, int, msgspec.Raw])


class ChannelClosed(ConnectionError):
    """The process at the other end has died or has closed the channel."""


class RemoteError(Exception):
    """The exception of a request at the other end: its class name, message, stack trace and details as plain data."""

    def __init__(self, kind: str, message: str, trace: str, details: Any = None) -> None:
        super().__init__(message or kind)  # some exceptions have no message
        self.kind = kind
        self.message = message
        self.trace = trace or f"{kind}: {message}"
        self.details = details


class Channel(asyncio.Protocol):
    """One end of a channel. `handler(message)` handles each received message of type `receives` in its own task."""

    def __init__(self, receives: Any, handler: Handler) -> None:
        self._handler = handler
        self._decoder = decoder(receives)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self._received = bytearray()
        self._requests: dict[int, tuple[Any, asyncio.Future[Any]]] = {}  # by request number: response type and response
        self._numbers = itertools.count(1)
        self._handling: set[asyncio.Task[None]] = set()
        self._transport: asyncio.WriteTransport | None = None
        self.closed = asyncio.Event()
        self.corruption: str | None = None
        """Why this end has closed the channel, if the other end has sent corrupt data."""

    @classmethod
    async def open(cls, end: socket.socket, receives: Any, handler: Handler) -> Channel:
        """Open a channel over one end of a socket pair."""
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        _, channel = await loop.create_unix_connection(lambda: cls(receives, handler), sock=end)
        return channel

    async def request(self, message: Request[R]) -> R:
        """Send a request and return its response. Raises RemoteError, ChannelClosed."""
        number = next(self._numbers)
        response: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._requests[number] = response_type(type(message)), response
        try:
            self._send(_Kind.REQUEST, number, message)
            return await response
        finally:
            self._requests.pop(number, None)

    def notify(self, message: Notification) -> None:
        """Send a message without a response. If the other process is dead, the message is dropped."""
        if self._is_open():
            self._send(_Kind.NOTIFICATION, 0, message)

    def close(self) -> None:
        """Close this end after all written messages have been sent."""
        if self._transport is not None:
            self._transport.close()

    # Methods of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # uvloop's class is no subclass of it

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= 4:
            size = int.from_bytes(received[:4], "big")
            if size > FRAME_SIZE_MAX:
                self._abort(f"a message of {size} bytes exceeds the limit of {FRAME_SIZE_MAX} bytes")
                return
            end = 4 + size
            if len(received) < end:
                return
            frame = bytes(received[4:end])
            del received[:end]
            try:
                kind, number, content = _FRAMES.decode(frame)
            except msgspec.MsgspecError as error:
                self._abort(f"a message is invalid: {error}")
                return
            self._dispatch(kind, number, content)

    def _abort(self, reason: str) -> None:
        """Close a channel whose received data cannot be parsed, for example because a plug-in has written to it."""
        self.corruption = f"it sent corrupt data to the worker: {reason}"
        self._received.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        for _, response in self._requests.values():
            if not response.done():
                response.set_exception(ChannelClosed("the other process has exited"))

    def _dispatch(self, kind: int, number: int, content: msgspec.Raw) -> None:
        if kind in (_Kind.REQUEST, _Kind.NOTIFICATION):
            task = asyncio.ensure_future(self._handle(kind, number, content))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)
            return
        expected, response = self._requests.get(number, (None, None))
        if response is None or response.done():
            return  # the request was abandoned
        if kind == _Kind.RESPONSE:
            try:
                response.set_result(msgspec.msgpack.decode(content, type=expected))
            except msgspec.MsgspecError as error:
                response.set_exception(RemoteError(type(error).__name__, f"invalid response: {error}", ""))
        else:
            remote = msgspec.msgpack.decode(content, type=_ErrorDetails)
            response.set_exception(RemoteError(remote.kind, remote.message, remote.trace, remote.details))

    async def _handle(self, kind: int, number: int, content: msgspec.Raw) -> None:
        message: Any = None
        try:
            message = self._decoder.decode(content)
            result = await self._handler(message)
        except BaseException as error:  # a plug-in may raise anything, and its exit must not end the process
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            if kind == _Kind.NOTIFICATION:
                log.exception("Handler of the notification %s failed", type(message).__name__)
            elif self._is_open():
                self._send_error(number, error)
            return
        if kind != _Kind.REQUEST or not self._is_open():
            return
        try:
            self._send(_Kind.RESPONSE, number, result)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            text = f"The response to {type(message).__name__} cannot be sent: {error}"
            self._send(_Kind.ERROR, number, _ErrorDetails(type(error).__name__, text, ""))

    def _is_open(self) -> bool:
        return self._transport is not None and not self.closed.is_set() and not self._transport.is_closing()

    def _send_error(self, number: int, error: BaseException) -> None:
        details = _ErrorDetails(type(error).__name__, logs.secrets.mask(message_of(error)), trace_of(error))
        try:
            self._send(_Kind.ERROR, number, msgspec.structs.replace(details, details=getattr(error, "details", None)))
        except ChannelClosed:
            raise
        except Exception:  # noqa: BLE001 - the details are a plug-in's object
            self._send(_Kind.ERROR, number, details)

    def _send(self, kind: _Kind, number: int, content: Any) -> None:
        if self._transport is None or not self._is_open():
            raise ChannelClosed("the other process has exited")
        frame = (kind, number, content)
        try:
            encoded = self._encoder.encode(frame)
        except UnicodeEncodeError:  # for example, an error message with a file name that is not UTF-8
            encoded = self._encoder.encode(_as_utf8(msgspec.to_builtins(frame, enc_hook=str)))
        if len(encoded) > FRAME_SIZE_MAX:
            raise ValueError(f"channel message of {len(encoded)} bytes exceeds the limit of {FRAME_SIZE_MAX} bytes")
        self._transport.writelines([len(encoded).to_bytes(4, "big"), encoded])


def is_being_cancelled() -> bool:
    """Whether the current asyncio task was cancelled. If it was not, a CancelledError comes from a plug-in."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def message_of(error: BaseException) -> str:
    """Return the message of an exception, even if the exception comes from a plug-in and its `__str__` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a plug-in may raise anything
        return f"{type(error).__name__}, whose message cannot be read, because its __str__ raises an exception"


def _as_utf8(value: Any) -> Any:
    """Return the value with characters that UTF-8 cannot represent (unpaired surrogates) escaped."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list() | tuple():
            return [_as_utf8(item) for item in value]
        case dict():
            return {_as_utf8(key): _as_utf8(item) for key, item in value.items()}
    return value
