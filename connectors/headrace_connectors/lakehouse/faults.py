"""What Spark, delta-rs and file systems raise -> one line that names the path and says what to do. Pure."""

from __future__ import annotations

import errno
import re
import signal
from pathlib import Path

from headrace.api.errors import ConnectError

_LINES_SHOWN = 12
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_BACKTRACE = re.compile(r"\s*\n +0: .*", re.DOTALL)
_UNSUPPORTED = re.compile(r"Unsupported table features required: \[(.*)\]|Unsupported: (.*)")
_FEATURE = re.compile(r'Unknown\("([^"]*)"\)')


def reason_of(error: BaseException) -> str:
    """Return an error's text without the backtrace that delta-rs puts behind it."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _BACKTRACE.sub("", str(error)).strip()


def is_disk_full(text: str) -> bool:
    """Tell whether some text, Spark's stack traces included, speaks of a full disk."""
    return _NO_SPACE.search(text) is not None


def disk_full(path: Path, key: str) -> ConnectError:
    """The error for a disk without room."""
    return ConnectError(
        f"no space left on the disk of {path} ({key}): nothing of this batch was added; make room and restart the task"
    )


def table_fault(directory: Path, doing: str, error: BaseException) -> ConnectError:
    """Return the error for a table that cannot be read or written (`doing`)."""
    text = reason_of(error)
    if is_disk_full(text) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return disk_full(directory, "lakehouse.path")
    unsupported = unsupported_features(text)
    if unsupported is not None:
        return ConnectError(
            f"table {directory} cannot be {doing}: another tool gave it what this connector's Delta library does not"
            f" know ({unsupported}); drop the feature there, or name another table (lakehouse.table.name.format)"
        )
    return ConnectError(f"table {directory} cannot be {doing}: {text}")


def unsupported_features(text: str) -> str | None:
    """Return the Delta features or versions that an error of delta-rs calls unsupported, None when it is another."""
    found = _UNSUPPORTED.search(text)
    return _FEATURE.sub(r"\1", found[1] or found[2]).strip() if found is not None else None


def jvm_death(status: int, output: str) -> ConnectError:
    """The error for a JVM that ended while the task worked; `output` is what it wrote last."""
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
    hint = ""
    if status == -signal.SIGKILL:
        hint = (
            " (where nobody killed it, the machine ran out of memory: lower spark.driver.memory,"
            " lakehouse.batch.bytes.max or lakehouse.batch.rows.max)"
        )
    elif "OutOfMemoryError" in output:
        hint = " (out of memory: raise spark.driver.memory, or lower lakehouse.batch.bytes.max)"
    lines = "\n".join(output.splitlines()[-_LINES_SHOWN:])
    last = f"; its last lines:\n{lines}" if lines else ""
    return ConnectError(
        f"Spark's JVM {how}{hint}; what was committed is in the tables, and a restarted task goes on from there{last}"
    )
