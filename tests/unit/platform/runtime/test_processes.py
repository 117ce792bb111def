"""Tests that a child process that fails to start, or exits immediately, does not affect other processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.runtime.fork_server import ForkServer
from headrace.runtime.processes import SPAWNS_MAX, ForkServerDied, HostProcess, Processes

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def control() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the worker's end and the fork server's end of the control socket."""
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
    """Receive all spawn requests from the fork server's socket `server`. Return the numbers of the requests.

    Each request contains the file descriptor of a channel. Close these file descriptors.
    """
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


async def test_spawn_succeeds_even_if_the_child_process_exits_immediately(control: Any) -> None:
    """The future `ended` of the returned `HostProcess` object contains the exit status."""
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
    assert await asyncio.wait_for(host.ended, 30) == 3
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


@pytest.mark.parametrize("by_worker", [False, True])
async def test_process_counts_as_killed_only_if_the_signal_does_not_come_from_the_worker(by_worker: bool) -> None:
    processes = Processes()
    host = await processes.spawn("task-0", _handler)
    assert host.pid is not None
    if by_worker:
        host.kill()
    else:
        os.kill(host.pid, signal.SIGKILL)
    assert await host.ended == -signal.SIGKILL
    assert host.was_killed is not by_worker
    await processes.close()


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


async def test_closing_the_processes_object_succeeds_after_the_fork_server_failed_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control socket is already closed, so close() must not use its file descriptor."""
    processes = Processes()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ChildProcessError, match="the fork server did not start"):
        await processes.spawn("task-0", _handler)
    await processes.close()


async def test_closing_an_instance_of_class_processes_succeeds_if_no_fork_server_was_started() -> None:
    await Processes().close()


async def test_closing_ends_the_waits_of_spawn_and_share_immediately(control: Any) -> None:
    """A REST request that validates a connector may wait in spawn or share.

    If closing did not end the wait, a worker that stops would respond to the request up to a minute late.
    """
    worker, _server = control
    processes = _processes(worker)
    asyncio.get_running_loop().add_reader(worker.fileno(), processes._receive)
    spawning = asyncio.ensure_future(processes.spawn("task-0", _handler))
    sharing = asyncio.ensure_future(processes.share(["module"]))
    waits: list[asyncio.Future[Any]] = [spawning, sharing]
    assert not (await asyncio.wait(waits, timeout=0.01))[0]
    async with asyncio.timeout(30):
        await processes.close()
        with pytest.raises(ChildProcessError, match="the worker is stopping"):
            await spawning
        await sharing
        with pytest.raises(ChildProcessError, match="the worker is stopping"):
            await processes.spawn("task-1", _handler)


async def test_each_shared_module_is_sent_to_the_fork_server_once(control: Any) -> None:
    worker, server = control
    processes = _processes(worker)

    async def sent(*modules: str) -> list[str]:
        found: list[str] = []
        sharing = asyncio.ensure_future(processes.share(modules))
        while not sharing.done():
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                found.append(json.loads(server.recv(4096))["share"])
                server.send(json.dumps({"shared": found[-1]}).encode())
                processes._receive()
        assert sharing.result() is bool(found)
        return found

    assert await sent("one", "two") == ["one", "two"]
    assert await sent("two", "one") == []
    assert await sent("two", "three") == ["three"]


async def test_shared_module_with_a_very_long_name_is_not_sent_to_the_fork_server(
    control: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker, server = control
    processes = _processes(worker)
    await processes.share(["x" * 5_000])
    with pytest.raises(BlockingIOError):
        server.recv(4096)
    assert f"Module {'x' * 50}... of shared_modules is not shared" in caplog.text


def _wait_until_exists(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@contextlib.asynccontextmanager
async def _running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> AsyncIterator[Processes]:
    """Yield a `Processes` object whose fork server can import `modules`, a mapping of names to source code."""
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.pathsep.join(sys.path)}")
    processes = Processes()
    (await processes.spawn("first", _handler)).kill()
    try:
        yield processes
    finally:
        await processes.close()


async def test_fork_server_imports_only_modules_that_another_process_has_imported_without_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = f"import os; open({str(tmp_path / 'log')!r}, 'a').write(f'{{__name__}} {{os.getpid()}} ')\n"
    modules = {
        "shared_sound": log,
        "shared_broken": log + "raise SystemExit(1)",
        "shared_killed": log + "os.kill(os.getpid(), 9)",
        "shared_busy": log + "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    }
    async with _running(tmp_path, monkeypatch, **modules) as processes:
        assert await processes.share(modules)
        importers = (tmp_path / "log").read_text().split()
        server = str(processes.fork_server_pid)
    assert set(importers[::2]) == set(modules)
    assert [name for name, pid in zip(importers[::2], importers[1::2], strict=True) if pid == server] == [
        "shared_sound"
    ]
    assert "Module shared_busy starts a thread when imported" in capfd.readouterr().err


async def test_fork_server_starts_processes_while_the_import_of_a_shared_module_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _running(tmp_path, monkeypatch, shared_hung="import time; time.sleep(1000)") as processes:
        sharing = asyncio.ensure_future(processes.share(["shared_hung"]))
        await asyncio.sleep(0)
        host = await asyncio.wait_for(processes.spawn("task-0", _handler), 20)
        assert not host.ended.done()
        sharing.cancel()


async def test_fork_server_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared module hangs only in the second process that imports it, which is the fork server."""
    monkeypatch.setattr("headrace.runtime.processes.SPAWN_TIMEOUT_S", 1.0)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    source = (
        f"import os, time\ntry: os.mkdir({first!r})\nexcept OSError:\n    os.mkdir({second!r})\n    time.sleep(1000)"
    )
    async with _running(tmp_path, monkeypatch, shared_twice=source) as processes:
        task = await processes.spawn("task-0", _handler)
        sharing = asyncio.ensure_future(processes.share(["shared_twice"]))
        await asyncio.to_thread(_wait_until_exists, Path(second))
        before = processes.fork_server_pid
        with pytest.raises(ForkServerDied):
            await processes.spawn("task-1", _handler)
        assert await asyncio.wait_for(task.ended, 30) == -9
        assert task.died_with_fork_server
        await sharing
        assert not (await processes.spawn("task-1", _handler)).ended.done()
        assert processes.fork_server_pid != before
        assert not await processes.share(["shared_twice"])


async def test_closing_the_processes_object_kills_a_fork_server_that_does_not_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runtime.processes.EXIT_TIMEOUT_S", 0.1)
    async with _running(tmp_path, monkeypatch) as processes:
        server = processes.fork_server_pid
        assert server is not None
        os.kill(server, signal.SIGSTOP)
    assert not psutil.pid_exists(server)


async def test_fork_server_is_restarted_after_a_backoff_if_it_dies_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runtime.processes.RESTART_BACKOFF_MIN_S", 0.3)
    async with _running(tmp_path, monkeypatch) as processes:
        pids = [processes.fork_server_pid]
        for _ in range(2):
            assert pids[-1] is not None
            host = await processes.spawn("task-0", _handler)
            started = time.monotonic()
            os.kill(pids[-1], signal.SIGKILL)
            await host.ended
            assert host.died_with_fork_server
            await processes.spawn("task-0", _handler)
            pids.append(processes.fork_server_pid)
        assert time.monotonic() - started >= 0.3
        assert len(set(pids)) == 3
