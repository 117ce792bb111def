"""Whether a connector tolerates bad records, for tasks that handle some of them before the platform sees them."""

from __future__ import annotations

from headrace.api.task import TaskContext


def tolerates_errors(context: TaskContext) -> bool:
    """Return whether ``errors.tolerance`` is `all`."""
    return context.props.get("errors.tolerance", "none").lower() == "all"
