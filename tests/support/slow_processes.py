"""Slows down the brokers, workers and tools that tests start, to find the tests whose results depend on speed.

    SLOW_PROCESSES=1 make test

For each pytest process, a helper process alternately stops headrace's processes below it (SIGSTOP) for 0.1 s and lets
them run (SIGCONT) for 0.1 s. It resumes them before it exits, even if the pytest process was killed. It does not touch
a process that a test has stopped: the function that replaces `os.kill` sends SIGSTOP only while all processes
run, and the helper skips processes that it finds stopped.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from support.processes import command_line

_STOPPED_S = 0.1
_RUNNING_S = 0.1
_PROGRAMS = ("headrace", "kafka-", "connect-")
"""How the names of headrace's scripts and of its modules (`python -m headrace_broker.server`) start."""


@contextmanager
def slow_processes() -> Iterator[None]:
    """Slow down headrace's processes below the current process until the block ends."""
    with tempfile.NamedTemporaryFile() as lock:
        command = [sys.executable, __file__, str(os.getpid()), lock.name]
        path = {"PYTHONPATH": str(Path(__file__).parents[1])}
        helper = subprocess.Popen(command, env={**os.environ, **path}, stdin=subprocess.DEVNULL)
        kill = os.kill

        def kill_while_all_run(pid: int, number: int, /) -> None:
            if number == signal.SIGSTOP:
                with _locked(lock.name):
                    kill(pid, number)
            else:
                kill(pid, number)

        os.kill = kill_while_all_run
        try:
            yield
        finally:
            os.kill = kill
            helper.terminate()
            helper.wait()


@contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_ours(process: psutil.Process) -> bool:
    words = command_line(process)[:4]
    return any(Path(word).name.startswith(_PROGRAMS) or "from headrace" in word for word in words)


def _suspend(root: psutil.Process, suspended: list[psutil.Process]) -> None:
    """Stop headrace's running processes below `root`, and add each of them to `suspended` first."""
    for process in root.children(recursive=True):
        try:
            if process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE) and _is_ours(process):
                suspended.append(process)
                process.suspend()
        except psutil.NoSuchProcess:
            continue


def _resume(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.resume()
        except psutil.NoSuchProcess:
            continue


def main(pid: int, lock: str) -> None:
    """Slow down headrace's processes below the process `pid` until this process exits or SIGTERM arrives."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C; pytest then sends SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    root = psutil.Process(pid)
    while os.getppid() == pid:
        with _locked(lock):
            suspended: list[psutil.Process] = []
            try:
                _suspend(root, suspended)
                time.sleep(_STOPPED_S)
            finally:
                _resume(suspended)
        time.sleep(_RUNNING_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
