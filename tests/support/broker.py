"""Runs a real broker in a separate process, for tests that connect to the broker.

    with running_broker(tmp_path) as broker:
        client = connect(broker.address)          # "127.0.0.1:PORT"
        broker.restart()                          # clean stop and start on the same data and port
        broker.kill(); broker.start()             # a crash
        assert "..." in broker.log

The test process keeps the write end of a pipe open, and the broker watches the read end. Therefore, the broker also
ends when the test process is killed.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.preloaded import PreloadedPopen

_READY = re.compile(r"^headrace broker \d+ serves (\S+?)(?:,.*)? \(started in (\d+) ms\)$", re.MULTILINE)
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 60


class BrokerProcess:
    """One broker process, its data directory and its log."""

    def __init__(
        self, directory: Path, properties: Mapping[str, str], program: Sequence[str] = ("-m", "headrace_broker.server")
    ) -> None:
        self.directory = directory
        self._program = program
        self.data_dir = directory / "broker-data"
        self.properties = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "group.initial.rebalance.delay.ms": "0",
            **properties,
            "log.dirs": str(self.data_dir),
        }
        self.address = ""
        self.started_ms = 0
        self._log_path = directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._watch_fd = -1

    def start(self) -> None:
        """Start the process and wait until it accepts requests. Later starts use the port of the first start."""
        read_fd, self._watch_fd = os.pipe()
        seen = len(self.log)
        command = [sys.executable, *self._program, "--watch-fd", str(read_fd)]
        for key, value in self.properties.items():
            command += ["--property", f"{key}={value}"]
        with open(self._log_path, "ab") as log:
            self._process = PreloadedPopen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[read_fd]
            )
        os.close(read_fd)
        self._await_ready(seen)
        self.properties["listeners"] = f"PLAINTEXT://{self.address}"

    def _await_ready(self, seen: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            found = _READY.search(self.log[seen:])
            if found is not None:
                self.address, self.started_ms = found[1], int(found[2])
                return
            assert self._process is not None
            if self._process.poll() is not None:
                break
            time.sleep(0.005)
        raise AssertionError(f"the broker did not start:\n{self.log}")

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def host(self) -> str:
        """The host of `address`."""
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of `address`."""
        return int(self.address.rpartition(":")[2])

    @property
    def log(self) -> str:
        """Everything that the broker has printed in all its runs."""
        return self._log_path.read_text() if self._log_path.exists() else ""

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]

    def stop(self) -> int:
        """Stop the broker cleanly with SIGTERM. Return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._wait()

    def send_signal(self, number: int) -> None:
        """Send the signal `number` to the broker, for example SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(number)

    def restart(self) -> None:
        """Stop the broker cleanly, and start it again."""
        assert self.stop() == 0, self.log
        self.start()

    def _wait(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the broker did not stop within {_STOP_TIMEOUT_S} s:\n{self.log}") from None
        finally:
            self._process = None
            os.close(self._watch_fd)

    def close(self) -> None:
        """Stop the process if it is still running."""
        if self._process is not None:
            self.stop()


@contextmanager
def running_broker(directory: Path, **properties: str) -> Iterator[BrokerProcess]:
    """Run a broker on a free loopback port until the block ends.

    A keyword argument `a_b="x"` sets the key `a.b` to "x".
    """
    broker = BrokerProcess(directory, {key.replace("_", "."): value for key, value in properties.items()})
    broker.start()
    try:
        yield broker
    finally:
        broker.close()
