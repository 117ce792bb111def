"""Tests that no process outlives its worker: no task that hangs in C code, no descendant of a task, and no broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from support.processes import command_line
from support.worker import Worker

pytestmark = [pytest.mark.integration, pytest.mark.cold_start]

HANG_S = 40
"""The processes of a worker would exist for much longer than this if nothing ended them: they sleep for 1000 s."""

PLUGIN = """
import ctypes, os, subprocess, sys, time
from headrace.api import Config, SourceConnector, SourceTask, key

class HangConfig(Config):
    how: str = key("how", default="nothing")
    hangs_when: str = key("hangs.when", default="never")   # the task hangs when this file exists
    hanging: str = key("hanging", default="")   # the task or connector creates this file before it hangs

def hang(config):
    open(config.hanging, "w").close()
    ctypes.PyDLL(None).sleep(1000)   # keeps the GIL, so that no thread of this process can run

class HangTask(SourceTask[HangConfig]):
    def start(self, config):
        # A grandchild that has left its parent, session and process group, as daemons do.
        subprocess.Popen([sys.executable, "-c",
            "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\ntime.sleep(1000)"])
        subprocess.Popen(["sleep", "1000"])
        self.config = config
    def poll(self):
        if self.config.how == "crash":
            os.kill(os.getpid(), 11)
        if os.path.exists(self.config.hangs_when):
            hang(self.config)
        time.sleep(0.02)

class HangConnector(SourceConnector[HangConfig]):
    task_class = HangTask

class HangingConnector(HangConnector):
    def start(self, config):
        hang(config)
"""


class WorkerWithPlugin(Worker):
    """A worker with the connectors above. A second signal terminates it after `signal_repeat_s` if this is given."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] = {},
        connectors: Sequence[Path] = (),
        signal_repeat_s: int | None = None,
    ) -> None:
        plugins = directory / "plugins"
        plugins.mkdir()
        (plugins / "hang_plugin.py").write_text("# a headrace plug-in\n" + PLUGIN)
        super().__init__(directory, {"plugin.path": str(plugins), **settings}, connectors)
        self._signal_repeat_s = signal_repeat_s

    def command(self) -> list[str]:
        program, *arguments = super().command()
        if self._signal_repeat_s is None:
            return [program, *arguments]
        code = f"""
from headrace.cli import connect_standalone, worker_process
worker_process.SIGNAL_REPEAT_S = {self._signal_repeat_s}
connect_standalone.entry()
"""
        return [program, "-c", code, *arguments[2:]]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with WorkerWithPlugin(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def worker_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with WorkerWithPlugin(tmp_path_factory.mktemp("worker")) as running:
        yield running


@pytest.fixture
def shared_worker(worker_of_module: Worker) -> Iterator[Worker]:
    """The worker of all tests that do not stop it. After each test, its connectors are deleted."""
    yield worker_of_module
    for name in worker_of_module.request("GET", "/connectors"):
        worker_of_module.request("DELETE", f"/connectors/{name}")
    assert wait_until(lambda: count_sleepers(worker_of_module.pid) == 0), "a process of a deleted connector is left"


def descendants(pid: int) -> dict[int, float]:
    """Return {pid: creation time} of all descendants of a process.

    The creation time shows whether a pid was reused for another process.
    """
    return {process.pid: process.create_time() for process in psutil.Process(pid).children(recursive=True)}


def living(processes: dict[int, float]) -> list[str]:
    found = []
    for pid, created in processes.items():
        try:
            process = psutil.Process(pid)
            if process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except psutil.NoSuchProcess:
            continue
    return found


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def create_hanging(worker: Worker) -> dict[int, float]:
    """Create a connector, wait until its task hangs, and return the worker's descendants."""
    hangs_when, hanging = worker.directory / "hangs-when", worker.directory / "hanging"
    hanging.unlink(missing_ok=True)  # an earlier test with the same worker may have created it
    worker.create("hang", {"connector.class": "HangConnector", "hangs.when": str(hangs_when), "hanging": str(hanging)})
    worker.wait_for_state("hang", "RUNNING")
    assert wait_until(lambda: count_sleepers(worker.pid) >= 2), "the task's children have not started"
    hangs_when.touch()
    assert wait_until(hanging.exists), "the task does not hang"
    hangs_when.unlink()  # a restarted task does not hang
    return descendants(worker.pid)


def count_sleepers(pid: int) -> int:
    """Count the child processes that the tasks of HangConnector have started."""
    lines = [" ".join(command_line(process)) for process in psutil.Process(pid).children(recursive=True)]
    return sum("sleep 1000" in line or "setsid" in line for line in lines)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_all_descendants_of_a_killed_or_crashed_worker_are_killed(worker: Worker, number: int) -> None:
    everyone = create_hanging(worker)
    assert len(everyone) >= 5  # at least broker, fork server, connector, task and its children
    assert {os.getpgid(pid) for pid in everyone if _in_group(pid)} == {os.getpgid(worker.pid)}
    os.kill(worker.pid, number)
    assert wait_until(lambda: not living(everyone)), living(everyone)


def _in_group(pid: int) -> bool:
    """Return whether the process is in the worker's process group.

    A grandchild that called setsid is not in this group.
    """
    try:
        return os.getsid(pid) != pid
    except ProcessLookupError:
        return False


def test_children_of_a_killed_fork_server_are_killed_and_a_new_fork_server_starts(shared_worker: Worker) -> None:
    seen = len(shared_worker.log())
    create_hanging(shared_worker)
    server = next(
        c for c in psutil.Process(shared_worker.pid).children() if "headrace.runtime.fork_server" in c.cmdline()
    )
    below = descendants(server.pid)
    server.kill()
    assert wait_until(lambda: not living(below)), living(below)
    assert wait_until(lambda: bool(count_sleepers(shared_worker.pid))), "the task starts again"
    shared_worker.wait_for_task_state("hang", 0, "RUNNING")
    assert "Task hang-0: failed" not in shared_worker.log()[seen:]


def test_child_processes_of_a_crashed_task_are_killed_and_the_trace_of_the_task_names_the_signal(
    shared_worker: Worker,
) -> None:
    shared_worker.create("neighbour", {"connector.class": "HangConnector"})
    shared_worker.wait_for_task_state("neighbour", 0, "RUNNING")
    once = {"errors.restart.max.attempts": "0"}
    shared_worker.create("hang", {"connector.class": "HangConnector", "how": "crash", **once})
    shared_worker.wait_for_task_state("hang", 0, "FAILED")
    assert "killed by SIGSEGV" in shared_worker.status("hang")["tasks"][0]["trace"]
    assert shared_worker.status("neighbour")["tasks"][0]["state"] == "RUNNING"
    assert wait_until(lambda: count_sleepers(shared_worker.pid) == 2), "only the neighbour's children are left"


def test_hung_task_of_a_deleted_connector_is_killed_after_the_graceful_timeout(shared_worker: Worker) -> None:
    create_hanging(shared_worker)
    started = time.monotonic()
    shared_worker.request("DELETE", "/connectors/hang")
    assert time.monotonic() - started < HANG_S
    assert wait_until(lambda: count_sleepers(shared_worker.pid) == 0)


def test_hung_connector_does_not_delay_other_connectors(tmp_path: Path) -> None:
    with WorkerWithPlugin(tmp_path, {"connector.validation.timeout.ms": "10000"}) as worker:
        started = time.monotonic()
        worker.create("stuck", {"connector.class": "HangingConnector", "hanging": str(tmp_path / "hanging")})
        assert worker.status("stuck")["connector"]["state"] == "FAILED"
        assert "did not respond" in worker.status("stuck")["connector"]["trace"]
        assert time.monotonic() - started < HANG_S
        worker.create("hang", {"connector.class": "HangConnector"})
        worker.wait_for_state("hang", "RUNNING")


def test_ctrl_c_stops_the_worker_and_all_its_processes_cleanly(worker: Worker) -> None:
    worker.create("lines", {"connector.class": "FileStreamSource", "file": "/dev/null", "topic": "t"})
    worker.wait_for_task_state("lines", 0, "RUNNING")
    everyone = descendants(worker.pid)
    os.killpg(os.getpgid(worker.pid), signal.SIGINT)
    assert worker.wait(HANG_S) == 0
    assert not living(everyone)
    assert "Kafka Connect stopped" in worker.log()
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("child", ["broker_child", "converter_check", "fork_server"])
def test_ctrl_c_during_the_startup_of_a_child_process_logs_no_error(tmp_path: Path, child: str) -> None:
    connector = tmp_path / "s.properties"
    connector.write_text("name=s\nconnector.class=FileStreamSource\ntopic=t\nfile=none\n")
    command = Worker(tmp_path, connectors=[connector]).command()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        below = psutil.Process(process.pid)
        wait_until(lambda: any(child in " ".join(command_line(one)) for one in below.children()))
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=HANG_S)
    assert process.returncode in (0, 130)
    assert "Traceback" not in said
    assert "ERROR" not in said


def test_repeated_signal_within_the_repeat_time_does_not_abort_the_clean_shutdown(tmp_path: Path) -> None:
    with WorkerWithPlugin(tmp_path, signal_repeat_s=600) as worker:
        everyone = create_hanging(worker)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(worker.pid, number)
            time.sleep(0.1)  # the worker handles each signal separately
        assert worker.wait(HANG_S) == 0
    assert "Kafka Connect stopped" in worker.log()
    assert not living(everyone)


def test_second_signal_after_the_repeat_time_terminates_the_worker_immediately(tmp_path: Path) -> None:
    """The worker would otherwise wait for the hanging task until the graceful timeout."""
    settings = {"task.shutdown.graceful.timeout.ms": "600000"}
    with WorkerWithPlugin(tmp_path, settings, signal_repeat_s=0) as worker:
        everyone = create_hanging(worker)
        os.kill(worker.pid, signal.SIGTERM)
        assert wait_until(lambda: "stopping" in worker.log()), "the worker does not handle the first signal"
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.wait(HANG_S) == 128 + signal.SIGTERM
        assert wait_until(lambda: not living(everyone)), living(everyone)


def test_worker_start_on_a_rest_port_in_use_fails_with_an_error_without_a_traceback(
    shared_worker: Worker, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    again = Worker(other, {"listeners": shared_worker.url})
    result = subprocess.run(again.command(), capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "cannot bind" in result.stderr
    assert "Address already in use: stop the process that uses port" in result.stderr
    assert "Traceback" not in result.stderr


def test_ctrl_c_stops_the_worker_while_a_connector_hangs_in_start(tmp_path: Path) -> None:
    file, hanging = tmp_path / "stuck.properties", tmp_path / "hanging"
    file.write_text(f"name=stuck\nconnector.class=HangingConnector\nhanging={hanging}\n")
    settings = {"task.shutdown.graceful.timeout.ms": "1000", "connector.validation.timeout.ms": "600000"}
    worker = WorkerWithPlugin(tmp_path, settings, [file])
    with subprocess.Popen(worker.command(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("REST server listening" in line for line in process.stderr)
        assert wait_until(hanging.exists), "the connector does not hang"
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0


def test_worker_start_with_a_data_directory_in_use_fails_with_an_error_without_a_traceback(
    shared_worker: Worker, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    again = Worker(other, {"headrace.data.dir": str(shared_worker.directory / "data")})
    result = subprocess.run(again.command(), capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "The embedded broker failed to start" in result.stderr
    assert "Traceback" not in result.stderr


def test_fork_server_that_is_still_importing_dies_with_the_worker(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text("import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(1000)\n")
    worker = (
        "import os, socket, subprocess, sys, time\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "arguments = ['-m', 'headrace.runtime.fork_server', str(theirs.fileno()), str(os.getpid())]\n"
        "print(subprocess.Popen([sys.executable, *arguments], pass_fds=[theirs.fileno()]).pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command, environment = [sys.executable, "-c", worker], {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        try:
            assert wait_until((tmp_path / "importing").exists)
            process.kill()
            assert wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
        finally:
            process.kill()
            if child.is_running():
                child.kill()


_HANGS_IN_AN_IMPORT = """
import asyncio, os
from headrace.runtime.processes import Processes

async def main():
    processes = Processes()
    host = await processes.spawn("task-0", None)
    print(processes.fork_server_pid, host.pid, flush=True)
    await processes.share(["shared_twice"])

asyncio.run(main())
"""


def test_fork_server_that_hangs_in_an_import_dies_with_the_worker(tmp_path: Path) -> None:
    """The module hangs in the second process that imports it, which is the fork server."""
    first, second = str(tmp_path / "first"), tmp_path / "second"
    (tmp_path / "shared_twice.py").write_text(
        f"import os, time\ntry: os.mkdir({first!r})\n"
        f"except OSError:\n    os.mkdir({str(second)!r})\n    time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", _HANGS_IN_AN_IMPORT]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pids = [int(text) for text in worker.stdout.readline().split()]
        below = {pid: psutil.Process(pid).create_time() for pid in pids}
        assert wait_until(second.exists)
        worker.kill()
    assert wait_until(lambda: not living(below)), living(below)
