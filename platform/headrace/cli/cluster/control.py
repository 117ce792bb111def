"""How another shell asks the running supervisor: one line of JSON each way over a Unix socket in the directory.

`{"command": "stop-node", "node": 2}` is answered with `{"lines": [...]}` or `{"error": "..."}`.  The lock on
`cluster.lock` says whether a supervisor runs: the kernel drops it however that ends, so a socket that was left behind
misleads nobody.
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

Answer = Callable[[str, int | None], Awaitable[list[str]]]


class ControlServer:
    """The supervisor's end; owns the directory while it is open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = -1
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[None]] = set()

    def take(self) -> None:
        """Take the directory for this process.  Raises ClusterError, OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._lock, 32).decode().strip()
            os.close(self._lock)
            raise ClusterError(
                f"{self._directory} is in use by process {owner}: "
                f"`headrace cluster stop --dir {shlex.quote(str(self._directory))}` ends it, or name another directory"
            ) from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    async def serve(self, answer: Answer) -> None:
        """Answer commands from now on.  Raises OSError."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            await _converse(reader, writer, answer)

        (self._directory / SOCKET_FILE).unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _reachable(self._directory) as path:
            listening.bind(path)
        self._server = await asyncio.start_unix_server(connected, sock=listening)

    async def close(self) -> None:
        """Answer what was asked, and give the directory back."""
        if self._server is not None:
            self._server.close()
        if self._requests:
            await asyncio.wait(self._requests, timeout=1)
        (self._directory / SOCKET_FILE).unlink(missing_ok=True)
        os.close(self._lock)


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
    try:
        request = json.loads(await reader.readline())
        reply: dict[str, object] = {"lines": await answer(request["command"], request.get("node"))}
    except (ClusterError, OSError) as error:
        reply = {"error": str(error)}
    except (ValueError, KeyError, TypeError):
        reply = {"error": "the command is no line of JSON with a 'command'"}
    try:
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()
    except ConnectionError:
        pass  # whoever asked did not wait for the answer
    finally:
        writer.close()


def ask(directory: Path, command: str, node_id: int | None = None) -> list[str]:
    """Ask the supervisor of a directory, and wait for its answer.  Raises ClusterError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with _reachable(directory) as path:
                connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            start = f"headrace cluster start --dir {shlex.quote(str(directory))}"
            raise ClusterError(f"no cluster runs in {directory}: `{start}` starts one") from None
        except OSError as error:
            raise ClusterError(f"the cluster in {directory} cannot be asked: {error.strerror or error}") from None
        connection.sendall(json.dumps({"command": command, "node": node_id}).encode() + b"\n")
        with connection.makefile() as stream:
            text = stream.readline()
    if not text:
        raise ClusterError(f"the supervisor in {directory} ended before it answered")
    reply = json.loads(text)
    if "error" in reply:
        raise ClusterError(reply["error"])
    lines: list[str] = reply["lines"]
    return lines


@contextmanager
def _reachable(directory: Path) -> Iterator[str]:
    """A path of the socket that fits into a socket address, which a deep directory's own may not."""
    path = str(directory / SOCKET_FILE)
    if len(os.fsencode(path)) <= _SUN_PATH_BYTES or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_FILE}"
    finally:
        os.close(descriptor)
