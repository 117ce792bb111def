"""Tests of the fork server while it is idle: it runs its warm-up, so that later task processes use less memory."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime import warm_up
from headrace.runtime.processes import Processes
from support.warm_up_log import WarmUpLog

IDLE_S = 4


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_fork_server_warms_up_after_its_idle_seconds_although_children_exit_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the end of a child restarted the idle seconds, all of them would pass between the last end and the warm-up."""
    log = WarmUpLog(tmp_path, monkeypatch, IDLE_S)

    async def ignore(message: Any) -> None:
        return None

    processes, ends_s = Processes(), []
    try:
        hosts = [await processes.spawn("task", ignore) for _ in range(6)]
        for host in hosts:
            os.kill(host.pid, signal.SIGKILL)
            assert await asyncio.wait_for(host.ended, 30) == -signal.SIGKILL
            ends_s.append(time.monotonic())
            await asyncio.sleep(IDLE_S / 4)
        async with asyncio.timeout(60):
            while len(log.steps_s()) < warm_up.STEPS:  # noqa: ASYNC110 - the other process writes a file
                await asyncio.sleep(0.05)
    finally:
        await processes.close()
    began_s = log.steps_s()[0]
    last_end_s = max((end_s for end_s in ends_s if end_s < began_s), default=began_s)
    assert began_s - last_end_s < IDLE_S
