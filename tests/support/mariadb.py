"""Runs a MariaDB server for tests, with a temporary data directory and a free loopback port."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pymysql

from support.ports import free_port

_START_S = 60.0


@dataclass(slots=True)
class MariaDb:
    """A running server with the database `shop`."""

    port: int
    command: list[str]
    log: Path
    user: str = "tester"
    _process: subprocess.Popen[bytes] | None = None

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:mariadb://127.0.0.1:{self.port}/shop"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        _wait(self.port, self._process, self.log)

    def kill(self) -> None:
        """Kill the server. It recovers from its log when it starts again.

        Transactions are lost unless the server has the option `--innodb-flush-log-at-trx-commit=2`.
        """
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the server, and wait until it has exited."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=60)


def unavailable_reason() -> str | None:
    """Return why a MariaDB server cannot run on this machine, or None if it can."""
    if shutil.which("mariadbd") and shutil.which("mariadb-install-db"):
        return None
    return "MariaDB is not installed (Debian: apt-get install mariadb-server)"


@contextmanager
def running(*options: str) -> Iterator[MariaDb]:
    """Run a server with additional options, e.g. ``--sql-mode=``. At the end, stop it and remove its data."""
    directory = Path(mkdtemp(prefix="headrace-mariadb-"))
    user = "mysql" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    port = free_port()
    # A server deletes all temporary tables in its tmpdir when it starts: with /tmp, also those of other servers.
    directories = [f"--datadir={directory / 'data'}", f"--tmpdir={directory / 'tmp'}"]
    try:
        (directory / "tmp").mkdir()
        if os.geteuid() == 0:
            shutil.chown(directory, user)
            shutil.chown(directory / "tmp", user)
        _run(["mariadb-install-db", "--no-defaults", *directories, f"--user={user}",
              "--auth-root-authentication-method=normal"])  # fmt: skip
        init = directory / "init.sql"
        init.write_text(
            "CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;\nCREATE USER IF NOT EXISTS tester@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO tester@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        init.chmod(0o644)
        command = ["mariadbd", "--no-defaults", *directories, f"--user={user}",
                   "--bind-address=127.0.0.1", f"--port={port}", f"--socket={directory / 's'}",
                   f"--init-file={init}", f"--pid-file={directory / 'pid'}", "--innodb-flush-log-at-trx-commit=0",
                   "--skip-name-resolve", *options]  # fmt: skip
        server = MariaDb(port, command, directory / "log")
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            pymysql.connect(host="127.0.0.1", port=port, user="tester", database="shop").close()
            return
        except pymysql.MySQLError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MariaDB did not start: {log.read_text()}") from None
            time.sleep(0.1)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
