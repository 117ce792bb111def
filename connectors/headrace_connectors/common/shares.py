"""Task configurations of sources whose tasks share the files or objects of one connector."""

from __future__ import annotations


def shared_task_configs(config: dict[str, str], old_key: str, max_tasks: int) -> list[dict[str, str]]:
    """Return the connector's configuration for each of `max_tasks` tasks.

    Tasks find their share with `context.task_number` and `context.task_count`. `old_key` contains both for workers of
    version 0.1.0, which run some of the tasks during a rolling upgrade.
    """
    return [config | {old_key: f"{number}/{max_tasks}"} for number in range(max_tasks)]
