"""Makes the archive of Spark's classes (`archive`): runs a small job in a JVM that exits by itself.

    python -m headrace_connectors.lakehouse.spark.archive_maker

Runs at the lowest priority. If another process is making an archive, this program does nothing. The file with the
checksums is written last, in one step: without it, an archive is incomplete. The archive's directory is never renamed,
because Java stores the path of the archive of its own classes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.spark import archive
from headrace_connectors.lakehouse.spark.classic_jobs import ClassicJobs
from headrace_connectors.lakehouse.spark.executor_check import describe_executor
from headrace_connectors.lakehouse.spark.java import Java, find_java
from headrace_connectors.lakehouse.spark.jobs import JobSettings

_EXIT_TIMEOUT_S = 300


def make(java: Java) -> Path | None:
    """Make the archive and return its directory. Returns None if it exists or if another process is making it."""
    target = archive.archive_directory(java)
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if archive.is_complete(target):
            return None
        shutil.rmtree(target, ignore_errors=True)  # a damaged archive, or that of a process that was killed
        target.mkdir()
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-spark-", ignore_cleanup_errors=True) as local_dir:
                _dump(java, target, Path(local_dir) / "spark")
            archive.write_checksums(target)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        archive.delete_unused(target, archive.environment_digest(java))
    return target


def _dump(java: Java, directory: Path, local_dir: Path) -> None:
    if archive.needs_base(java):
        base = [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={directory / 'base.jsa'}"]
        subprocess.run(base, check=True, capture_output=True)
    options = shlex.join(archive.dump_options(java, directory))
    conf = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": options}
    jobs = ClassicJobs(conf, "headrace java archive", local_dir, JobSettings(java_archive=False))
    try:
        jobs.start()
        jobs.run(describe_executor, 2, "load Spark's classes")
        jobs.exit(_EXIT_TIMEOUT_S)
        if not any(directory.glob("classes.*")):
            raise ConnectError(f"Java {java.version} wrote no archive: {jobs.output()}")
    finally:
        jobs.stop()


def main() -> None:
    """Make the archive for the Java that the lakehouse sink uses."""
    os.nice(19)
    with contextlib.suppress(AttributeError, psutil.Error):  # only Linux has priorities of I/O
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    try:
        make(find_java(os.environ))
    except (ConnectError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
