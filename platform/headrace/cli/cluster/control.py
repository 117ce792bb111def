"""The client and the server of the control socket, over which other processes send commands to the supervisor.

A request and its response are one line of JSON each. The response to `{"command": "stop-node", "node": 2}` is
`{"lines": [...]}` or `{"error": "..."}`. The lock on `cluster.lock` shows whether a supervisor is running. The kernel
releases the lock whenever the supervisor exits, so a socket file that is left behind does no harm.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shlex
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.cli.cluster.layout import LOCK_FILE, SOCKET_FILE, ClusterError

_SUN_PATH_BYTES = 100

CommandHandler = Callable[[str, int | None], Awaitable[list[str]]]


class ControlServer:
    """The server of the control socket. It holds the lock on the cluster's directory until `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()

    def lock_directory(self) -> None:
        """Lock the cluster's directory for this process. Raises ClusterError, OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._lock, 32).decode().strip()
            os.close(self._lock)
            raise ClusterError(
                f"{self._directory} is in use by process {owner}: "
                f"stop it with `headrace cluster stop --dir {shlex.quote(str(self._directory))}`, or use another --dir"
            ) from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    async def serve(self, handle_command: CommandHandler) -> None:
        """Start to accept commands. Raises OSError."""

        async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            await _handle_connection(reader, writer, handle_command)

        (self._directory / SOCKET_FILE).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_socket_path(self._directory) as path:
            listening.bind(path)
        self._server = await asyncio.start_unix_server(on_connection, sock=listening)

    async def close(self) -> None:
        """Finish pending commands, and release the lock on the cluster's directory."""
        if self._server is not None:
            self._server.close()
        if self._requests:
            await asyncio.wait(self._requests, timeout=1)
        (self._directory / SOCKET_FILE).unlink(missing_ok=True)
        os.close(self._lock)


async def _handle_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle_command: CommandHandler
) -> None:
    try:
        request = json.loads(await reader.readline())
        response: dict[str, object] = {"lines": await handle_command(request["command"], request.get("node"))}
    except (ClusterError, OSError) as error:
        response = {"error": str(error)}
    except (ValueError, KeyError, TypeError):
        response = {"error": "the request is not a line of JSON with a 'command'"}
    try:
        writer.write(json.dumps(response).encode() + b"\n")
        await writer.drain()
    except ConnectionError:
        pass  # the client closed the connection without waiting for the response
    finally:
        writer.close()


def send_command(directory: Path, command: str, node_id: int | None = None) -> list[str]:
    """Send a command to the supervisor of the cluster in `directory`; return the lines of its response.

    Raises ClusterError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with _short_socket_path(directory) as path:
                connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            start = f"headrace cluster start --dir {shlex.quote(str(directory))}"
            raise ClusterError(f"no cluster runs in {directory}: start it with `{start}`") from None
        except OSError as error:
            raise ClusterError(f"cannot connect to the cluster in {directory}: {error.strerror or error}") from None
        connection.sendall(json.dumps({"command": command, "node": node_id}).encode() + b"\n")
        with connection.makefile() as stream:
            text = stream.readline()
    if not text:
        raise ClusterError(
            f"the supervisor of the cluster in {directory} exited before it sent a response to `{command}`"
        )
    response = json.loads(text)
    if "error" in response:
        raise ClusterError(response["error"])
    lines: list[str] = response["lines"]
    return lines


@contextmanager
def _short_socket_path(directory: Path) -> Iterator[str]:
    """Yield a path of the control socket that is short enough for a socket address, even if `directory` is long."""
    path = str(directory / SOCKET_FILE)
    if len(os.fsencode(path)) <= _SUN_PATH_BYTES or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
    finally:
        os.close(descriptor)
