"""Runs a PostgreSQL server for tests, with a temporary data directory and a free loopback port."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from support.ports import free_port


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running PostgreSQL server."""

    port: int
    user: str = "postgres"
    control: Sequence[str] = ()
    """The command `pg_ctl` for this server, without an action."""
    start_arguments: Sequence[str] = ()

    @property
    def jdbc_url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={self.user} dbname=postgres"

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        _run([*self.control, *self.start_arguments, "start"])

    def stop(self) -> None:
        """Stop the server immediately. It recovers from its log when it starts again."""
        _run([*self.control, "-m", "immediate", "stop"])


def unavailable_reason() -> str | None:
    """Return why a PostgreSQL server cannot run on this machine, or None if it can."""
    return None if _program("initdb") else "PostgreSQL is not installed (Debian: apt-get install postgresql)"


@contextmanager
def running(**settings: str) -> Iterator[Postgres]:
    """Run a server with the given settings (e.g. ``wal_level="logical"``). At the end, stop it and remove its data."""
    directory = Path(mkdtemp(prefix="headrace-postgres-"))
    as_user = _unprivileged(directory)
    port = free_port()
    try:
        _run([*as_user, _program("initdb"), "-D", str(directory / "data"), "-A", "trust", "-U", "postgres"])
        options = {
            "listen_addresses": "127.0.0.1",
            "fsync": "off",
            "unix_socket_directories": str(directory),
            **settings,
        }
        arguments = " ".join(["-p", str(port), *(f"-c {name}={value}" for name, value in options.items())])
        control = [*as_user, _program("pg_ctl"), "-D", str(directory / "data"), "-w"]
        server = Postgres(port, control=control, start_arguments=["-l", str(directory / "log"), "-o", arguments])
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _program(name: str) -> str:
    return shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), "")


def _unprivileged(directory: Path) -> list[str]:
    """Return a command prefix that runs PostgreSQL as another user, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam("postgres")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
