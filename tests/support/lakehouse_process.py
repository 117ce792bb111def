"""Runs a lakehouse sink task in a child process, for tests that kill or stop processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import psutil

from support import lakehouse_task
from support.broker import BrokerProcess
from support.spark import SHORT_RUN_PROPS

EXIT_S = 60.0
"""The processes exit within a second, except on a busy machine. Other tests run at the same time."""


class TaskProcess:
    """A lakehouse sink task in a child process."""

    def __init__(
        self,
        broker: BrokerProcess,
        topics: Iterable[str],
        props: Mapping[str, str],
        hold: Path | None = None,
        topics_regex: str | None = None,
    ) -> None:
        """With `hold`, the commits of tables wait: see `lakehouse_task`."""
        arguments = {
            "address": broker.address,
            "topics": list(topics),
            "topics_regex": topics_regex,
            "hold": None if hold is None else str(hold),
            "props": {"lakehouse.trigger.interval.ms": "100", **SHORT_RUN_PROPS, **props},
        }
        self._process = subprocess.Popen(
            [sys.executable, lakehouse_task.__file__, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.lines.append(line.decode(errors="replace").rstrip())

    def offsets(self) -> dict[str, int]:
        """Return the offsets in the task's last report."""
        reported = [line for line in self.lines if line.startswith("reported ")]
        return json.loads(reported[-1].removeprefix("reported ")) if reported else {}

    def commits(self) -> int:
        """Return the number of committed batches."""
        return sum("Committed batch" in line for line in self.lines)

    def holds(self, table: str) -> bool:
        """Return whether the commit of a table waits."""
        return f"holding {table}" in self.lines

    def send_signal(self, number: int) -> None:
        """Send a signal to the task's process."""
        self._process.send_signal(number)

    def error(self, timeout_s: float = EXIT_S) -> str:
        """Wait until the task's process fails, and return its last lines."""
        assert self._process.wait(timeout_s) != 0
        self._reader.join(30)
        self.close()
        return "\n".join(self.lines[-40:])

    def close(self) -> None:
        """Close the pipe of a process that has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def is_running(self) -> bool:
        """Return whether the task's process runs."""
        return self._process.poll() is None

    def python_workers(self) -> list[psutil.Process]:
        """Return Spark's Python workers on this machine, which are the children of Spark's daemons."""
        found = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = process.parent()
                if "worker_daemon" in " ".join(process.cmdline()) and parent is not None and parent.name() != "java":
                    found.append(process)
        return found

    def until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait until `condition` returns true. Fail if the task ends earlier."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, "\n".join(self.lines[-40:])
            assert time.monotonic() < deadline, "\n".join(self.lines[-40:])
            time.sleep(0.05)

    def send_command(self, word: str) -> None:
        """Send a command and wait until the task has executed it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        deadline = time.monotonic() + 20
        while f"executed {word}" not in self.lines and self._process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self, timeout_s: float) -> None:
        """Stop the task. Assert that its process exits within `timeout_s`, and all child processes soon after."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        self.send_command("stop")
        assert self._process.wait(timeout_s) == 0, "\n".join(self.lines[-40:])
        assert_exited(children)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill_jvm(self) -> None:
        """Kill Spark's JVM with SIGKILL.

        Assert that the task fails within 20 s, that the error names the cause, and that all child processes exit soon.
        """
        children = psutil.Process(self._process.pid).children(recursive=True)
        jvms = [process for process in children if process.name() == "java"]
        assert len(jvms) == 1, (children, self.lines[-40:])
        jvms[0].kill()
        assert self._process.wait(30) != 0
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(30)
        assert any("ConnectError: Spark's JVM was killed by SIGKILL" in line for line in self.lines), self.lines[-40:]
        assert_exited(children)

    def kill(self) -> None:
        """Kill only the task's process with SIGKILL. Assert that all its child processes exit soon."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.poll() is None, "\n".join(self.lines[-40:])
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait(30)
        assert_exited(children)


def assert_exited(processes: list[psutil.Process]) -> None:
    """Assert that `processes` exit soon. Zombies count as exited."""
    deadline = time.monotonic() + EXIT_S
    while alive := [process for process in processes if is_alive(process)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
