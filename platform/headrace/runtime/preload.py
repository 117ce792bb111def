"""What the fork server imports before it forks: everything a task needs that starts no thread.

Plug-ins are not among it: their drivers are imported in the process that runs them.
"""

from __future__ import annotations

import importlib
import threading

_MODULES = (
    "asyncio",
    "uvloop",
    "msgspec",
    "regex",
    "headrace.metrics.logs",
    "headrace.runtime.host",
    "headrace.runtime.source_task",
    "headrace.runtime.sink_task",
    "headrace.runtime.self_reading_task",
    "headrace.runtime.connector_unit",
    "headrace.converters.json_converter",
    "headrace.converters.string_converter",
    "headrace_broker.client.writer",
    "headrace_broker.client.reader",
    "headrace_broker.client.admin",
)


def load() -> None:
    """Import them. Raises RuntimeError when one has started a thread: forking would then be unsafe."""
    for name in _MODULES:
        importlib.import_module(name)
    if threading.active_count() != 1:
        names = [thread.name for thread in threading.enumerate()]
        raise RuntimeError(f"a preloaded module started threads: {names}")
