"""Tests of the connector context in log lines, of log levels, and of the masking of secrets."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import pytest

from headrace.metrics import logs
from headrace.metrics.logger_names import UnknownLoggerError


@pytest.fixture(autouse=True)
def fresh_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "secrets", logs.Secrets())


@pytest.fixture
def logger() -> Iterator[str]:
    name = "test_logs.tree"
    logging.getLogger(name + ".leaf")
    logging.getLogger(name)
    yield name
    for each in (name, name + ".leaf"):
        logging.getLogger(each).setLevel(logging.NOTSET)


def line(message: str, *arguments: object, exc_info: bool = False) -> str:
    info = sys.exc_info() if exc_info else None
    return logs.LineFormatter().format(
        logging.LogRecord("a.b", logging.WARNING, "f.py", 1, message, arguments, info)  # type: ignore[arg-type]
    )


def test_log_line_contains_the_connector_and_task_of_its_context() -> None:
    token = logs.connector_context.set(logs.context("flights-source", "task-0"))
    try:
        text = line("%d records", 5)
    finally:
        logs.connector_context.reset(token)
    assert text.endswith("] WARN [flights-source|task-0] 5 records (a.b)")
    assert "|" not in line("x")


def test_secrets_are_masked_in_log_messages_and_stack_traces() -> None:
    logs.mask_secrets_of({"connection.password": "hunter22", "user": "scott", "p": "tiger-1"}, ["p"])
    try:
        raise ValueError("cannot log in with hunter22")
    except ValueError:
        text = line("%s %s", "scott", "tiger-1", exc_info=True)
    assert "hunter22" not in text
    assert "tiger-1" not in text
    assert "scott [hidden]" in text


def test_stack_trace_in_a_log_line_begins_with_the_class_and_message_of_the_exception() -> None:
    try:
        raise ValueError("cannot insert")
    except ValueError:
        text = line("Task a-0: failed", exc_info=True)
    assert text.splitlines()[1:3] == ["ValueError: cannot insert", "Traceback (most recent call last):"]


def test_escaped_forms_of_a_secret_are_masked() -> None:
    secret = 'p4ss"w\\\u00f6r d+/%'
    logs.secrets.add([secret])
    forms = [
        secret,
        repr(secret),
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret),
        quote_plus(secret),
    ]
    for form in forms:
        masked = logs.secrets.mask(f"user=scott&password={form}&x=1")
        assert masked.strip("'\"") in {f"user=scott&password={q}[hidden]{q}&x=1" for q in ("", "'", '"')}


def test_secret_is_not_masked_inside_a_longer_word() -> None:
    logs.secrets.add(["postgres", "secret"])
    text = "jdbc:postgresql://db/ user=%s: see secrets/db.properties"
    assert line(text, "postgres").endswith(" user=[hidden]: see secrets/db.properties (a.b)")
    assert "jdbc:postgresql://db/" in line(text, "postgres")


def test_short_secrets_are_not_masked_in_log_lines() -> None:
    logs.secrets.add(["a", ""])
    assert logs.secrets.mask("banana") == "banana"


def test_level_of_a_logger_also_applies_to_its_child_loggers(logger: str) -> None:
    affected = logs.set_level(logger, "debug", 17)
    assert affected == [logger, logger + ".leaf"]
    assert logging.getLogger(logger + ".leaf").isEnabledFor(logging.DEBUG)
    assert logs.level_of(logger) == {"level": "DEBUG", "last_modified": 17}
    assert logs.levels()[logger]["level"] == "DEBUG"
    assert logs.set_level(logger, "TRACE", 18)
    assert logs.level_of(logger) == {"level": "TRACE", "last_modified": 18}


def test_level_of_the_root_logger_is_inherited_by_loggers_without_a_level(logger: str) -> None:
    before = logging.getLogger().level
    logging.getLogger(logger + ".leaf").setLevel(logging.ERROR)
    try:
        assert logs.set_level("root", "DEBUG", 19) == ["root"]
        assert logging.getLogger(logger).getEffectiveLevel() == logging.DEBUG
        assert logging.getLogger(logger + ".leaf").getEffectiveLevel() == logging.ERROR
    finally:
        logging.getLogger().setLevel(before)


def test_unknown_log_level_is_rejected_and_unknown_logger_has_no_level() -> None:
    with pytest.raises(KeyError):
        logs.set_level("x", "LOUD", 1)
    with pytest.raises(UnknownLoggerError, match=r"Logger no.such.logger not found"):
        logs.level_of("no.such.logger")
    assert "level" in logs.level_of("root")


def test_list_of_levels_contains_the_root_logger_and_headraces_loggers_even_if_no_level_was_set() -> None:
    listed = logs.levels()
    assert {"root", "headrace", "headrace.runtime.worker_source_task", "headrace_connectors.jdbc"} <= listed.keys()
    assert listed["headrace.runtime"] == {"level": listed["root"]["level"], "last_modified": None}


def test_access_to_an_iceberg_table_is_not_logged() -> None:
    pytest.importorskip("pyiceberg")
    program = (
        "from headrace.metrics.logs import configure_logging; configure_logging();"
        "from pyiceberg.io import load_file_io; load_file_io({'py-io-impl': 'pyiceberg.io.pyarrow.PyArrowFileIO'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
