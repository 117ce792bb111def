"""Functions that tests run on Spark's executors. The executors import this module: see `WORK_ENVIRONMENT`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

WORK_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[1])}
"""The environment with which executors find this module."""


def square(task: int) -> bytes:
    """Return the square of the task's number."""
    return str(task * task).encode()


def fail(task: int) -> bytes:
    """Raise an error with a message of two lines."""
    raise ValueError(f"topic t, task {task}:\nthe second line")


def die(task: int) -> bytes:
    """Kill the Python worker."""
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


class Wait:
    """Creates a file with the task's number and waits until `release` exists. Returns the pid of the executor."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, task: int) -> bytes:
        (self.directory / str(task)).touch()
        while not (self.directory / "release").exists():
            time.sleep(0.02)
        return str(task).encode()

    def has_started(self, task: int) -> bool:
        """Whether the task has started at least once."""
        return (self.directory / str(task)).exists()

    def release(self) -> None:
        """Let all tasks return."""
        (self.directory / "release").touch()


def headrace_path(task: int) -> bytes:
    """Return the path of the module of headrace that the executor has imported."""
    import headrace

    return str(headrace.__file__).encode()
