"""Builds and runs the Go and Node.js clients in `go_clients/` and `node_clients/`, and other Go programs.

The tools of Go and Node.js download the clients' libraries. The results are in build/.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SUPPORT = Path(__file__).parent
BUILD = SUPPORT.parents[1] / "build"
_BUILD_TIMEOUT_S = 600.0
_RUN_TIMEOUT_S = 60.0


def missing_program(*names: str) -> str | None:
    """Return the first of these programs that is not on the path, or None if all are."""
    return next((name for name in names if shutil.which(name) is None), None)


def run_go_client(*arguments: str) -> str:
    """Build the Go program if necessary, and run it. Return its output."""
    program = BUILD / "go-clients"
    with _lock("go-clients"):
        _run(["go", "build", "-o", str(program), "."], SUPPORT / "go_clients", _BUILD_TIMEOUT_S)
    return _run([str(program), *arguments], BUILD, _RUN_TIMEOUT_S)


def install_go_program(package: str) -> Path:
    """Build a Go program if build/ does not contain it. `package` is its path with the version."""
    name = package.partition("@")[0].rpartition("/")[2]
    program = BUILD / f"{name}-{package.partition('@')[2]}" / name
    with _lock(name):
        if not program.exists():
            _run(["go", "install", package], BUILD, _BUILD_TIMEOUT_S, GOBIN=str(program.parent))
    return program


def run_node_client(script: str, *arguments: str) -> str:
    """Install the libraries if necessary, and run a script of `node_clients/`. Return its output."""
    directory = BUILD / "node-clients"
    with _lock("node-clients"):
        shutil.copytree(SUPPORT / "node_clients", directory, dirs_exist_ok=True)
        _run(
            ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"], directory, _BUILD_TIMEOUT_S
        )
    return _run(["node", script, *arguments], directory, _RUN_TIMEOUT_S)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Only one process at a time builds, because several processes may run tests."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], directory: Path, timeout_s: float, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout
