"""Downloads jars with Maven to build/, and compiles Java programs that use them."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

_BUILD = Path(__file__).resolve().parents[2] / "build"


@functools.cache
def jars(pom: Path) -> Path:
    """Return a directory with the dependencies of a POM. The first call downloads them."""

    def download(directory: Path) -> None:
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        _run([*command, f"-DoutputDirectory={directory}"])

    return _build(pom, download)


@functools.cache
def classes(source: Path, classpath: str) -> Path:
    """Return a directory with the classes of a Java source file. The first call compiles it."""
    command = ["javac", "-nowarn", "-cp", classpath, str(source), "-d"]
    return _build(source, lambda directory: _run([*command, str(directory)]), classpath)


def _build(source: Path, fill: Callable[[Path], None], options: str = "") -> Path:
    """Return the directory for this version of a file and these options. Fill it if that has not been done yet."""
    version = hashlib.sha256(source.read_bytes() + options.encode()).hexdigest()[:8]
    directory = _BUILD / f"{source.stem}-{version}"
    directory.mkdir(parents=True, exist_ok=True)
    marker = directory / ".complete"
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of other processes need the same files
        if not marker.exists():
            fill(directory)
            marker.touch()
    return directory


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
