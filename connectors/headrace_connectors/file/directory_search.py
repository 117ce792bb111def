"""Searches a directory for the files that a task has to read next.

A search lists the directory in small steps, so that a task can stop during a search of a million files. The result
contains only files that have not been read. If there are more than `CANDIDATES_MAX` such files, the result contains
only the first `CANDIDATES_MAX` files in the configured order.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

CANDIDATES_MAX = 50_000
_CHUNK = 500


class FileState(NamedTuple):
    """The state that identifies a file's content in a source offset: its size in bytes, and its modification time.

    The modification time is in microseconds, because JSON tools may parse numbers as float64. A float64 cannot
    represent a modification time in nanoseconds exactly.
    """

    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state of a file."""
        return cls(status.st_size, status.st_mtime_ns // 1000)

    def is_state_in(self, offset: Mapping[str, Any]) -> bool:
        """Whether a source offset contains this size and this time of modification."""
        return (offset.get("size"), offset.get("modified")) == self


class FoundFile(NamedTuple):
    """A file to read: its path below the directory, its state, and its stored source offset.

    `offset` is None if there is no stored offset, or if the file has changed since the offset was stored.
    """

    order: Any
    name: str
    state: FileState
    offset: Mapping[str, Any] | None


def partition_of(name: str) -> dict[str, str]:
    """Return the source partition of a file. A name that is not valid Unicode is written as hexadecimal digits."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return {"file.bytes": os.fsencode(name).hex()}
    return {"file": name}


def printable(path: str) -> str:
    """Return `path` in a form for logs and error texts.

    Control characters are escaped. Bytes that are not UTF-8 are also escaped.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in path)


class FileSelection(NamedTuple):
    """Defines which files a task reads, and in which order."""

    directory: str
    patterns: Sequence[str]
    ignored_patterns: Sequence[str]
    recursive: bool
    excluded_directories: frozenset[str]
    """Real paths of directories that are not searched."""
    done_marker_suffix: str | None
    settle_ms: int
    order: str
    share: tuple[int, int]
    """The number of the task, and the number of tasks."""

    def has_name(self, name: str) -> bool:
        """Whether the configuration selects files with this name."""
        suffix = self.done_marker_suffix
        if suffix is not None and name.endswith(suffix):
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.patterns) and not any(
            fnmatchcase(name, pattern) for pattern in self.ignored_patterns
        )

    def has_share(self, path: str) -> bool:
        """Whether the file at this path belongs to this task's share of the files."""
        number, count = self.share
        return zlib.crc32(os.fsencode(path)) % count == number

    def is_settled(self, status: os.stat_result) -> bool:
        """Whether the file has not changed within the last settle.time.ms.

        The check uses the inode's change time, because a program that copies a file may set an old modification time.
        """
        return time.time_ns() - status.st_ctime_ns >= self.settle_ms * 1_000_000


class DirectorySearch:
    """One search of the directory."""

    def __init__(
        self,
        selection: FileSelection,
        read_offsets: Callable[[Sequence[str]], Sequence[Mapping[str, Any] | None]],
        is_in_progress: Callable[[str, FileState], bool],
        on_finished: Callable[[str, Mapping[str, Any]], None],
        on_unreadable: Callable[[str, OSError], None],
    ) -> None:
        """Prepare a search for the files in `selection`.

        `read_offsets` returns the stored source offset of each of the given paths, or None. `is_in_progress` returns
        True if the task has already read the file to the end, but the file's last offset is not stored yet. The search
        then skips the file. `on_finished` is called for each file that was read to the end according to its stored
        offset. `on_unreadable` is called for each subdirectory that cannot be listed.
        """
        self._selection = selection
        self._read_offsets = read_offsets
        self._is_in_progress = is_in_progress
        self._on_finished = on_finished
        self._on_unreadable = on_unreadable
        self._found: list[FoundFile] = []
        self.is_truncated = False
        """Whether the search found more files than it kept. Another search must then follow."""
        self._steps = self._run()

    def step(self, is_due: Callable[[], bool]) -> bool:
        """Continue the search until it is complete or `is_due` returns True. Return whether the search is complete.

        Raises OSError if the directory cannot be listed.
        """
        return all(not is_due() for _ in self._steps)

    def files(self) -> list[FoundFile]:
        """Return the found files in the configured order."""
        self._trim()
        return self._found

    def _run(self) -> Iterator[None]:
        chunk: list[tuple[str, os.stat_result]] = []
        for seen, (path, entry) in enumerate(self._entries(), 1):
            if entry is not None and (status := self._status(path, entry)) is not None:
                chunk.append((path, status))
            if len(chunk) >= _CHUNK:
                self._add(chunk)
                chunk.clear()
                yield
            elif not seen % _CHUNK:
                yield
        self._add(chunk)

    def _entries(self) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
        """Yield (path, entry) for each file that this task may read.

        Yield (path, None) for all other files and for subdirectories.
        """
        selection, directories = self._selection, [""]
        while directories:
            prefix = directories.pop()
            try:
                entries = os.scandir(os.path.join(selection.directory, prefix))
            except OSError as error:
                if not prefix:
                    raise
                if not isinstance(error, FileNotFoundError):  # otherwise, it was removed meanwhile
                    self._on_unreadable(prefix, error)
                continue
            with entries:
                for entry in entries:
                    path = prefix + entry.name
                    if selection.recursive and entry.is_dir(follow_symlinks=False):
                        if os.path.realpath(entry.path) not in selection.excluded_directories:
                            directories.append(path + "/")
                    elif selection.has_name(entry.name) and selection.has_share(path):
                        yield path, entry
                        continue
                    yield path, None

    def _status(self, path: str, entry: os.DirEntry[str]) -> os.stat_result | None:
        """Return the status of the entry, or None if it is not a file that may be read now."""
        selection = self._selection
        try:
            if not entry.is_file():
                return None
            status = entry.stat()
        except OSError:
            return None  # the file was removed meanwhile
        return status if selection.is_settled(status) else None

    def _has_marker(self, path: str) -> bool:
        suffix = self._selection.done_marker_suffix
        return suffix is None or os.path.lexists(os.path.join(self._selection.directory, path) + suffix)

    def _add(self, chunk: Sequence[tuple[str, os.stat_result]]) -> None:
        offsets = self._read_offsets([path for path, _ in chunk]) if chunk else ()
        for (path, status), offset in zip(chunk, offsets, strict=True):
            state = FileState.of(status)
            own = offset if offset is not None and state.is_state_in(offset) else None
            if own is not None and own.get("complete"):
                self._on_finished(path, own)
                continue
            if self._is_in_progress(path, state) or not self._has_marker(path):
                continue
            order = (state.modified, path) if self._selection.order == "modified" else path
            self._found.append(FoundFile(order, path, state, own))
        if len(self._found) >= 2 * CANDIDATES_MAX:
            self._trim()

    def _trim(self) -> None:
        self._found.sort(key=lambda found: found.order)
        if len(self._found) > CANDIDATES_MAX:
            del self._found[CANDIDATES_MAX:]
            self.is_truncated = True
