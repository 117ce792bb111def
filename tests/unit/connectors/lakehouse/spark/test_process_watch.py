"""Tests that `exit_with_process` kills its own process when the watched process dies, even if C code blocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

CODE = """
import sys, time
from headrace_connectors.lakehouse.spark.process_watch import exit_with_process
exit_with_process(int(sys.argv[1]))
exit_with_process(int(sys.argv[1]))
print("watching", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_process_is_killed_when_the_watched_process_dies() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as watched:
        watcher = subprocess.Popen([sys.executable, "-c", CODE, str(watched.pid)], stdout=subprocess.PIPE)
        with watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline() == b"watching\n"
            watched.kill()
            assert watcher.wait(30) == -signal.SIGKILL


GROUP_CODE = """
import os, signal, sys, time
from headrace_connectors.lakehouse.spark.process_watch import exit_with_process
os.setpgid(0, 0)
exit_with_process(int(sys.argv[1]))
if os.fork() == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_forked_workers_are_killed_with_the_leader_of_their_group() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as watched:
        daemon = subprocess.Popen([sys.executable, "-c", GROUP_CODE, str(watched.pid)], stdout=subprocess.PIPE)
        with daemon:
            assert daemon.stdout is not None
            worker = psutil.Process(int(daemon.stdout.readline()))
            watched.kill()
            assert daemon.wait(30) == -signal.SIGKILL
            assert psutil.wait_procs([worker], 30)[1] == []
