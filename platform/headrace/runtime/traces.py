"""Creates the stack traces of failed connectors, tasks and records.

A stack trace begins with the class and message of the exception and of its causes (`metrics/exception_summary.py`).
Then follows Python's traceback.

A task may create thousands of traces of failed records per second, and most of their frames are the same. For each
frame, `traceback` accesses the file system and parses the source line, so this module caches the texts of frames.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType
from typing import Any

from headrace.metrics import logs
from headrace.metrics.exception_summary import summary_lines, text_of

TRACE_LENGTH_MAX = 32_768
"""A status with a trace of this length fits into a record of the status topic, whichever characters it contains."""
SUMMARY_LENGTH_MAX = 4_096
"""The maximum length of the class and message of each exception before the traceback."""


def trace_of(error: BaseException) -> str:
    """Return the stack trace of an error with masked secrets: its class and message, its causes, and the traceback.

    The middle of a long message or trace is omitted.
    """
    summary = "\n".join(_shorten(logs.secrets.mask(line), SUMMARY_LENGTH_MAX) for line in summary_lines(error)) + "\n"
    details = _traceback(error)
    return _shorten(details if details == summary else summary + details)


def traceback_of(error: BaseException) -> str:
    """Return Python's traceback of an error with masked secrets. The middle of a long traceback is omitted."""
    return _shorten(_traceback(error))


def _traceback(error: BaseException) -> str:
    formatted = traceback.TracebackException(type(error), error, None, limit=0, compact=True)
    _set_frames(formatted, error)
    return logs.secrets.mask("".join(formatted.format()))


def message_of(error: BaseException) -> str:
    """Return the message of an error with masked secrets. The middle of a long message is omitted."""
    return masked_text(text_of(error))


def masked_text(text: str) -> str:
    """Return a message or stack trace with masked secrets. The middle of a long text is omitted."""
    return _shorten(logs.secrets.mask(text))


class _Frames(traceback.StackSummary):
    """The frames of one exception. Their texts are cached."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        """Return the text of a frame."""
        assert isinstance(frame_summary, _Frame)
        return frame_summary.text


class _Frame(traceback.FrameSummary):
    """A frame with its text. It references the code object, so that no other code object gets the same id."""

    def __init__(self, code: CodeType, summary: traceback.FrameSummary) -> None:
        super().__init__(summary.filename, summary.lineno, summary.name, lookup_line=False)
        self.code = code
        [self.text] = traceback.StackSummary.from_list([summary]).format()


_FRAMES_MAX = 1_000
_frames: dict[tuple[int, int], _Frame] = {}
"""Frames by the id of the code object and the index of the instruction."""


def _set_frames(formatted: traceback.TracebackException, error: BaseException) -> None:
    """Set the frames of an exception, of its causes and contexts, and of the exceptions in an exception group."""
    pending = [(formatted, error)]
    while pending:
        formatted, error = pending.pop()
        formatted.stack = _frames_of(error.__traceback__)
        if formatted.__cause__ is not None and error.__cause__ is not None:
            pending.append((formatted.__cause__, error.__cause__))
        if formatted.__context__ is not None and error.__context__ is not None:
            pending.append((formatted.__context__, error.__context__))
        if isinstance(error, BaseExceptionGroup):
            pending += zip(formatted.exceptions or [], error.exceptions, strict=True)


def _frames_of(trace: TracebackType | None) -> _Frames:
    frames = _Frames()
    while trace is not None:
        code = trace.tb_frame.f_code
        frame = _frames.get((id(code), trace.tb_lasti))
        if frame is None:
            if len(_frames) >= _FRAMES_MAX:
                _frames.clear()
            frame = _Frame(code, traceback.extract_tb(trace, limit=1)[0])
            _frames[id(code), trace.tb_lasti] = frame
        frames.append(frame)
        trace = trace.tb_next
    return frames


def _shorten(text: str, length_max: int = TRACE_LENGTH_MAX) -> str:
    omitted = len(text) - length_max
    if omitted <= 0:
        return text
    end = length_max // 4
    return f"{text[: length_max - end]}\n... {omitted} characters omitted ...\n{text[-end:]}"


def exception_line(trace: str) -> str:
    """Return the first line of a trace, which contains the class and message of the exception."""
    return trace.strip().partition("\n")[0]
