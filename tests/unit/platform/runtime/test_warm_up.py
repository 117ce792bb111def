"""Tests of the warm-up: the fork server itself runs tasks before it forks, so that the forked tasks use less memory."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.runtime import warm_up
from headrace.runtime.code_copies import CodeCopies
from headrace.runtime.processes import Processes
from headrace.runtime.warm_up_broker import WarmUpBroker
from headrace_broker.protocol.notation import Response
from support.warm_up_log import WarmUpLog, customize_fork_servers

_TIMES_OUT = """
from headrace.runtime import warm_up
warm_up.TIMEOUT_S = 0
"""
_TASK_FAILS = """
from headrace.runtime import warm_up
warm_up.WarmUpSourceTask.start = None
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_each_warm_up_step_produces_a_record_and_commits_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []
    respond = WarmUpBroker.respond

    def record_request(broker: WarmUpBroker, request: Any) -> Response:
        requests.append(type(request).__name__)
        return respond(broker, request)

    monkeypatch.setattr(WarmUpBroker, "respond", record_request)
    for _ in warm_up.steps(CodeCopies(), 2):
        pass
    assert requests.count("ProduceRequest") == 2
    assert requests.count("OffsetCommitRequest") >= 2
    assert requests.count("LeaveGroupRequest") == 2


def test_warm_up_leaves_no_thread_and_no_child_process_and_keeps_logging_enabled() -> None:
    program = (
        "import threading, os; from headrace.runtime import code_copies, warm_up;"
        "list(warm_up.steps(code_copies.CodeCopies(), 2));"
        "from headrace.metrics import logs; assert logs._process_context == '', logs._process_context;"
        "assert threading.active_count() == 1, threading.enumerate();"
        "assert os.listdir('/proc/self/task') == [str(os.getpid())], os.listdir('/proc/self/task')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert logging.root.manager.disable == logging.NOTSET


def test_function_fill_memory_pools_leaves_no_free_blocks_in_the_pools() -> None:
    program = (
        "from headrace.runtime import preload; kept = [bytes(100) for _ in range(10_000)];"
        "freed = set(map(id, kept[::7])); del kept[::7]; filled = preload.fill_memory_pools();"
        "new = [bytes(100) for _ in range(50)]; assert not freed & set(map(id, new)); assert len(filled) < 100_000"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    ("failure", "error"),
    [(_TIMES_OUT, "TimeoutError"), (_TASK_FAILS, "WarmUpError")],
    ids=["timeout", "failed task"],
)
@pytest.mark.anyio
async def test_fork_server_restarts_after_a_failed_warm_up_and_keeps_its_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], failure: str, error: str
) -> None:
    customize_fork_servers(tmp_path, failure, monkeypatch)

    async def ignore(message: Any) -> None:
        return None

    processes = Processes()
    try:
        hosts = [await processes.spawn("task", ignore) for _ in range(9)]  # the eighth request starts the warm-up
        server = processes.fork_server_pid
        assert {psutil.Process(host.pid).ppid() for host in hosts} == {server}
        hosts[0].kill()
        assert await asyncio.wait_for(hosts[0].ended, 30) == -signal.SIGKILL
    finally:
        await processes.close()
    assert capfd.readouterr().err.count(f"the warm-up of tasks failed ({error}") == 1


@pytest.mark.anyio
async def test_fork_server_warms_up_after_the_eighth_child_and_keeps_its_child_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WarmUpLog(tmp_path, monkeypatch, idle_s=3600)

    async def ignore(message: Any) -> None:
        return None

    processes = Processes()
    try:
        hosts = [await processes.spawn("task", ignore) for _ in range(7)]
        assert log.steps_s() == [], "the warm-up delayed the first children"
        hosts += [await processes.spawn("task", ignore) for _ in range(2)]  # the ninth waits for the warm-up
        assert len(log.steps_s()) == warm_up.STEPS
        assert {psutil.Process(host.pid).ppid() for host in hosts} == {processes.fork_server_pid}
        hosts[0].kill()
        assert await asyncio.wait_for(hosts[0].ended, 30) == -signal.SIGKILL
    finally:
        await processes.close()
