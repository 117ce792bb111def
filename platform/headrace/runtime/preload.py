"""What the fork server imports before it forks: everything a task needs that starts no thread.

Plug-ins are not among it, until a connector is configured whose class names modules that its processes all import.
"""

from __future__ import annotations

import gc
import importlib
import logging
import threading

log = logging.getLogger(__name__)

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


def share(module: str) -> None:
    """Import a module that a plug-in names. One that cannot be imported is for the process that needs it to report."""
    threads = threading.active_count()
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in's module does what it likes
        log.debug("%s cannot be shared: %s: %s", module, type(error).__name__, error)
    if threading.active_count() != threads:
        log.error("Importing %s starts a thread: its plug-in must not name it in shared_modules", module)
    gc.collect()
    gc.freeze()
