"""Finds the message of a task's Python exception in an error of Spark."""

from __future__ import annotations

import re

from headrace_connectors.lakehouse.spark.jobs import JobFailedError

_TRACEBACK = "Traceback (most recent call last):"
_END = re.compile(r"\n\s*\n?\s+at [\w.$/<>]+\(|\n\nDriver stacktrace:|\n\nJVM stacktrace:|\n *PYTHONPATH was:")
_EXCEPTION = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)
_FAILURE = re.compile(r"most recent failure: (?P<reason>[^\n]*)")
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\s*$")


def job_error(error: BaseException) -> JobFailedError:
    """Return the error for a job that Spark has ended with `error`."""
    text = str(error)
    found = python_exception(text)
    if found is not None:
        name, message = found
        return JobFailedError(message or name, name.rpartition(".")[2])
    failure = _FAILURE.search(text)
    return JobFailedError(failure["reason"].strip() if failure is not None else text.strip())


def python_exception(text: str) -> tuple[str, str] | None:
    """Return the class and the message of the last Python traceback in `text`, or None if it has no traceback."""
    before, found, rest = text.rpartition(_TRACEBACK)
    if not found:
        return None
    indent = before[before.rfind("\n") + 1 :]  # Spark indents the output of a Python process that did not start
    lines = _SQL_STATE.sub("", _END.split(rest, maxsplit=1)[0]).splitlines()
    if not indent.strip():
        lines = [line.removeprefix(indent) for line in lines]
    while lines and (not lines[0] or lines[0].startswith(" ")):
        lines.pop(0)  # the frames
    match = _EXCEPTION.match("\n".join(lines).rstrip())
    return (match["name"], match["message"] or "") if match is not None else None
