"""Tests of the sandbox (Linux namespaces) in which the tests with cluster faults run.

Blocked links drop packets silently, and no process outlives the sandbox.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.isolated_cluster import environment
from support.namespaces import in_sandbox, missing

pytestmark = pytest.mark.integration

_LISTEN = """
import socket
with socket.create_server(("", 7)) as listening:
    print("listens", flush=True)
    while True:
        listening.accept()[0].close()
"""
_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7), 0.5).close()
except TimeoutError:
    sys.exit("silence")
"""
_HURT = f"""
import subprocess, sys
from pathlib import Path
from support.namespaces import Network, SmallDisk, end_with_parent

end_with_parent()
network = Network(2)

def run(machine, *arguments):
    where = network.within(machine) if machine else []
    return subprocess.Popen([*where, sys.executable, "-c", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

def reaches(source, target):
    status = run(source, {_CONNECT!r}, network.address(target)).communicate()
    assert status[1] in (b"", b"silence\\n"), status
    return not status[1]

for machine in network.machines:
    assert run(machine, {_LISTEN!r}).stdout.readline() == b"listens\\n"
assert reaches(0, 1) and reaches(0, 2) and reaches(1, 2) and reaches(2, 1)
network.cut([1], [0])
assert not reaches(0, 1), "the responses are not lost"
assert reaches(1, 2) and reaches(2, 1) and reaches(0, 2)
network.cut_both_ways([1], [2])
assert not reaches(1, 2) and not reaches(2, 1) and reaches(0, 2)
network.heal()
network.throttle(1, 100)
assert reaches(0, 1) and reaches(1, 2) and reaches(2, 1)
network.unthrottle()
disk = SmallDisk(Path(sys.argv[1]) / "disk", 4)
(disk.path / "held").write_bytes(bytes(1_000_000))
disk.fill()
try:
    (disk.path / "more").write_bytes(bytes(10_000))
    raise AssertionError("the disk is not full")
except OSError as error:
    assert error.errno == 28, error
disk.free()
(disk.path / "more").write_bytes(bytes(10_000))
assert (disk.path / "held").read_bytes() == bytes(1_000_000)
"""
_WAIT = """
import subprocess, time
from support.namespaces import Network, end_with_parent
network = Network(1)
subprocess.Popen([*network.within(1), "sleep", "86391"])
end_with_parent()
print("waits", flush=True)
time.sleep(86391)
"""


@pytest.fixture(autouse=True)
def _require_sandbox() -> None:
    if missing():
        pytest.skip(missing())


def start_in_sandbox(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = in_sandbox([sys.executable, "-c", code, *arguments])
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )


def test_sandbox_can_cut_and_heal_network_links_and_fill_and_free_disks(tmp_path: Path) -> None:
    with start_in_sandbox(_HURT, str(tmp_path)) as sandbox:
        status = sandbox.wait(60)
        assert sandbox.stdout is not None
        assert sandbox.stderr is not None
        assert status == 0, sandbox.stderr.read().decode()
    assert list((tmp_path / "disk").iterdir()) == []


def test_sandbox_processes_end_when_the_process_that_started_the_sandbox_ends() -> None:
    """Close the pipe to the sandbox, as the kernel does when the process that started the sandbox ends."""
    with start_in_sandbox(_WAIT) as sandbox:
        assert sandbox.stdout is not None
        assert sandbox.stdin is not None
        assert sandbox.stdout.readline() == b"waits\n"
        deadline_s = time.monotonic() + 20
        while not _sleepers():  # the process prints `waits` before it executes sleep
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        sandbox.stdin.close()
        sandbox.wait(30)
    deadline_s = time.monotonic() + 20
    while _sleepers():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _sleepers() -> list[str]:
    """Return the /proc paths of the running `sleep` processes that this test has started in the sandbox."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [str(path)] if path.read_bytes() == b"sleep\x0086391\x00" else []
        except OSError:
            continue  # the process has exited
    return found
