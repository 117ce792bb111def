"""Sets log levels in all processes of a worker (KIP-495), and checks the names and levels in requests."""

from __future__ import annotations

import time
from collections.abc import Iterable

from headrace.herder.errors import NotFoundError
from headrace.metrics import logger_names, logs
from headrace.runtime.worker import Worker
from headrace.runtime.worker_config import WorkerConfig


def set_log_level(worker: Worker, config: WorkerConfig, logger: str, level: str) -> list[str]:
    """Set a log level in all processes of the worker. Return the loggers that have changed in this process.

    Raises KeyError for an unknown level, NotFoundError for an unknown logger.
    """
    now_ms = time.time_ns() // 1_000_000
    affected: set[str] = set()
    for name in names_of(config, logger, level):
        affected.update(logs.set_level(name, level, now_ms))
        worker.set_log_level(name, level, now_ms)
    return sorted(affected)


def names_of(config: WorkerConfig, logger: str, level: str) -> tuple[str, ...]:
    """Return the Python loggers for the name in a request. Raises KeyError for an unknown level, NotFoundError."""
    logs.check_level(level)
    directories: Iterable[str] = ()
    if plugin_path := config["plugin.path"]:
        from headrace.plugins.registry import plugin_directories  # a late import, because it would delay startup

        directories = plugin_directories(plugin_path)
    try:
        return logger_names.resolve(logger, directories)
    except logger_names.UnknownLoggerError as error:
        raise NotFoundError(str(error)) from None
