"""A TCP proxy in the test's event loop that can abort connections and drop responses.

A broker advertises the proxy's address, so that all connections of its clients go through the proxy.
"""

from __future__ import annotations

import asyncio

_CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Forwards connections to `target` (host, port). `target` may be set after `start`."""

    def __init__(self) -> None:
        self.target: tuple[str, int] = ("127.0.0.1", 0)
        self.accepted_connections = 0
        self.drops_responses = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen on a free port, and return it."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def abort_connections(self) -> None:
        """Abort all current connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def close(self) -> None:
        """Stop listening and abort all connections."""
        assert self._server is not None
        self._server.close()
        self.abort_connections()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        self.accepted_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(client_writer)
        broker_writer: asyncio.StreamWriter | None = None
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self.target)
            self._writers.add(broker_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(client_reader, broker_writer, is_response=False))
                both.create_task(self._forward(broker_reader, client_writer, is_response=True))
        except (OSError, ExceptionGroup):
            pass  # if one connection fails, also close the connection to the other side
        finally:
            for writer in (client_writer, broker_writer):
                if writer is not None:
                    self._writers.discard(writer)
                    writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_response: bool) -> None:
        while data := await reader.read(_CHUNK_BYTES):
            if not (is_response and self.drops_responses):
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError("one side has closed")
