"""The context headers of DLQ records (KIP-298). No I/O; `headrace.runtime.sink_errors` writes the records."""

from __future__ import annotations

import traceback

from headrace.runtime.tolerance import Failure

_PREFIX = "__connect.errors."


def context_headers(
    failure: Failure, *, topic: str, partition: int, offset: int, connector: str, task: int
) -> list[tuple[str, bytes | None]]:
    """Return the UTF-8 headers, with Connect's names, that describe where and why a record failed."""
    error = failure.error
    fields = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "connector.name": connector,
        "task.id": str(task),
        "stage": failure.stage.value,
        "class.name": failure.class_name,
        "exception.class.name": f"{type(error).__module__}.{type(error).__qualname__}",
        "exception.message": str(error),
        "exception.stacktrace": "".join(traceback.format_exception(error)),
    }
    return [(_PREFIX + name, text.encode()) for name, text in fields.items()]
