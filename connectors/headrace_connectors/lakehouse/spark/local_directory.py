"""The directory for the temporary files of a task's JVM: each start of a task has its own one.

    <parent>/<name>/       the files
    <parent>/<name>.lock   locked while the task's process is alive

A task deletes its directory when it ends, and the next start deletes those of killed processes. So a task that ends
late, or a connector with the same name in another Connect cluster, never deletes the files of a running JVM.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.file_locks import lock_file

_ABANDONED_S = 24 * 3600
"""Age of files of earlier versions, which have no lock, and of files on a file system without locks."""


@contextmanager
def local_directory(parent: Path | None) -> Iterator[Path]:
    """Yield a directory below `parent`, or below the system's directory for temporary files. Delete it at the end."""
    if parent is None:
        with tempfile.TemporaryDirectory(prefix="headrace-spark-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _delete_abandoned(parent)
        directory, descriptor = _create(parent)
    except OSError as error:
        raise ConnectError(f"Spark's files cannot be written to {parent}: {error.strerror}") from error
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        _lock_of(directory).unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def _create(parent: Path) -> tuple[Path, int | None]:
    while True:
        directory = parent / uuid.uuid4().hex[:16]
        try:
            descriptor = lock_file(_lock_of(directory), os.O_RDWR | os.O_CREAT)
        except BlockingIOError:  # another task is just deleting the lock
            continue
        except OSError:  # the file system has no locks
            descriptor = None
        directory.mkdir()
        return directory, descriptor


def _delete_abandoned(parent: Path) -> None:
    for path in sorted(parent.iterdir()):
        if path.suffix == ".lock":
            _delete_if_unlocked(path)
        elif not _lock_of(path).exists() and _is_old(path):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _delete_if_unlocked(lock: Path) -> None:
    try:
        descriptor = lock_file(lock, os.O_RDWR)
    except FileNotFoundError:
        return
    except BlockingIOError:  # the process is alive
        return
    except OSError:  # the file system has no locks
        if not _is_old(lock):
            return
        descriptor = None
    shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
    lock.unlink(missing_ok=True)
    if descriptor is not None:
        os.close(descriptor)


def _lock_of(directory: Path) -> Path:
    return directory.with_name(f"{directory.name}.lock")


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_S
    except FileNotFoundError:
        return False
