"""Moves or deletes the files that a task has read. A file that was changed after it was read stays in place."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import tempfile

from headrace.api.errors import ConnectError
from headrace_connectors.file.directory_search import FileState, printable

logger = logging.getLogger(__name__)


class _ChangedAfterReadError(Exception):
    """Another program has changed the file after it was read."""


class FinishedFiles:
    """Moves, deletes or keeps the files that were read, as configured by finished.action and error.directory."""

    def __init__(
        self, directory: str, action: str, finished: str | None, errors: str | None, marker_suffix: str | None
    ) -> None:
        self._directory = directory
        self._action = action
        self._finished = finished
        self._errors = errors
        self._marker_suffix = marker_suffix

    def needs_action(self, error_count: int) -> bool:
        """Whether a file with this number of invalid records is moved or deleted."""
        return self._action != "keep" or bool(error_count and self._errors)

    def finish(self, name: str, state: FileState, error_count: int) -> bool:
        """Move or delete a file and its marker file, if configured. Return whether the file is no longer in place.

        `error_count` is the number of invalid records in the file. A file with invalid records is moved to
        error.directory if this key is set. A file that no longer has the state `state` was changed after it was read,
        and stays in place.

        A marker file (`done.marker.suffix`) shows that a file is complete. It is moved or deleted before the file.
        Otherwise, a crash could leave the marker file behind, and a later file with the same name would be read too
        early. Raises ConnectError.
        """
        if not self.needs_action(error_count):
            return False
        target = self._errors if error_count and self._errors else self._finished if self._action == "move" else None
        path = os.path.join(self._directory, name)
        try:
            _check_unchanged(path, state)
            if self._marker_suffix is not None and os.path.lexists(path + self._marker_suffix):
                self._remove(path + self._marker_suffix, name + self._marker_suffix, target)
            self._remove(path, name, target, state)
        except _ChangedAfterReadError:
            logger.warning(
                "File %s was changed after it was read: leaving it in place and reading it again", printable(path)
            )
            return False
        except FileNotFoundError as error:
            if os.path.lexists(path):
                raise ConnectError(f"File {printable(path)} cannot be moved to {target}: {error.strerror}") from error
            logger.info("File %s was read, and then another program removed it", printable(path))
        except OSError as error:
            what = f"deleted (finished.action={self._action})" if target is None else f"moved to {target}"
            raise ConnectError(
                f"File {printable(path)} was read, but cannot be {what}: {error.strerror or error}. Correct the "
                "permissions, or set finished.action=keep, and restart the task"
            ) from error
        return True

    def _remove(self, path: str, name: str, target: str | None, state: FileState | None = None) -> None:
        if target is None:
            os.unlink(path)
            logger.debug("File %s was read and deleted", printable(path))
            return
        destination = os.path.join(target, name)
        os.makedirs(os.path.dirname(destination), exist_ok=True)
        destination = _unused(destination)
        try:
            os.rename(path, destination)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_to_other_file_system(path, destination, state)
        logger.debug("File %s was read and moved to %s", printable(path), printable(destination))


def check_directory(path: str) -> None:
    """Check that files can be moved to a directory, or that the directory can be created. Raises OSError.

    If the directory is missing, the check creates a temporary directory in its nearest existing parent and removes it.
    A task may be moving files at the same time, so the check never creates or removes the directory itself.
    """
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        parent = path
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent) or "."
        os.rmdir(tempfile.mkdtemp(prefix=".headrace-", dir=parent))
        return
    if not is_directory:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _unused(path: str) -> str:
    """Return the path, or the path with a number if the file exists, so that no file is overwritten."""
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = f"{path}.{number}"
    return candidate


def _check_unchanged(path: str, state: FileState) -> None:
    if FileState.of(os.stat(path)) != state:
        raise _ChangedAfterReadError


def _move_to_other_file_system(path: str, destination: str, state: FileState | None) -> None:
    """Copy a file to another file system, flush the copy to disk, and delete the original file.

    If `state` is not None, the function compares the original file with this state before the deletion. If the original
    file has changed, the function deletes the copy, keeps the original file, and raises an exception.
    """
    partial = f"{destination}.part"
    shutil.copy2(path, partial)
    with open(partial, "rb") as copy:
        os.fsync(copy.fileno())
    if state is not None:
        try:
            _check_unchanged(path, state)
        except (_ChangedAfterReadError, OSError):
            os.unlink(partial)
            raise
    os.rename(partial, destination)
    os.unlink(path)
