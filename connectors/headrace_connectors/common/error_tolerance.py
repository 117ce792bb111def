"""Reads ``errors.tolerance`` for tasks that handle bad records themselves."""

from __future__ import annotations

from headrace.api.task import TaskContext


def tolerates_errors(context: TaskContext) -> bool:
    """Return whether the task may skip bad records, which is true if ``errors.tolerance`` is `all`."""
    return context.props.get("errors.tolerance", "none").lower() == "all"
