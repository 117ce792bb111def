"""Logging: connector contexts (KIP-449), log levels that can be changed at run time (KIP-495), and masked secrets.

    [2026-11-21 12:00:00,123] INFO [flights-source|task-0] 5,000 records sent (headrace.runtime.worker_source_task)

Each log record, including its stack trace, is written to stderr with one write, so that lines of the worker and of its
child processes never mix.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar

from headrace.data.value_replacer import ValueReplacer
from headrace.metrics.exception_summary import summary_lines
from headrace.metrics.logger_names import ROOT_NAMES, existing, listed, resolve

MASK = "[hidden]"
connector_context: ContextVar[str] = ContextVar("connector_context", default="")
_process_context = ""

# Python's log levels by the log4j names that PUT /admin/loggers accepts.
LEVELS = {
    "OFF": logging.CRITICAL + 10,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
    "ALL": 1,
}
_LEVEL_NAMES = {number: name for name, number in LEVELS.items()}


class Secrets:
    """The values that must not appear in logs or responses. `mask` replaces them in a string."""

    MIN_LENGTH = 4  # masking shorter values would make most of the log unreadable

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._replacer = ValueReplacer({})

    def add(self, values: Iterable[str]) -> None:
        """Mask these values from now on, also if they are escaped as in `repr`, JSON or a URL."""
        new = {value for value in values if len(value) >= self.MIN_LENGTH} - self._values
        if new:
            self._values |= new
            self._replacer = ValueReplacer(dict.fromkeys(self._values, MASK))

    def mask(self, text: str) -> str:
        """Return the string with all secrets replaced by `MASK`, unless a secret is a part of a longer word."""
        return self._replacer.replace(text)


secrets = Secrets()
_SECRET_KEY = re.compile(r"password|passphrase|secret|token|credential|jaas\.config|api\.?key", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{[^{}]*:[^{}]*\}")


def is_secret_key(key: str) -> bool:
    """Whether the name of a configuration key suggests that its value is a secret, for example a password."""
    return _SECRET_KEY.search(key) is not None


def mask_secrets_of(properties: Mapping[str, str], secret_keys: Iterable[str] = ()) -> None:
    """From now on, mask the values of keys that are in `secret_keys` or that `is_secret_key` recognizes.

    A value that is only a variable which could not be resolved is not a secret: errors must name the variable.
    """
    declared = set(secret_keys)
    secrets.add(
        value
        for key, value in properties.items()
        if (key in declared or is_secret_key(key)) and not _VARIABLE.fullmatch(value)
    )


def set_process_context(connector: str, scope: str = "") -> None:
    """Start this process's log lines with the prefix `[connector|scope]`, unless `connector_context` is set."""
    global _process_context
    _process_context = context(connector, scope)


def clear_process_context() -> None:
    """Remove the context that `set_process_context` has set."""
    global _process_context
    _process_context = ""


def context(connector: str, scope: str = "") -> str:
    """Return the prefix that KIP-449 adds to log messages, for example `[flights-source|task-0] `."""
    return f"[{connector}|{scope}] " if scope else f"[{connector}] "


class LineFormatter(logging.Formatter):
    """Formats log records as Kafka does, with the connector context before the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted log record. As in Kafka's log, a stack trace begins with the class and message."""
        seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        where = connector_context.get() or _process_context
        level = _LEVEL_NAMES.get(record.levelno, record.levelname)
        text = f"[{seconds},{int(record.msecs):03d}] {level} {where}{record.getMessage()} ({record.name})"
        if record.exc_info:
            if (error := record.exc_info[1]) is not None:
                text += "".join(f"\n{line}" for line in summary_lines(error))
            text += "\n" + self.formatException(record.exc_info)
        return secrets.mask(text)


class SingleWriteHandler(logging.Handler):
    """Writes each log record with one system call."""

    def __init__(self, descriptor: int = 2) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record. If stderr is closed, drop the record, because a lost log line must not fail a task."""
        try:
            os.write(self._descriptor, (self.format(record) + "\n").encode("utf-8", "replace"))
        except OSError:
            return
        except Exception:  # noqa: BLE001 - a bad format string must not stop a task
            self.handleError(record)


_changed_ms: dict[str, int] = {}


def configure_logging(level: int = logging.INFO) -> None:
    """Write the log records of this process that have at least the level `level` to stderr."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(SingleWriteHandler())
    handler = root.handlers[0]
    handler.setFormatter(LineFormatter())
    root.setLevel(level)
    logging.captureWarnings(True)
    for name in ("asyncio", "elastic_transport", "uvicorn.access", "uvicorn.error", "py4j", "pyiceberg"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def check_level(level: str) -> None:
    """Check that a log level exists. Raises KeyError if it does not."""
    LEVELS[level.upper()]


def set_level(name: str, level: str, now_ms: int) -> list[str]:
    """Set the level of a logger and its child loggers; return their names. Raises KeyError for an unknown level.

    `now_ms` is stored as the time of the change. For the root logger, only its own level is set: loggers with a level
    of their own keep it, and all others inherit the root logger's level.
    """
    number = LEVELS[level.upper()]
    if name in ROOT_NAMES:
        affected = ["root"]
    else:
        affected = sorted({name, *(known for known in existing() if known.startswith(name + "."))})
    for logger in affected:
        logging.getLogger(None if logger == "root" else logger).setLevel(number)
        _changed_ms[logger] = now_ms
    return affected


def levels() -> dict[str, dict[str, object]]:
    """Return the effective levels of headrace's loggers, and of others that have a level, as the REST API does."""
    with_level = {name for name in existing() if logging.getLogger(name).level}
    named = {name: logging.getLogger(name) for name in sorted(with_level.union(listed()))}
    return {name: _level_as_json(name, logger) for name, logger in {"root": logging.getLogger(), **named}.items()}


def level_of(name: str) -> dict[str, object]:
    """Return the effective level of a logger in the format of the REST API. Raises UnknownLoggerError.

    For a name of Apache Kafka, return the level of the first logger that corresponds to it.
    """
    first = resolve(name)[0]
    return _level_as_json(first, logging.getLogger(None if first == "root" else first))


def _level_as_json(name: str, logger: logging.Logger) -> dict[str, object]:
    number = logger.getEffectiveLevel()
    return {"level": _LEVEL_NAMES.get(number, logging.getLevelName(number)), "last_modified": _changed_ms.get(name)}
