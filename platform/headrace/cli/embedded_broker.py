"""The broker that a standalone worker brings along: a child process on a free loopback port.

It ends cleanly when the worker closes its end of a pipe (Ctrl-C and SIGTERM, which reach the whole group, do not touch
it: tasks still commit), and at once when the worker dies.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from headrace.runtime.group_signals import withheld

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


class BrokerFailed(Exception):
    """The embedded broker did not start; the message says what to do."""


class EmbeddedBroker:
    """`launch`, then `address`; `stop` at the end."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "broker"
        self._process: subprocess.Popen[bytes] | None = None
        self._keep_alive = -1  # the broker ends when this is closed
        self._ready = -1
        self._alive = -1  # reads its end when the broker has gone

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the process, without waiting for it."""
        watch, self._keep_alive = os.pipe()
        self._ready, ready = os.pipe()
        self._alive, alive = os.pipe()
        with withheld():
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "headrace.cli.broker_child", str(os.getpid())),
                    *("--watch-fd", str(watch), "--ready-fd", str(ready)),
                    *self._properties(),
                ],
                pass_fds=[watch, ready, alive],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        for theirs in (watch, ready, alive):
            os.close(theirs)

    async def address(self) -> str:
        """`host:port`, once it serves. Raises BrokerFailed."""
        try:
            line = await asyncio.wait_for(asyncio.to_thread(_read_line, self._ready), START_TIMEOUT_S)
        except TimeoutError:
            raise BrokerFailed(f"The embedded broker did not serve within {START_TIMEOUT_S:.0f} s") from None
        if not line:
            raise BrokerFailed(
                "The embedded broker could not start (the reason stands above). "
                "Set bootstrap.servers to use another cluster, or headrace.data.dir for another directory."
            )
        return line

    async def wait(self) -> int:
        """Its exit status, when it ends."""
        assert self._process is not None
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._alive, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(self._alive)
        return self._process.wait()

    def stop(self) -> None:
        """End it cleanly; kill it when that takes too long."""
        if self._process is None:
            return
        if self._keep_alive >= 0:
            os.close(self._keep_alive)
            self._keep_alive = -1
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _properties(self) -> list[str]:
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self._directory),
            "offsets.topic.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        return [argument for key, value in properties.items() for argument in ("--property", f"{key}={value}")]


def _read_line(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as stream:
        return stream.readline().decode().strip()
