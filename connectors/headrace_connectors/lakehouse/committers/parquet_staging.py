"""The folders of a Parquet table for files that no reader may see yet: one folder per committer.

    <table>/_headrace/staged/<process>.<n>/    files before their commit; readers skip names that start with _
    .headrace~locks/<process>.lock             next to the table; locked while the process is alive

A folder is deleted only if its process is not alive, or if its committer was closed. So a committer never deletes files
that another process is about to commit. The operating system releases the lock of a process that dies. If the
file system has no locks, folders are deleted a day after their last change. All tables in a directory share the lock.
"""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace_connectors.lakehouse.file_locks import lock_file

_ABANDONED_S = 24 * 3600
_LOCKS = ".headrace~locks"
"""No topic can have this name, so no table has it."""


class _ProcessLock:
    """The lock of this process in one directory of locks. It is held until the process ends."""

    def __init__(self, directory: Path) -> None:
        self._numbers = itertools.count()
        directory.mkdir(parents=True, exist_ok=True)
        while True:
            self.name = uuid.uuid4().hex[:16]
            try:
                lock_file(directory / f"{self.name}.lock", os.O_RDWR | os.O_CREAT)
                return
            except BlockingIOError:  # another process is just deleting the file
                continue
            except OSError:  # the file system has no locks
                return

    def new_folder(self) -> str:
        """Return a name for a folder that this process has not used."""
        return f"{self.name}.{next(self._numbers)}"


_guard = threading.Lock()
_process_locks: dict[Path, _ProcessLock] = {}
_folders_in_use: set[Path] = set()


class Staging:
    """The folder of one committer."""

    def __init__(self, table: Path) -> None:
        self.root = table / "_headrace" / "staged"
        self._locks = table.parent / _LOCKS
        self._folder: str | None = None

    @property
    def folder(self) -> str:
        """The name of this committer's folder. It is created when the first file is written."""
        if self._folder is None:
            with _guard:
                if self._locks not in _process_locks:
                    _process_locks[self._locks] = _ProcessLock(self._locks)
                self._folder = _process_locks[self._locks].new_folder()
                _folders_in_use.add(self.root / self._folder)
        return self._folder

    @contextmanager
    def abandoned(self) -> Iterator[None]:
        """Lock the folders of committers that are not alive any more, and delete them at the end.

        In the meantime, the caller moves the files of a commit out of them.
        """
        descriptors: dict[str, int | None] = {}
        try:
            abandoned = [path for path in self._entries() if self._is_abandoned(path, descriptors)]
            yield
            for path in abandoned:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            for process in descriptors:
                (self._locks / f"{process}.lock").unlink(missing_ok=True)
        finally:
            for descriptor in descriptors.values():
                if descriptor is not None:
                    os.close(descriptor)

    def close(self) -> None:
        """Release the folder. The next committer that loads the table deletes it."""
        if self._folder is not None:
            _folders_in_use.discard(self.root / self._folder)
            self._folder = None

    def _entries(self) -> list[Path]:
        return sorted(self.root.iterdir()) if self.root.is_dir() else []

    def _is_abandoned(self, path: Path, descriptors: dict[str, int | None]) -> bool:
        """Whether no committer will commit the files in `path`. Locks their process, and adds it to `descriptors`."""
        if path in _folders_in_use:
            return False
        if not path.is_dir():  # a file of the last release, which may still be running
            return _is_old(path)
        process = path.name.partition(".")[0]
        own = _process_locks.get(self._locks)
        if process in descriptors or (own is not None and own.name == process):
            return True
        try:
            descriptors[process] = lock_file(self._locks / f"{process}.lock", os.O_RDWR)
        except FileNotFoundError:
            descriptors[process] = None
        except OSError:  # the process is alive, or the file system has no locks
            return all(map(_is_old, [path, *path.rglob("*")]))
        return True


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_S
    except FileNotFoundError:
        return True
