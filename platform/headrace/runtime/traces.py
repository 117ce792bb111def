"""Creates the stack traces of failed connectors and tasks, and finds the exception in a stack trace. No I/O."""

from __future__ import annotations

import traceback

from headrace.metrics import logs

TRACE_LENGTH_MAX = 32_768
"""A status with a trace of this length fits into a record of the status topic, whichever characters it contains."""


def trace_of(error: BaseException) -> str:
    """Return the stack trace of an error with masked secrets. The middle of a long trace is omitted."""
    return _shorten(logs.secrets.mask("".join(traceback.format_exception(error))))


def message_of(error: BaseException) -> str:
    """Return the message of an error with masked secrets. The middle of a long message is omitted."""
    return _shorten(logs.secrets.mask(str(error)))


def _shorten(text: str) -> str:
    omitted = len(text) - TRACE_LENGTH_MAX
    if omitted <= 0:
        return text
    end = TRACE_LENGTH_MAX // 4
    return f"{text[: TRACE_LENGTH_MAX - end]}\n... {omitted} characters omitted ...\n{text[-end:]}"


def exception_line(trace: str) -> str:
    """Return the line with the type and message of the last exception in a trace.

    This is the first line after the frames. It is not always the last line of the trace, because a database's message
    may have several lines, and its last line may contain only a caret.
    """
    found = ""
    is_in_frames = False
    for line in trace.strip().splitlines():
        if line.startswith(("Traceback (most recent call last)", '  File "')):
            is_in_frames = True
        elif is_in_frames and line and not line[0].isspace():
            found, is_in_frames = line, False
    return found or trace.strip().partition("\n")[0]
