"""The folders of a Parquet table for files that no reader may see yet: one folder per committer.

    <table>/_headrace/staged/<folder>/        files before their commit; readers skip names that start with _
    <table>/_headrace/staged/<folder>.lock    locked while the committer that writes into the folder is alive

Only a folder whose lock is free is deleted. So a committer never deletes files that another process is about to
commit. The operating system releases the lock of a process that dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ABANDONED_S = 24 * 3600
logger = logging.getLogger(__name__)


class Staging:
    """The folder of one committer."""

    def __init__(self, table: Path) -> None:
        self.root = table / "_headrace" / "staged"
        self._folder: str | None = None
        self._lock: int | None = None

    @property
    def folder(self) -> str:
        """The name of this committer's folder. The first call creates and locks it."""
        while self._folder is None:
            name = uuid.uuid4().hex[:16]
            self.root.mkdir(parents=True, exist_ok=True)
            lock = _try_lock(self.root / f"{name}.lock", create=True)
            if lock is not None:
                (self.root / name).mkdir()
                self._folder, self._lock = name, lock
        return self._folder

    @contextmanager
    def abandoned(self) -> Iterator[None]:
        """Lock the folders of committers that are not alive any more, and delete them at the end.

        In the meantime, the caller moves the files of a commit out of them.
        """
        locked: list[tuple[str, int]] = []
        try:
            for name in self._other_folders():
                lock = _try_lock(self.root / f"{name}.lock", create=False)
                if lock is not None:
                    locked.append((name, lock))
            yield
            for name, _ in locked:
                shutil.rmtree(self.root / name, ignore_errors=True)
                (self.root / f"{name}.lock").unlink(missing_ok=True)
            self._delete_old_files()
        finally:
            for _, lock in locked:
                os.close(lock)

    def close(self) -> None:
        """Release the lock. The folder is deleted by the next committer."""
        if self._lock is not None:
            os.close(self._lock)
            self._folder = self._lock = None

    def _other_folders(self) -> list[str]:
        names = os.listdir(self.root) if self.root.is_dir() else []
        folders = (name.removesuffix(".lock") for name in names if name.endswith(".lock"))
        return sorted(name for name in folders if name != self._folder)

    def _delete_old_files(self) -> None:
        """Delete files of the last release, which did not use folders. It may still be writing new files."""
        for path in self.root.iterdir() if self.root.is_dir() else ():
            if path.suffix != ".lock" and path.is_file() and time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink(missing_ok=True)


def _try_lock(path: Path, *, create: bool) -> int | None:
    """Open and lock a file. Return its descriptor, or None if another process has locked or deleted it."""
    try:
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None
