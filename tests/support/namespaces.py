"""Simulates a network of machines with Linux namespaces. Tests can cut and slow its links, and fill its disks.

A test starts a program in a sandbox. The sandbox has its own user, mount, process and network namespaces, in which the
program is root and has pid 1. When the program ends for any reason, the kernel kills all processes of the sandbox and
removes its links, routes and file systems. The program needs no privileges if the kernel allows unprivileged user
namespaces; otherwise, it needs root.

In the sandbox, the program creates a `Network`. Each machine has a network namespace and a link to one router. The
router silently drops packets as configured, in one direction or both. Connections therefore hang as they do when a
cable is pulled, and neither side receives a reset.

    10.77.0.1 (the program itself)  ── router ──  10.77.1.1, 10.77.2.1, ... (machines, whose processes run `within`)
"""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

_UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
_TRY = (
    "mount -t tmpfs -o size=1m none /mnt && ip link add v0 type veth peer name v1 && ip rule add to 10.0.0.9 blackhole"
)
_SLOW = "tbf rate {rate_kbit}kbit burst 16kb latency 400ms"
_HERE = 0


@functools.cache
def _prefix() -> tuple[list[str], str]:
    """Return (command prefix that starts a sandbox, ""), or (empty prefix, the reason why no sandbox can start)."""
    reasons = []
    for own_users in (["--map-root-user"], []) if os.geteuid() == 0 else (["--map-root-user"],):
        prefix = [_UNSHARE[0], *own_users, *_UNSHARE[1:]]
        try:
            done = subprocess.run([*prefix, "sh", "-c", _TRY], capture_output=True, text=True, timeout=120)
        except FileNotFoundError:
            return [], "no unshare on the path: install util-linux"
        if done.returncode == 0:
            return prefix, ""
        reasons.append((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return [], f"cannot create network namespaces ({'; '.join(reasons)}): needs iproute2, and user namespaces or root"


def missing() -> str:
    """Return in one line why sandboxes cannot be created on this machine, or an empty string if they can be created."""
    return _prefix()[1]


def in_sandbox(command: list[str]) -> list[str]:
    """Return the command that runs `command` in a sandbox.

    The standard input of the returned command must be a pipe: see `end_with_parent`.
    """
    assert not missing(), missing()
    return [*_prefix()[0], *command]


def end_with_parent() -> None:
    """Let this process exit when its standard input is closed.

    The standard input is closed when the parent process ends. If this process is the program of a sandbox, its exit
    also ends the sandbox.
    """

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Network:
    """The simulated machines of a sandbox.

    The clients run in the program that creates the network, as machine 0. The other machines have the numbers 1..N.
    """

    def __init__(self, machines: int) -> None:
        self.machines = range(1, machines + 1)
        self._cuts: set[tuple[int, int]] = set()
        self._throttled: set[int] = set()
        self._router = _namespace()
        self._holders = {machine: _namespace() for machine in self.machines}
        self._route("link set lo up")
        subprocess.run([*_within(self._router), "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"], check=True)
        for machine in (_HERE, *self.machines):
            self._connect(machine)

    def _connect(self, machine: int) -> None:
        router = self._router.pid
        where = [] if machine == _HERE else _within(self._holders[machine])
        _ip([*where], "link set lo up", f"link add eth0 type veth peer name m{machine} netns {router}")
        _ip([*where], f"addr add {self.address(machine)}/24 dev eth0", "link set eth0 up")
        self._route(f"addr add 10.77.{machine}.254/24 dev m{machine}", f"link set m{machine} up")
        _ip([*where], f"route add default via 10.77.{machine}.254")

    def _route(self, *commands: str) -> None:
        _ip(_within(self._router), *commands)

    def address(self, machine: int) -> str:
        """Return the machine's IPv4 address."""
        return f"10.77.{machine}.1"

    def within(self, machine: int) -> list[str]:
        """Return the command prefix that runs a command on `machine`."""
        return _within(self._holders[machine])

    # -- failures ----------------------------------------------------------------------------------------------------

    def cut(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Drop all packets from `sources` to `targets`, but not packets in the opposite direction."""
        pairs = {(source, target) for source in sources for target in targets if source != target} - self._cuts
        self._cuts |= pairs
        self._route(*(f"rule add {self._between(*pair)} blackhole" for pair in sorted(pairs)))

    def cut_both_ways(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Drop all packets between the machines `some` and the machines `others`, in both directions."""
        some, others = set(some), set(others)
        self.cut(some, others)
        self.cut(others, some)

    def heal(self) -> None:
        """Stop dropping packets."""
        self._route(*(f"rule del {self._between(*pair)} blackhole" for pair in sorted(self._cuts)))
        self._cuts.clear()

    def _between(self, source: int, target: int) -> str:
        return f"from {self.address(source)} to {self.address(target)}"

    def throttle(self, machine: int, rate_kbit: int) -> None:
        """Limit the traffic that `machine` receives to `rate_kbit` kbit/s.

        Packets that would be queued for more than 400 ms are dropped.
        """
        tc = [*_within(self._router), "tc", "qdisc", "replace", "dev", f"m{machine}", "root"]
        subprocess.run([*tc, *_SLOW.format(rate_kbit=rate_kbit).split()], check=True)
        self._throttled.add(machine)

    def unthrottle(self) -> None:
        """Remove all bandwidth limits."""
        for machine in self._throttled:
            subprocess.run([*_within(self._router), "tc", "qdisc", "del", "dev", f"m{machine}", "root"], check=True)
        self._throttled.clear()


class SmallDisk:
    """A small in-memory file system that can be made full at any time."""

    def __init__(self, path: Path, mebibytes: int) -> None:
        self.path = path
        self._size = f"{mebibytes}m"
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._size}", "none", str(path)], check=True)

    def fill(self) -> None:
        """Make the disk full by shrinking the file system to the size of its contents."""
        for _ in range(20):
            held = os.statvfs(self.path)
            used_kib = max(4, (held.f_blocks - held.f_bfree) * held.f_frsize // 1024)
            if self._resize(f"{used_kib}k"):
                return  # if another process writes during the remount, the remount fails: retry
        raise AssertionError(f"{self.path} cannot be made smaller")

    def free(self) -> None:
        """Free space by restoring the original size of the file system."""
        assert self._resize(self._size)

    def _resize(self, size: str) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self.path)]
        return subprocess.run(command, capture_output=True).returncode == 0


def _namespace() -> subprocess.Popen[bytes]:
    """Start a process that keeps a new network namespace alive. It prints a line once the namespace exists."""
    command = ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"]
    holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"\n"
    return holder


def _within(holder: subprocess.Popen[bytes]) -> list[str]:
    return ["nsenter", "-t", str(holder.pid), "-n"]


def _ip(prefix: list[str], *commands: str) -> None:
    if commands:
        subprocess.run([*prefix, "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)
