"""Tests of the fork server while it is idle: it runs its warm-up, so that later task processes use less memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime import warm_up
from headrace.runtime.processes import Processes
from support.warm_up_log import WarmUpLog


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.timed
@pytest.mark.anyio
async def test_fork_server_warms_up_after_three_idle_seconds_although_children_exit_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = WarmUpLog(tmp_path, monkeypatch)

    async def ignore(message: Any) -> None:
        return None

    processes = Processes()
    try:
        hosts = [await processes.spawn("task", ignore) for _ in range(5)]
        assert log.count() == 0, "the warm-up started before the fork server was idle"
        for host in hosts:
            os.kill(host.pid, signal.SIGKILL)
            assert await asyncio.wait_for(host.ended, 30) == -signal.SIGKILL
            await asyncio.sleep(1)  # less than the idle seconds before the warm-up
        assert log.count() == warm_up.STEPS
    finally:
        await processes.close()
