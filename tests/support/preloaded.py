"""Starts headrace's programs as forks of a process that has imported their modules, to save the time of the imports.

    process = PreloadedPopen([sys.executable, "-m", "headrace_broker.server", "--property", ...], stdout=log)

`PreloadedPopen` is a `subprocess.Popen` that forks if the command is `python -m MODULE` with a module of headrace. The
program cannot see a difference: it is a child of the process that starts it, runs as `__main__`, and has the arguments,
environment, directory, open files, signals, session and process group that it would have otherwise. The programs that a
worker or a cluster starts are forks too.

A test has the marker `cold_start` if it proves something about imports, memory, the process tree or the time of a
start. Then all programs are executed, and also if the test has the marker `timed`.

The process that forks (the server) is single-threaded and runs no event loop. It forks twice, and the first child
exits. The kernel then makes the second child a child of the next sub-reaper: of the process that starts the program.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

is_enabled = False
"""`tests/conftest.py` changes it for each test. Benchmarks execute all programs."""

_IMPORTED = (
    "headrace_broker.server.node",
    "headrace.cli.embedded_broker",
    "headrace.herder.distributed",
    "headrace.herder.standalone",
    "headrace.plugins.plugin_sections",
    "headrace.rest.server",
    "headrace.runtime.preload",
    "headrace.runtime.warm_up",
    "headrace.runtime.worker",
)
"""Modules that the programs import, in addition to those that a task process needs (`headrace.runtime.preload`)."""
_STARTS_PROGRAMS = ("headrace.cli.connect_distributed", "headrace.cli.connect_standalone", "headrace.cli.main")
_READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "TZ", "LANG", "LC_", "OPENSSL_", "SSL_")
"""The first letters of the variables that Python and its libraries may read only when a process starts."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_COMMAND_BYTES_MAX = 4096
"""The system shows at most this much of a command line."""
_REQUEST_BYTES_MAX, _FILES_MAX = 1 << 18, 64
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 1, 36, 37
_libc = ctypes.CDLL(None)
_EXECUTE_CHILD = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class PreloadedPopen(subprocess.Popen[bytes]):
    """A `subprocess.Popen` that lets a server fork headrace's programs."""

    def _execute_child(self, *arguments: Any) -> None:
        given = _EXECUTE_CHILD.bind(self, *arguments).arguments
        pid = _fork(given) if is_enabled and _is_program(given["args"]) else None
        if pid is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in _PIPES))  # type: ignore[attr-defined]


def _is_program(command: Sequence[str]) -> bool:
    return list(command[:2]) == [sys.executable, "-m"] and command[2].startswith("headrace")


def _fork(given: Mapping[str, Any]) -> int | None:
    """Start a program with these arguments of `_execute_child`. Return None if no server can fork it."""
    ends = given["p2cread"], given["c2pwrite"], given["errwrite"]
    files = [number if end < 0 else end for number, end in enumerate(ends)] + list(given["pass_fds"])
    request = {
        "command": [os.fspath(word) for word in given["args"]],
        "environment": dict(os.environ if given["env"] is None else given["env"]),
        "directory": os.path.abspath(given["cwd"] or os.getcwd()),
        "descriptors": [0, 1, 2, *given["pass_fds"]],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "ignored": [int(number) for number in _SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        "new_session": given["start_new_session"],
        "process_group": given["process_group"],
    }
    for _ in range(2):
        try:
            return (_own_server or _test_server()).fork(request, files)
        except ConnectionError:  # something has ended the server, for example a test of orphaned processes
            if _own_server is not None:
                return None
            _test_server().close()
            _test_server.cache_clear()
    return None


class _Server:
    """The connection to a server, which has the environment of this process."""

    def __init__(self, requests: socket.socket) -> None:
        self._environment = dict(os.environ)
        self._requests = requests
        self._lock = threading.Lock()

    def fork(self, request: Mapping[str, Any], files: Sequence[int]) -> int | None:
        """Return the pid of the new process, or None if it needs an environment that a fork cannot have.

        Raises ConnectionError if the server has exited.
        """
        needed: dict[str, str] = request["environment"]
        changed = [name for name in needed | self._environment if needed.get(name) != self._environment.get(name)]
        if any(name.startswith(_READ_AT_START) for name in changed):
            return None
        with self._lock, _sub_reaper():
            socket.send_fds(self._requests, [json.dumps(request).encode()], files)
            pid = self._requests.recv(16)
        if not pid:
            raise ConnectionResetError("the server has exited")
        return int(pid)

    def close(self) -> None:
        """Close the connection. The server then exits."""
        self._requests.close()


_own_server: _Server | None = None
"""In a fork: the server of the programs that this program starts."""


@functools.cache
def _test_server() -> _Server:
    """Start the server of a test's process. It exits when the test's process exits."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        command = [sys.executable, __file__, str(theirs.fileno()), "".ljust(_COMMAND_BYTES_MAX)]
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
        os.posix_spawn(sys.executable, command, os.environ, file_actions=null)
    return _Server(ours)


@contextmanager
def _sub_reaper() -> Iterator[None]:
    """Let the kernel make orphans below this process its children until the block ends."""
    before = ctypes.c_int()
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


# -- the server and its forks ----------------------------------------------------------------------------------------


def main() -> None:
    """Run the server. Each fork returns from `serve` and runs its program."""
    del sys.path[0]  # the directory of this file
    path = list(sys.path)
    for name in _IMPORTED:
        importlib.import_module(name)
    for name in importlib.import_module("headrace.runtime.preload")._MODULES:
        importlib.import_module(name)
    importlib.import_module("headrace_broker.client.codecs").compile_codecs()
    assert threading.active_count() == 1
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request["command"][2] in _STARTS_PROGRAMS:
        request = _fork_own_server() or request
    module = request["command"][2]
    sys.path[:] = [request["directory"], *path]
    sys.argv = request["command"][2:]
    sys.modules.pop(module, None)  # `run_module` would warn that the module is imported before it runs
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork the requested programs until the other end of the socket is closed. Returns the request in each fork."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    while True:
        packet, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, _FILES_MAX)
        if not packet:
            os._exit(0)
        reparented, first_child = os.pipe()
        pid = os.fork()
        if pid == 0:
            if os.fork() != 0:
                os._exit(0)
            os.close(first_child)
            os.read(reparented, 1)
            requests.send(b"%d" % os.getpid())
            requests.detach()
            request: dict[str, Any] = json.loads(packet)
            _prepare(request, files)
            return request
        os.waitpid(pid, 0)
        for file in (reparented, first_child, *files):
            os.close(file)


def _fork_own_server() -> dict[str, Any] | None:
    """Fork the server of the programs that this program starts. Returns the request in each of its forks."""
    global _own_server, is_enabled
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        ours.detach()
        _move_files([null, null, null, theirs.detach()], [0, 1, 2, 3])
        _show_command([sys.executable, "-m", "support.preloaded"])
        return serve(socket.socket(fileno=3))
    theirs.close()
    is_enabled, _own_server = True, _Server(ours)
    subprocess.Popen = PreloadedPopen  # type: ignore[misc]
    return None


def _prepare(request: Mapping[str, Any], files: list[int]) -> None:
    """Give this fork what the program would have if it was executed."""
    if request["new_session"]:
        os.setsid()
    if request["process_group"] >= 0:
        os.setpgid(0, request["process_group"])
    _move_files(files, request["descriptors"])
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    importlib.invalidate_caches()
    for number in _SIGNALS:
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else default)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    sys.orig_argv = request["command"]
    _show_command(request["command"])


def _move_files(files: Sequence[int], descriptors: Sequence[int]) -> None:
    """Give these files the descriptors, and close all others."""
    first = max(*files, *descriptors) + 1
    for number, file in enumerate(files):
        os.dup2(file, first + number)
    os.closerange(3, first)
    for number, descriptor in enumerate(descriptors):
        os.dup2(first + number, descriptor)
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _show_command(command: Sequence[str]) -> None:
    """Replace the command line that the system shows for this process. It keeps its length: empty words follow."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    words = "\0".join(command).encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, words, len(words))


if __name__ == "__main__":
    main()
