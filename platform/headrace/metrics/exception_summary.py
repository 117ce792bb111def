"""The lines with which a stack trace begins: the class and message of the exception, and those of its causes.

Java's stack traces begin with the class and message, and user interfaces show only the first lines. Python's tracebacks
end with them. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

_CAUSES_MAX = 10


def summary_lines(error: BaseException) -> Iterator[str]:
    """Yield the class and message of an exception with its notes, and then the class and message of each cause."""
    yield "\n".join([_class_and_message(error), *map(str, getattr(error, "__notes__", ()))])
    seen = [error]
    while len(seen) <= _CAUSES_MAX:
        cause, relation = error.__cause__, "Caused by"
        if cause is None and not error.__suppress_context__:
            cause, relation = error.__context__, "Raised while handling"
        if cause is None or any(cause is each for each in seen):
            return
        yield f"{relation}: {_class_and_message(cause)}"
        seen.append(cause)
        error = cause


def text_of(error: BaseException) -> str:
    """Return the message of an exception. If its `__str__` fails, return the text that Python's tracebacks contain."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a plug-in's code may raise anything
        return "<exception str() failed>"


def _class_and_message(error: BaseException) -> str:
    """Return the class and message of an exception in the format of Python's tracebacks."""
    kind, message = type(error), text_of(error).strip()
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"{name}: {message}" if message else name
