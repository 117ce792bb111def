"""Finds the exception in the text of a stack trace. No I/O."""

from __future__ import annotations


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
