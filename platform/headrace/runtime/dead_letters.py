"""The context headers of a dead letter (KIP-298). Pure; `headrace.runtime.sink_errors` writes the letters."""

from __future__ import annotations

import traceback

from headrace.runtime.tolerance import Failure

_PREFIX = "__connect.errors."


def context_headers(
    failure: Failure, *, topic: str, partition: int, offset: int, connector: str, task: int
) -> list[tuple[str, bytes | None]]:
    """Where and why a record failed, as UTF-8 headers in Connect's names."""
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
