"""Programs that a server forks (`support/preloaded.py`) see the same as programs that are executed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import preloaded
from support.preloaded import PreloadedPopen
from support.worker import Worker

pytestmark = pytest.mark.integration

PROBE = """
import json, os, signal, sys, threading

def show():
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD)
    return {
        "arguments": sys.argv[1:],
        "command": sys.orig_argv,
        "directory": os.getcwd(),
        "environment": dict(os.environ),
        "files": {number: os.readlink(f"/proc/self/fd/{number}") for number in range(3, 64) if is_open(number)},
        "input": sys.stdin.read(),
        "module": __name__,
        "main": sys.modules["__main__"].show is show,
        "parent": os.getppid(),
        "path": sys.path,
        "process group": os.getpgid(0) == os.getpid() or os.getpgid(0),
        "session": os.getsid(0) == os.getpid() or os.getsid(0),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "signals": [str(signal.getsignal(number)) for number in signals],
        "threads": threading.active_count(),
    }

def is_open(number):
    return os.path.exists(f"/proc/self/fd/{number}")

print(json.dumps(show()))
print("an error", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def probe(tmp_path: Path) -> list[str]:
    """The command of a program that shows its surroundings."""
    (tmp_path / "headrace_probe.py").write_text(PROBE)
    return [sys.executable, "-m", "headrace_probe", "word", "two words", ""]


def shown(kind: Any, command: list[str], **options: Any) -> dict[str, Any]:
    """Run the program, and return what it has shown."""
    pipe = subprocess.PIPE
    options.setdefault("env", dict(os.environ))  # without the variables that the readline library has set
    with kind(command, stdin=pipe, stdout=pipe, stderr=pipe, **options) as process:
        output, errors = process.communicate(b"some input", 60)
    assert (process.returncode, errors) == (3, b"an error\n")
    found = json.loads(output)
    del found["environment"]["PYTEST_CURRENT_TEST"]
    return dict(found)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start_new_session": True},
        {"process_group": 0},
        {"env": {**os.environ, "PYTEST_CURRENT_TEST": "", "AWS_REGION": "a region"}},
    ],
    ids=lambda options: next(iter(options), "no options"),
)
def test_forked_program_sees_the_same_as_an_executed_program(
    probe: list[str], tmp_path: Path, options: dict[str, Any]
) -> None:
    with open(tmp_path / "file", "w") as file:
        os.dup2(file.fileno(), 50)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            executed, forked = (
                shown(kind, probe, cwd=tmp_path, pass_fds=[file.fileno(), 50], **options)
                for kind in (subprocess.Popen, PreloadedPopen)
            )
        finally:
            signal.signal(signal.SIGHUP, ignored)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(50)
    assert forked == executed
    assert forked["parent"] == os.getpid()


def test_program_is_executed_if_python_would_read_its_environment_at_the_start(
    probe: list[str], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
    assert environment["PYTHONPATH"] in shown(PreloadedPopen, probe, cwd=tmp_path, env=environment)["path"]


def test_killed_program_has_the_status_of_its_signal(tmp_path: Path) -> None:
    (tmp_path / "headrace_wait.py").write_text("print(flush=True)\ninput()\n")
    command = [sys.executable, "-m", "headrace_wait"]
    with PreloadedPopen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.poll() is None
        assert psutil.Process(process.pid).cmdline()[:3] == command
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_server_is_started_again_after_it_was_killed(probe: list[str], tmp_path: Path) -> None:
    shown(PreloadedPopen, probe, cwd=tmp_path)
    [server] = [each for each in psutil.Process().children() if preloaded.__file__ in each.cmdline()]
    server.kill()
    server.wait(60)
    shown(PreloadedPopen, probe, cwd=tmp_path)


def test_programs_of_a_forked_worker_are_forks_and_children_of_the_worker(tmp_path: Path) -> None:
    with Worker(tmp_path) as worker:
        worker.request("PUT", "/connector-plugins/FileStreamSource/config/validate", {"topic": "t"})
        children = {child.cmdline()[2]: child for child in psutil.Process(worker.pid).children()}
        assert {"headrace.cli.broker_child", "headrace.runtime.fork_server"} < set(children)
        assert {os.getpgid(child.pid) for child in children.values()} == {worker.pid}
        server = children.pop("support.preloaded")
        worker.kill_group()
        psutil.wait_procs([server, *children.values()], 60)
        assert not any(child.is_running() for child in children.values())
