"""A network of machines inside this one, made of namespaces: every link can lose packets, every disk can be full.

A test starts a program in a room: user, mount, process and network namespaces of its own, where it is root and its
process the first.  However that program ends, the kernel ends everything in the room with it, and links, routes and
file systems go too: nothing has a name outside, so nothing is left behind.  No rights are needed where the kernel
lets users make namespaces; else root's are used.

Inside, the program makes a `Network`: each machine has a network namespace and a link to one router.  The router loses
without a word what it is told to lose, in one direction or both, so connections hang as they do when a cable is
pulled: nobody is told by a reset.

    10.77.0.1 (the program itself)  ── router ──  10.77.1.1, 10.77.2.1, ... (machines, whose processes run `within`)
"""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path

_ROOM = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
_TRY = (
    "mount -t tmpfs -o size=1m none /mnt && ip link add v0 type veth peer name v1 && ip rule add to 10.0.0.9 blackhole"
)
_SLOW = "tbf rate {rate_kbit}kbit burst 16kb latency 400ms"
_HERE = 0


@functools.cache
def _prefix() -> tuple[list[str], str]:
    """(the words that put a command into a room, why there are none)."""
    reasons = []
    for own_users in (["--map-root-user"], []) if os.geteuid() == 0 else (["--map-root-user"],):
        prefix = [_ROOM[0], *own_users, *_ROOM[1:]]
        try:
            done = subprocess.run([*prefix, "sh", "-c", _TRY], capture_output=True, text=True, timeout=30)
        except FileNotFoundError:
            return [], "no unshare on the path: install util-linux"
        if done.returncode == 0:
            return prefix, ""
        reasons.append((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    return [], f"no network namespaces here ({'; '.join(reasons)}): needs iproute2, and user namespaces or root"


def missing() -> str:
    """What keeps rooms from being made on this machine, in one line; empty when nothing does."""
    return _prefix()[1]


def in_room(command: list[str]) -> list[str]:
    """The command, in a room of its own.  Give it a pipe as standard input: see `end_with_parent`."""
    assert not missing(), missing()
    return [*_prefix()[0], *command]


def end_with_parent() -> None:
    """In the room: end, and the room with it, when the other end of standard input is closed, by whatever death."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Network:
    """The room's machines 1..N, and machine 0: the program that makes them, with everything in its process."""

    def __init__(self, machines: int) -> None:
        self.machines = range(1, machines + 1)
        self._cuts: set[tuple[int, int]] = set()
        self._slow: set[int] = set()
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
        """The machine's IPv4 address."""
        return f"10.77.{machine}.1"

    def within(self, machine: int) -> list[str]:
        """The words before a command that shall run on that machine."""
        return _within(self._holders[machine])

    # -- harm --------------------------------------------------------------------------------------------------------

    def cut(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        """From now on what these sources send to these targets is lost; what comes back is not."""
        pairs = {(source, target) for source in sources for target in targets if source != target} - self._cuts
        self._cuts |= pairs
        self._route(*(f"rule add {self._between(*pair)} blackhole" for pair in sorted(pairs)))

    def cut_both_ways(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Nothing passes between these and those."""
        some, others = set(some), set(others)
        self.cut(some, others)
        self.cut(others, some)

    def join(self) -> None:
        """Lose nothing any more."""
        self._route(*(f"rule del {self._between(*pair)} blackhole" for pair in sorted(self._cuts)))
        self._cuts.clear()

    def _between(self, source: int, target: int) -> str:
        return f"from {self.address(source)} to {self.address(target)}"

    def slow(self, machine: int, rate_kbit: int) -> None:
        """A thin link to the machine: packets wait up to 400 ms for it, and what would wait longer is lost."""
        tc = [*_within(self._router), "tc", "qdisc", "replace", "dev", f"m{machine}", "root"]
        subprocess.run([*tc, *_SLOW.format(rate_kbit=rate_kbit).split()], check=True)
        self._slow.add(machine)

    def widen(self) -> None:
        """Every link as fast as before."""
        for machine in self._slow:
            subprocess.run([*_within(self._router), "tc", "qdisc", "del", "dev", f"m{machine}", "root"], check=True)
        self._slow.clear()


class SmallDisk:
    """A file system of so many MiB in memory, that can be full at any moment."""

    def __init__(self, path: Path, mebibytes: int) -> None:
        self.path = path
        self._size = f"{mebibytes}m"
        path.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._size}", "none", str(path)], check=True)

    def fill(self) -> None:
        """No room from now on: the file system becomes as small as what it holds."""
        for _ in range(20):
            held = os.statvfs(self.path)
            used_kib = max(4, (held.f_blocks - held.f_bfree) * held.f_frsize // 1024)
            if self._resize(f"{used_kib}k"):
                return  # otherwise more was written meanwhile
        raise AssertionError(f"{self.path} cannot be made smaller")

    def free(self) -> None:
        """Room again."""
        assert self._resize(self._size)

    def _resize(self, size: str) -> bool:
        command = ["mount", "-o", f"remount,size={size}", str(self.path)]
        return subprocess.run(command, capture_output=True).returncode == 0


def _namespace() -> subprocess.Popen[bytes]:
    """A network namespace, held by a process that waits; it answers once it is there."""
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
