"""Tests that `headrace validate` reports errors in client overrides and table names together with all other errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import headrace

SOURCE = {"name": "lines", "connector.class": "FileStreamSource", "topic": "lines", "file": "lines.txt"}
SINK = {"name": "lines", "connector.class": "FileStreamSink", "topics": "lines", "file": "lines.txt"}
WORKER = {"key.converter": "JsonConverter", "value.converter": "JsonConverter"}


def write(path: Path, properties: dict[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def validate(directory: Path, connector: dict[str, str], worker: dict[str, str] | None = None) -> tuple[int, list[str]]:
    arguments = ["validate", str(write(directory / "connector.properties", connector))]
    if worker is not None:
        arguments += ["--worker", str(write(directory / "worker.properties", {**WORKER, **worker}))]
    result = CliRunner().invoke(headrace, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, [line.removeprefix(f"{arguments[1]}: ") for line in result.output.splitlines()]


def test_validate_command_reports_all_errors_of_a_configuration_together(tmp_path: Path) -> None:
    """The errors concern client overrides, a table name and other configuration keys."""
    with sqlite3.connect(tmp_path / "shop.sqlite") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    code, lines = validate(
        tmp_path,
        {
            "name": "shop",
            "connector.class": "JdbcSource",
            "connection.url": f"jdbc:sqlite:{tmp_path}/shop.sqlite",
            "mode": "bulk",
            "topic.prefix": "shop-",
            "table.whitelist": "ordres",
            "tasks.max": "0",
            "poll.interval.ms": "soon",
            "producer.override.linger.ms": "soon",
            "producer.override.acks": "2",
        },
    )
    assert code == 1
    errors = "\n".join(lines)
    assert "tasks.max" in errors
    assert "poll.interval.ms" in errors
    assert "ordres" in errors
    assert "producer.override.linger.ms=soon: expected a whole number" in errors
    assert "producer.override.acks=2" in errors


def test_client_override_that_the_workers_policy_refuses_is_an_error(tmp_path: Path) -> None:
    connector = {**SOURCE, "producer.override.linger.ms": "10"}
    assert validate(tmp_path, connector) == (0, ["lines is valid"])
    code, lines = validate(tmp_path, connector, {"connector.client.config.override.policy": "None"})
    assert code == 1
    assert "producer.override.linger.ms" in lines[0]
    assert "The 'None' policy does not allow 'linger.ms' to be overridden" in lines[0]
    assert len(lines) == 1


def test_unknown_client_override_policy_of_the_worker_is_an_error(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, SOURCE, {"connector.client.config.override.policy": "Some"})
    assert code == 1
    assert "connector.client.config.override.policy" in lines[-1]


@pytest.mark.parametrize(
    ("connector", "override", "error"),
    [
        (SINK, {"consumer.override.max.poll.records": "0"}, "consumer.override.max.poll.records=0: expected 1.."),
        (SOURCE, {"admin.override.request.timeout.ms": "-1"}, "admin.override.request.timeout.ms=-1: expected "),
        (
            SOURCE,
            {"producer.override.enable.idempotence": "true", "producer.override.acks": "1"},
            "producer.override.enable.idempotence=true: acks must be all",
        ),
        (
            {**SINK, "errors.deadletterqueue.topic.name": "dlq"},
            {"producer.override.acks": "maybe"},
            "producer.override.acks=maybe: expected",
        ),
    ],
)
def test_client_override_with_an_invalid_value_is_an_error(
    connector: dict[str, str], override: dict[str, str], error: str, tmp_path: Path
) -> None:
    code, lines = validate(tmp_path, {**connector, **override})
    assert code == 1
    assert [line for line in lines if line.startswith(error)], lines


def test_invalid_override_for_a_client_that_the_connector_does_not_use_is_not_an_error(tmp_path: Path) -> None:
    assert validate(tmp_path, {**SINK, "producer.override.acks": "maybe"})[0] == 0


def test_client_override_with_an_unknown_key_causes_a_warning(tmp_path: Path) -> None:
    code, lines = validate(tmp_path, {**SOURCE, "producer.override.lingr.ms": "5"})
    assert (code, lines) == (
        0,
        [
            "warning: producer.override.lingr.ms: ignored; unknown producer key (did you mean linger.ms?)",
            "lines is valid",
        ],
    )


PLUGIN = """
import logging

from headrace.api import SourceConnector, SourceTask


class WarningTask(SourceTask):
    pass


class WarningSource(SourceConnector):
    task_class = WarningTask

    def validate(self, props, values):
        logging.getLogger("acme").warning("The server %s is old", props["server"])

    def warnings(self, config):
        yield "The server has no index"
"""


def test_warnings_of_the_connector_and_warnings_that_it_logs_are_printed_once(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "acme_warnings.py").write_text(PLUGIN)
    connector = {"name": "c", "connector.class": "WarningSource", "server": "s1"}
    assert validate(tmp_path, connector, {"plugin.path": str(plugins)}) == (
        0,
        [
            "warning: The server s1 is old",
            "warning: Unknown configuration key server is ignored",
            "warning: The server has no index",
            "c is valid",
        ],
    )


PROVIDER = {"config.providers": "env", "config.providers.env.class": "EnvVarConfigProvider"}


def test_unresolved_variable_of_a_secret_key_is_named_in_the_error(tmp_path: Path) -> None:
    connector = {**SINK, "tasks.max": "none", "db.password": "${env:HEADRACE_TEST_UNSET}"}
    code, lines = validate(tmp_path, connector, PROVIDER)
    assert code == 1
    assert any("db.password: variable ${env:HEADRACE_TEST_UNSET} is not resolved" in line for line in lines), lines


def test_error_of_a_worker_file_names_variables_and_never_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_VALUE", "hunter22")
    monkeypatch.delenv("HEADRACE_TEST_UNSET", raising=False)
    worker = {
        **WORKER,
        **PROVIDER,
        "bootstrap.servers": "localhost:1",
        "offset.flush.interval.ms": "${env:HEADRACE_TEST_VALUE}",
        "task.shutdown.graceful.timeout.ms": "${env:HEADRACE_TEST_UNSET}",
    }
    result = CliRunner().invoke(headrace, ["validate", str(write(tmp_path / "worker.properties", worker))])
    assert result.exit_code == 1
    assert "hunter22" not in result.output
    assert "Invalid value ${env:HEADRACE_TEST_VALUE} for configuration offset.flush.interval.ms" in result.output
    assert (
        "task.shutdown.graceful.timeout.ms: variable ${env:HEADRACE_TEST_UNSET} is not resolved: config provider env "
        "has no value for key HEADRACE_TEST_UNSET"
    ) in result.output
