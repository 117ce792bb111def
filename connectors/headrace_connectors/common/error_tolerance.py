"""Tells tasks that handle bad records themselves whether they may skip a record."""

from __future__ import annotations

from headrace.api.task import TaskContext


def tolerates_errors(context: TaskContext) -> bool:
    """Return whether ``errors.tolerance`` is `all`."""
    return context.props.get("errors.tolerance", "none").lower() == "all"
