"""The embedded broker of a standalone worker: a child process that listens on a free loopback port.

Ctrl-C and SIGTERM are sent to the whole process group. The broker ignores them, so that tasks can still commit their
offsets to the broker. It shuts down cleanly when the worker closes its end of a pipe, and is killed immediately when
the worker dies.
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


class EmbeddedBrokerError(Exception):
    """The embedded broker did not start. The message says what to do."""


class EmbeddedBroker:
    """The embedded broker's process. Call `launch` first, then `address`, and `stop` at the end."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "broker"
        self._process: subprocess.Popen[bytes] | None = None
        self._keep_alive = -1  # the broker shuts down when this end of the pipe is closed
        self._ready = -1
        self._alive = -1  # becomes readable (end of file) when the broker has exited

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Start the process without waiting until it serves requests."""
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
        for child_end in (watch, ready, alive):
            os.close(child_end)

    async def address(self) -> str:
        """Wait until the broker serves requests; return its `host:port`. Raises EmbeddedBrokerError."""
        try:
            line = await asyncio.wait_for(asyncio.to_thread(_read_line, self._ready), START_TIMEOUT_S)
        except TimeoutError:
            raise EmbeddedBrokerError(
                f"The embedded broker did not start within {START_TIMEOUT_S:.0f} s: see the log above, or set "
                "bootstrap.servers to use another cluster"
            ) from None
        if not line:
            raise EmbeddedBrokerError(
                "The embedded broker failed to start (the log above contains the reason). "
                "Set bootstrap.servers to use another cluster, or headrace.data.dir to use another directory."
            )
        return line

    async def wait(self) -> int:
        """Wait until the broker's process exits; return its exit status."""
        assert self._process is not None
        loop, exited = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._alive, exited.set)
        try:
            await exited.wait()
        finally:
            loop.remove_reader(self._alive)
        return self._process.wait()

    def stop(self) -> None:
        """Shut down the broker cleanly. After a timeout, kill it."""
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
