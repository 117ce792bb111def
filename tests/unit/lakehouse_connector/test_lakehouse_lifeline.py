"""A process that watches another dies with it, even while it waits in C code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

CODE = """
import sys, time
from headrace_connectors.lakehouse.lifeline import die_with
die_with(int(sys.argv[1]))
die_with(int(sys.argv[1]))
print("watching", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_the_watcher_dies_with_the_watched() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as watched:
        watcher = subprocess.Popen([sys.executable, "-c", CODE, str(watched.pid)], stdout=subprocess.PIPE)
        with watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == b"watching\n"
            watched.kill()
            assert watcher.wait(10) == -signal.SIGKILL
