"""Runs headrace's commands and tools. `run_command` needs a third of the CPU time of `python -m MODULE`.

A process of this module imports the modules once, and forks a child for each run. The child has its own standard input,
output and exit status, as if a shell had started it.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import IO

_IMPORTED = (
    "headrace_broker.client.admin",
    "headrace_broker.client.consumer",
    "headrace_broker.client.producer",
)
"""Modules that most commands import when they run."""


def run_command(
    module: str, *arguments: str, stdin: bytes = b"", timeout_s: int = 120
) -> subprocess.CompletedProcess[str]:
    """Run the function `entry` of a module as a command.

    If the command runs longer than `timeout_s`, SIGALRM ends it, and its exit status is -SIGALRM.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        given.write(stdin)
        given.seek(0)
        request = json.dumps([module, arguments, timeout_s]).encode()
        files = [file.fileno() for file in (given, output, errors)]
        try:
            socket.send_fds(_server(), [request], files)
        except BrokenPipeError:  # another test has ended the process, for example a test of orphaned processes
            _server.cache_clear()
            socket.send_fds(_server(), [request], files)
        status = int(_server().recv(16))
        return subprocess.CompletedProcess([module, *arguments], status, _content(output), _content(errors))


def run_tool(tool: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run a module of `headrace_broker.tools` as a command."""
    return run_command(f"headrace_broker.tools.{tool}", *arguments, stdin=stdin)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


@functools.cache
def _server() -> socket.socket:
    """Start the process that runs the commands. It exits when the test's process exits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        os.posix_spawn(sys.executable, [sys.executable, __file__, str(theirs.fileno())], os.environ)
    return ours


def serve(requests: socket.socket) -> None:
    """Run the requested commands one after the other.

    Returns in each child after its command, and in this process when the test's process has exited.
    """
    for name in _IMPORTED:
        importlib.import_module(name)
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            return
        name, arguments, timeout_s = json.loads(request)
        module = importlib.import_module(name)
        child = os.fork()
        if child == 0:
            requests.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            signal.alarm(timeout_s)
            sys.argv = [str(module.__file__), *arguments]
            module.entry()
            return
        for file in files:
            os.close(file)
        requests.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
