"""Runs group members as processes, reads their assignments and records from their output, and kills them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_SCRIPT = Path(__file__).with_name("group_member.py")
_KCAT_ASSIGNED = re.compile(rb"assigned: (.*)")
_KCAT_PARTITION = re.compile(rb"\[(\d+)\]")
_KCAT_FORMAT = "%p %o %s\n"


class MemberProcess:
    """One consumer process. `assigned` and `records` are parsed from the output of the process."""

    def __init__(self, kind: str, command: list[str], changed: threading.Condition) -> None:
        self.kind = kind
        self.assigned: set[int] | None = None
        self.assignments = 0
        self.records: list[tuple[int, int, str]] = []
        self.other_output: list[bytes] = []
        self._changed = changed
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for stream in (self._process.stdout, self._process.stderr):
            threading.Thread(target=self._follow, args=(stream,), daemon=True).start()

    def kill(self) -> None:
        """Kill the process with SIGKILL, so that it sends no LeaveGroup."""
        self._process.kill()
        self._process.wait()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _follow(self, stream: object) -> None:
        with stream:  # type: ignore[attr-defined]
            for line in stream:  # type: ignore[attr-defined]
                with self._changed:
                    self._handle_line(line.rstrip())
                    self._changed.notify_all()

    def _handle_line(self, line: bytes) -> None:
        if line.startswith(b'{"assigned"'):
            self._assign(set(json.loads(line)["assigned"]))
        elif line.startswith(b'{"record"'):
            partition, offset, value = json.loads(line)["record"]
            self.records.append((partition, offset, value))
        elif line.startswith(b"%"):  # kcat's log messages start with %
            found = _KCAT_ASSIGNED.search(line)
            if found is not None:
                self._assign({int(partition) for partition in _KCAT_PARTITION.findall(found[1])})
            elif b"revoked" in line:
                self.assigned = set()
        elif self.kind == "kcat" and line[:1].isdigit():
            partition, offset, value = line.decode().split(" ", 2)
            self.records.append((int(partition), int(offset), value))
        else:
            self.other_output.append(line)

    def _assign(self, partitions: set[int]) -> None:
        self.assigned = partitions
        self.assignments += 1


class GroupProcesses:
    """The members of one consumer group. At the end of the `with` block, all running members are killed."""

    def __init__(self, address: str, group: str, topic: str, session_ms: int) -> None:
        self._address = address
        self._group = group
        self._topic = topic
        self._session_ms = session_ms
        self._changed = threading.Condition()
        self.all: list[MemberProcess] = []

    def __enter__(self) -> GroupProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.all:
            if member.is_alive:
                member.kill()

    @property
    def alive(self) -> list[MemberProcess]:
        return [member for member in self.all if member.is_alive]

    def start(self, kind: str, instance: str | None = None) -> MemberProcess:
        command = self._kcat() if kind == "kcat" else self._script(kind, instance)
        member = MemberProcess(kind, command, self._changed)
        self.all.append(member)
        return member

    def _script(self, kind: str, instance: str | None) -> list[str]:
        options = [kind, self._address, self._group, self._topic, str(self._session_ms)]
        return [sys.executable, "-W", "ignore", str(_SCRIPT), *options, *([instance] if instance else [])]

    def _kcat(self) -> list[str]:
        settings = {
            "session.timeout.ms": self._session_ms,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": 100,
        }
        options = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
        return ["kcat", "-b", self._address, *options, "-u", "-f", _KCAT_FORMAT, "-G", self._group, self._topic]

    def await_(self, condition: Callable[[], bool], timeout_s: float, description: str) -> float:
        """Wait until `condition()` is true. Return the time that this took, in seconds.

        On a timeout, raises an AssertionError that contains `description`.
        """
        started = time.monotonic()
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                states = [(m.kind, m.assigned, len(m.records), m.other_output[-5:]) for m in self.all]
                raise AssertionError(f"not within {timeout_s} s: {description}; members: {states}")
        return time.monotonic() - started

    def await_shared(self, partitions: int, timeout_s: float) -> float:
        """Wait until each partition has exactly one running owner, and each running member owns a partition."""

        def is_shared() -> bool:
            owned = [member.assigned or set() for member in self.alive]
            return all(owned) and sorted(p for each in owned for p in each) == list(range(partitions))

        return self.await_(is_shared, timeout_s, f"{partitions} partitions shared by {len(self.alive)} members")

    def await_values(self, values: set[str], timeout_s: float) -> None:
        """Wait until each of `values` was received by at least one member. The member may have been killed later."""
        self.await_(
            lambda: values <= {value for member in self.all for _, _, value in member.records},
            timeout_s,
            f"{len(values)} values received",
        )
