"""A proxy between clients and a broker. It understands Kafka's protocol, and applies faults to requests.

The broker advertises the proxy's address, so that all connections of its clients go through the proxy. For each client
connection, the proxy opens a connection to the broker, and forwards requests and responses unchanged. If a fault
applies to a request, the proxy applies the effect of this fault. The responses on a connection keep the order of their
requests.

An idempotent producer may have several requests in flight. If a broker rejects one of them with a retriable error, it
also rejects the later requests, because their sequence numbers leave a gap. The proxy does the same: until the rejected
batch is sent again, it rejects later batches of the same producer and partition on that connection.

All methods run on the broker's event loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from headrace.testing import error_responses
from headrace.testing.broker_faults import Delay, Disconnect, Fail, Fault, FaultList
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.errors import ErrorCode, ProtocolError
from headrace_broker.protocol.framing import (
    RequestHeader,
    encode_response,
    parse_request_header,
    parse_response_header,
)
from headrace_broker.protocol.messages.metadata import MetadataResponse
from headrace_broker.protocol.messages.produce import ProduceRequest
from headrace_broker.protocol.notation import Buffer, Request, Response
from headrace_broker.records.batch import CorruptBatchError, read_header

EXEMPT_CLIENT_ID = "headrace-testing"
"""Faults do not apply to requests with this client id: those of `KafkaBroker`'s own methods."""

_SIZE = struct.Struct(">i")
_READ_BUFFER_BYTES = 1 << 20

_Sequence = tuple[int, int, str | bytes, int]
"""Identifies a sequence of batches: producer id, producer epoch, topic name or id, partition."""


class FaultProxy:
    """Accepts clients' connections on a bound socket, and forwards them to the broker at `target` (host, port)."""

    def __init__(self, target: tuple[str, int], faults: FaultList) -> None:
        self._target = target
        self._faults = faults
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on this bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=_READ_BUFFER_BYTES)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self._target, limit=_READ_BUFFER_BYTES)
            try:
                await _Connection(reader, writer, broker_reader, broker_writer, self._faults).run()
            finally:
                broker_writer.transport.abort()
        except asyncio.CancelledError:
            return  # `close` cancels this task; asyncio's streams would log the cancellation as an error
        except OSError:
            return  # the broker is stopping
        finally:
            writer.transport.abort()


@dataclass(slots=True)
class _Exchange:
    """A request whose response has not been delivered to the client yet.

    `response` is the proxy's own response. It is None if the broker responds.
    """

    header: RequestHeader
    fault: Fault | None = None
    response: Response | None = None


class _Connection:
    """One client connection: one asyncio task forwards the requests, and another task forwards the responses."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        broker_reader: asyncio.StreamReader,
        broker_writer: asyncio.StreamWriter,
        faults: FaultList,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._broker_reader = broker_reader
        self._broker_writer = broker_writer
        self._faults = faults
        self._exchanges: asyncio.Queue[_Exchange] = asyncio.Queue()
        self._rejected = _RejectedBatches()
        for each in (writer, broker_writer):
            each.transport.set_write_buffer_limits(high=0)  # drain() returns when everything has been sent

    async def run(self) -> None:
        """Forward requests and responses until the client, the broker or a fault closes a connection."""
        tasks = [asyncio.ensure_future(_until_disconnect(work)) for work in (self._requests(), self._responses())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _requests(self) -> None:
        while True:
            frame = await _read_frame(self._reader)
            header = parse_request_header(frame)
            fault = None if header.client_id == EXEMPT_CLIENT_ID else self._faults.find(header.api_key)
            must_decode = fault is not None or header.api_key == ApiKey.PRODUCE
            request = _decode_request(header, frame) if must_decode else None
            if (error := self._rejected.error_for(request)) is not None:
                assert request is not None
                self._respond(header, error_responses.error_response(request, header.api_version, error))
            elif fault is None:
                await self._forward(frame, header, request, None)
            elif not await self._apply(fault, frame, header, request):
                await asyncio.Event().wait()  # the connection is about to be closed: process no later request

    async def _forward(
        self, frame: bytes, header: RequestHeader, request: Request[Any] | None, fault: Fault | None
    ) -> None:
        if _expects_response(request):
            self._exchanges.put_nowait(_Exchange(header, fault))
        self._broker_writer.writelines((_SIZE.pack(len(frame)), frame))
        await self._broker_writer.drain()

    def _respond(self, header: RequestHeader, response: Response, fault: Fault | None = None) -> None:
        self._exchanges.put_nowait(_Exchange(header, fault, response))

    async def _apply(self, fault: Fault, frame: bytes, header: RequestHeader, request: Request[Any] | None) -> bool:
        """Apply a fault to a request; return False if the connection must not process any further requests."""
        match fault.effect:
            case Fail(error):
                return await self._fail(fault, error, frame, header, request)
            case Delay():
                self._faults.use(fault)
                await self._forward(frame, header, request, fault)
                return True
            case Disconnect(before_request):
                self._faults.use(fault)
                if before_request:
                    self._exchanges.put_nowait(_Exchange(header, fault))
                    return False
                await self._forward(frame, header, request, fault)
                if not _expects_response(request):
                    self._broker_writer.write_eof()  # the broker still processes the forwarded requests
                    fault.record_applied()
                    self._writer.transport.abort()
                return False

    async def _fail(
        self, fault: Fault, error: ErrorCode, frame: bytes, header: RequestHeader, request: Request[Any] | None
    ) -> bool:
        if request is None:  # the broker does not support the request's version, and rejects the request itself
            await self._forward(frame, header, request, None)
            return True
        if error_responses.is_incremental_fetch(request):
            self._respond(header, error_responses.end_of_fetch_session())
            return True  # the fault applies to the client's next Fetch request, which names all partitions
        self._faults.use(fault)
        if header.api_key == ApiKey.METADATA:
            await self._forward(frame, header, request, fault)
            return True
        if not _expects_response(request):
            fault.record_applied()
            self._writer.transport.abort()  # like a broker, which cannot report the error of a request with acks=0
            return False
        if isinstance(request, ProduceRequest) and error.is_retriable:
            self._rejected.add(request, error)
        self._respond(header, error_responses.error_response(request, header.api_version, error), fault)
        return True

    # -- responses ---------------------------------------------------------------------------------------------------

    async def _responses(self) -> None:
        while True:
            exchange = await self._exchanges.get()
            effect = None if exchange.fault is None else exchange.fault.effect
            if isinstance(effect, Disconnect) and effect.before_request:
                self._disconnect(exchange)
                return
            frame = None if exchange.response is not None else await _read_frame(self._broker_reader)
            if isinstance(effect, Disconnect):
                self._disconnect(exchange)
                return
            if isinstance(effect, Delay):
                await asyncio.sleep(effect.seconds)
            self._deliver(exchange, frame)
            if exchange.fault is not None:
                exchange.fault.record_applied()
            await self._writer.drain()

    def _disconnect(self, exchange: _Exchange) -> None:
        self._writer.transport.abort()
        assert exchange.fault is not None
        exchange.fault.record_applied()

    def _deliver(self, exchange: _Exchange, frame: bytes | None) -> None:
        header, fault = exchange.header, exchange.fault
        if frame is None:
            assert exchange.response is not None
            self._writer.writelines(encode_response(header.correlation_id, exchange.response, header.api_version))
        elif fault is not None and isinstance(fault.effect, Fail):
            _, body = parse_response_header(frame, header.api_key, header.api_version)
            metadata = decode(MetadataResponse, header.api_version, frame, body)
            error_responses.set_metadata_error(metadata, fault.effect.error)
            self._writer.writelines(encode_response(header.correlation_id, metadata, header.api_version))
        else:
            self._writer.writelines((_SIZE.pack(len(frame)), frame))


class _RejectedBatches:
    """The batches of idempotent producers that the proxy rejected with a retriable error on one connection."""

    def __init__(self) -> None:
        self._rejected: dict[_Sequence, tuple[int, ErrorCode]] = {}

    def add(self, request: ProduceRequest, error: ErrorCode) -> None:
        """Add the batches of a request that the proxy has rejected with `error`."""
        for sequence, base_sequence in _idempotent_batches(request):
            self._rejected.setdefault(sequence, (base_sequence, error))

    def error_for(self, request: Request[Any] | None) -> ErrorCode | None:
        """Return the error with which the proxy must reject `request`, or None.

        The proxy must reject a request if one of its batches has a larger sequence number than a rejected batch of the
        same producer and partition. If a rejected batch is sent again, remove it from the rejected batches.
        """
        if not self._rejected or not isinstance(request, ProduceRequest):
            return None
        error: ErrorCode | None = None
        batches = _idempotent_batches(request)
        for sequence, base_sequence in batches:
            rejected = self._rejected.get(sequence)
            if rejected is not None and base_sequence > rejected[0]:
                error = error or rejected[1]
        if error is not None:
            self.add(request, error)
            return error
        for sequence, _ in batches:
            self._rejected.pop(sequence, None)
        return None


def _idempotent_batches(request: ProduceRequest) -> list[tuple[_Sequence, int]]:
    """Return (producer and partition, base sequence number) of each batch that an idempotent producer has sent."""
    found: list[tuple[_Sequence, int]] = []
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if not partition.records or isinstance(partition.records, list):
                continue  # decoded records are never a list of buffers
            try:
                batch = read_header(partition.records)
            except CorruptBatchError:
                continue  # the broker rejects the corrupt batch
            if batch.has_producer_id:
                sequence = (batch.producer_id, batch.producer_epoch, topic.name or topic.topic_id, partition.index)
                found.append((sequence, batch.base_sequence))
    return found


def _decode_request(header: RequestHeader, frame: Buffer) -> Request[Any] | None:
    """Decode a request; return None if the proxy does not know the request's version."""
    api = API[header.api_key]
    if not api.min_version <= header.api_version <= api.max_version:
        return None
    return decode(api.request, header.api_version, frame, header.body_offset)


def _expects_response(request: Request[Any] | None) -> bool:
    return not (isinstance(request, ProduceRequest) and request.acks == 0)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return await reader.readexactly(size)


async def _until_disconnect(work: Coroutine[Any, Any, None]) -> None:
    """Run `work`. Return when the client or the broker disconnects or violates the protocol."""
    try:
        await work
    except (OSError, EOFError, ProtocolError, ValueError):
        return
