"""Tests that a child process that fails to start, or exits immediately, does not affect other processes."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.fork_server import ForkServer
from headrace.runtime.processes import SPAWNS_MAX, HostProcess, Processes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def control() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The worker's end and the fork server's end of the control socket."""
    worker, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with worker, server:
        worker.setblocking(False)
        server.setblocking(False)
        yield worker, server


async def _handler(message: Any) -> Any:
    raise AssertionError(message)


def _processes(control: socket.socket) -> Processes:
    processes = Processes()
    processes._control = control
    processes._ready = asyncio.get_running_loop().create_future()
    processes._ready.set_result(None)
    return processes


def _requests(server: socket.socket) -> list[int]:
    """Receive all spawn requests, close their channels and return the request numbers."""
    numbers: list[int] = []
    while True:
        try:
            packet, descriptors, _, _ = socket.recv_fds(server, 4096, 1)
        except BlockingIOError:
            return numbers
        os.close(descriptors[0])
        numbers.append(json.loads(packet)["spawn"])


async def test_spawn_fails_with_the_reason_if_the_fork_server_cannot_fork(
    control: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, server = control

    def no_fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", no_fork)
    processes = _processes(worker)
    spawning = asyncio.ensure_future(processes.spawn("task-0", _handler))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    ForkServer(server, os.getpid())._serve_one()
    processes._receive()
    with pytest.raises(OSError, match="cannot start a process for task-0: Resource temporarily unavailable"):
        await spawning


async def test_spawn_of_a_child_process_that_exits_immediately_returns_an_ended_host_process(control: Any) -> None:
    worker, server = control
    processes = _processes(worker)
    spawning = asyncio.ensure_future(processes.spawn("task-0", _handler))
    for _ in range(3):
        await asyncio.sleep(0)
    [number] = _requests(server)
    server.send(json.dumps({"spawned": number, "pid": 0x7FFFFFF0}).encode())
    server.send(json.dumps({"exited": 0x7FFFFFF0, "status": 3}).encode())
    processes._receive()
    host: HostProcess = await spawning
    assert await asyncio.wait_for(host.ended, 5) == 3
    await host.channel.closed.wait()


async def test_number_of_concurrent_spawn_requests_is_limited(control: Any) -> None:
    worker, server = control
    processes = _processes(worker)
    spawning = [asyncio.ensure_future(processes.spawn(f"task-{n}", _handler)) for n in range(2000)]
    requested: list[int] = []
    while len(requested) < len(spawning):
        for _ in range(3):
            await asyncio.sleep(0)
        numbers = _requests(server)
        assert 0 < len(numbers) <= SPAWNS_MAX
        requested += numbers
        for number in numbers:
            server.send(json.dumps({"failed": number, "error": "none"}).encode())
        processes._receive()
    outcomes = await asyncio.gather(*spawning, return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {"none"}


async def test_next_spawn_starts_the_fork_server_again_after_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Processes()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/bin/false")
        with pytest.raises(ChildProcessError, match=r"the fork server did not start \(exit status 1\)"):
            await processes.spawn("task-0", _handler)
    host = await processes.spawn("task-0", _handler)
    assert processes.fork_server_pid is not None
    host.kill()
    await processes.close()


async def test_close_of_processes_succeeds_after_the_fork_server_failed_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control socket is already closed, so close() must not use its file descriptor."""
    processes = Processes()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ChildProcessError, match="the fork server did not start"):
        await processes.spawn("task-0", _handler)
    await processes.close()


async def test_close_of_processes_succeeds_if_no_fork_server_was_started() -> None:
    await Processes().close()


async def test_each_shared_module_is_sent_to_the_fork_server_once(control: Any) -> None:
    worker, server = control
    processes = _processes(worker)
    assert processes.share(["one", "two"])
    assert not processes.share(["two", "one"])
    assert processes.share(["two", "three"])
    assert [json.loads(server.recv(4096)) for _ in range(3)] == [{"share": name} for name in ("one", "two", "three")]


async def test_fork_server_imports_shared_modules_and_warns_about_a_module_that_starts_a_thread(
    control: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker, server = control
    (tmp_path / "shared_sound.py").write_text("")
    (tmp_path / "shared_broken.py").write_text("raise SystemExit(1)")
    (tmp_path / "shared_busy.py").write_text(
        "import threading\nstop = threading.Event()\nthread = threading.Thread(target=stop.wait)\nthread.start()"
    )
    monkeypatch.syspath_prepend(tmp_path)
    forks = ForkServer(server, os.getpid())
    for name in ("shared_broken", "shared_busy", "shared_sound"):
        worker.send(json.dumps({"share": name}).encode())
        assert forks._serve_one()
    gc.unfreeze()
    busy = sys.modules.pop("shared_busy")
    busy.stop.set()
    busy.thread.join()
    assert sys.modules.pop("shared_sound")
    [record] = caplog.records
    assert record.getMessage().startswith("Module shared_busy starts a thread when imported")
