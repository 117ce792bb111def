"""Converts errors of Spark, delta-rs and the file system to ConnectErrors with the path and a suggested fix.

This module does no I/O.
"""

from __future__ import annotations

import errno
import re
import signal
from pathlib import Path

from headrace.api.errors import ConnectError

_LINES_SHOWN = 12
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_BACKTRACE = re.compile(r"\s*\n +0: .*", re.DOTALL)
_STYLED = re.compile(r"\s*\x1b\[\d*m↳\x1b\[\d*m\s*|\x1b\[\d*m")
_UNSUPPORTED = re.compile(r"Unsupported table features required: \[(.*)\]|Unsupported: (.*)")
_FEATURE = re.compile(r'Unknown\("([^"]*)"\)')


class UnsupportedTableError(ConnectError):
    """The table has features that the sink does not support."""


def error_text(error: BaseException) -> str:
    """Return the message of an error, without the colors and the backtrace that delta-rs adds."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _STYLED.sub(": ", _BACKTRACE.sub("", str(error))).strip()


def is_disk_full(text: str) -> bool:
    """Whether an error message or a Spark stack trace reports a full disk."""
    return _NO_SPACE.search(text) is not None


def disk_full_error(path: Path | str, key: str) -> ConnectError:
    """Return the error for a full disk. `key` is the configuration key that sets `path`."""
    return ConnectError(
        f"no space left on the disk of {path} ({key}), the current batch was not committed;"
        " free some space and restart the task"
    )


def table_error(directory: Path | str, action: str, error: BaseException) -> ConnectError:
    """Return the error for a table that cannot be read or written. `action` is "read" or "written"."""
    text = error_text(error)
    if is_disk_full(text) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return disk_full_error(directory, "lakehouse.path")
    unsupported = unsupported_features(text)
    if unsupported is not None:
        return unsupported_features_error(directory, action, unsupported)
    return ConnectError(f"table {directory} cannot be {action}: {text}")


def unsupported_features_error(directory: Path | str, action: str, features: str) -> UnsupportedTableError:
    """Return the error for a table with Delta features that are not supported."""
    return UnsupportedTableError(
        f"table {directory} cannot be {action}: it has Delta features that this connector's Delta library does not"
        f" support ({features}); drop these features, or set another table name (lakehouse.table.name.format)"
    )


def unsupported_features(text: str) -> str | None:
    """Return the Delta features or versions that delta-rs reports as unsupported, or None for other errors."""
    found = _UNSUPPORTED.search(text)
    return _FEATURE.sub(r"\1", found[1] or found[2]).strip() if found is not None else None


def jvm_exit_error(status: int, output: str) -> ConnectError:
    """Return the error for a JVM that exited while the task was running. `output` has the JVM's last output lines."""
    event = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
    hint = ""
    if status == -signal.SIGKILL:
        hint = (
            " (probably because the machine ran out of memory: lower spark.driver.memory,"
            " lakehouse.batch.bytes.max or lakehouse.batch.rows.max)"
        )
    elif "OutOfMemoryError" in output:
        hint = " (out of memory: increase spark.driver.memory, or lower lakehouse.batch.bytes.max)"
    lines = "\n".join(output.splitlines()[-_LINES_SHOWN:])
    last = f"; its last lines:\n{lines}" if lines else ""
    return ConnectError(
        f"Spark's JVM {event}{hint}; committed batches are in the tables, and a restarted task resumes after them{last}"
    )
