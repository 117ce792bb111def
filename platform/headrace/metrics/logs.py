"""Log lines with their connector in front (KIP-449), levels that change at run time (KIP-495), secrets masked.

    [2026-11-21 12:00:00,123] INFO [flights-source|task-0] 5,000 records sent (headrace.runtime.source_task)

A line, a trace included, leaves by one write to stderr, so lines of the worker and its children never mix.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterable
from contextvars import ContextVar

MASK = "[hidden]"
ROOT_NAMES = ("root", "")

connector_context: ContextVar[str] = ContextVar("connector_context", default="")
_process_context = ""

# Java's names on the left, as PUT /admin/loggers takes them.
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
_NAMES = {number: name for name, number in LEVELS.items()}


class Secrets:
    """Values that must not be seen; `mask` takes them out of a text."""

    LENGTH_MIN = 4  # shorter ones would mask half the log

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._pattern: re.Pattern[str] | None = None

    def add(self, values: Iterable[str]) -> None:
        """Hide these from now on."""
        new = {value for value in values if len(value) >= self.LENGTH_MIN} - self._values
        if new:
            self._values |= new
            self._pattern = re.compile("|".join(map(re.escape, sorted(self._values, key=len, reverse=True))))

    def mask(self, text: str) -> str:
        """The text without secrets."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)


secrets = Secrets()
_SECRET_KEY = re.compile(r"password|passphrase|secret|token|credential|jaas\.config|api\.?key", re.IGNORECASE)


def hide_secrets_of(properties: dict[str, str], secret_keys: Iterable[str] = ()) -> None:
    """Mask the values of keys that are declared secret, or are named as if they were."""
    declared = set(secret_keys)
    secrets.add(value for key, value in properties.items() if key in declared or _SECRET_KEY.search(key))


def set_process_context(connector: str, scope: str = "") -> None:
    """The context of every line of this process that has no nearer one."""
    global _process_context
    _process_context = context(connector, scope)


def context(connector: str, scope: str = "") -> str:
    """KIP-449's prefix: `[flights-source|task-0] `, `[flights-source|worker] `."""
    return f"[{connector}|{scope}] " if scope else f"[{connector}] "


class LineFormatter(logging.Formatter):
    """Kafka's line, with the context in front of the message."""

    def format(self, record: logging.LogRecord) -> str:
        """One text, the trace included."""
        seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        where = connector_context.get() or _process_context
        level = _NAMES.get(record.levelno, record.levelname)
        text = f"[{seconds},{int(record.msecs):03d}] {level} {where}{record.getMessage()} ({record.name})"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return secrets.mask(text)


class WholeLines(logging.Handler):
    """Writes each record by one system call."""

    def __init__(self, descriptor: int = 2) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write it; a closed stderr loses log lines, never the work."""
        try:
            os.write(self._descriptor, (self.format(record) + "\n").encode("utf-8", "replace"))
        except OSError:
            return
        except Exception:  # noqa: BLE001 - a bad format string must not stop a task
            self.handleError(record)


_changed_ms: dict[str, int] = {}


def set_up(level: int = logging.INFO) -> None:
    """Send all logging of this process to stderr."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(WholeLines())
    handler = root.handlers[0]
    handler.setFormatter(LineFormatter())
    root.setLevel(level)
    logging.captureWarnings(True)
    for name in ("asyncio", "uvicorn.access", "uvicorn.error", "py4j"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def set_level(name: str, level: str, now_ms: int) -> list[str]:
    """Set a logger and those below it; returns their names. Raises KeyError for an unknown level."""
    number = LEVELS[level.upper()]
    if name in ROOT_NAMES:
        affected = ["root", *_known_loggers()]
    else:
        affected = sorted({name, *(known for known in _known_loggers() if known.startswith(name + "."))})
    for logger in affected:
        logging.getLogger(None if logger == "root" else logger).setLevel(number)
        _changed_ms[logger] = now_ms
    return affected


def levels() -> dict[str, dict[str, object]]:
    """The loggers whose level has been set, in REST's shape."""
    named = {name: logging.getLogger(name) for name in _known_loggers() if logging.getLogger(name).level}
    return {name: _shape(name, logger) for name, logger in {"root": logging.getLogger(), **named}.items()}


def level_of(name: str) -> dict[str, object] | None:
    """The effective level of a logger, in REST's shape; None when nobody logs under that name."""
    if name in ROOT_NAMES:
        return _shape("root", logging.getLogger())
    known = _known_loggers()
    if name not in known and not any(logger.startswith(name + ".") for logger in known):
        return None
    return _shape(name, logging.getLogger(name))


def _shape(name: str, logger: logging.Logger) -> dict[str, object]:
    number = logger.getEffectiveLevel()
    return {"level": _NAMES.get(number, logging.getLevelName(number)), "last_modified": _changed_ms.get(name)}


def _known_loggers() -> list[str]:
    manager = logging.Logger.manager
    return sorted(name for name, item in manager.loggerDict.items() if isinstance(item, logging.Logger))
