"""Tests of the logger names that requests may contain."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from headrace.metrics import logger_names
from headrace.metrics.logger_names import APACHE_LOGGERS, UnknownLoggerError, resolve


@pytest.mark.parametrize("name", sorted({name for names in APACHE_LOGGERS.values() for name in names}))
def test_loggers_of_apache_kafka_correspond_to_modules_that_exist(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


def test_logger_of_apache_kafka_is_replaced_by_the_loggers_with_its_task() -> None:
    names = resolve("org.apache.kafka.connect.runtime.WorkerSourceTask")
    assert names == ("headrace.runtime.worker_source_task", "headrace.runtime.source_task_core")


def test_root_logger_is_found_in_any_case() -> None:
    assert resolve("ROOT") == resolve("root") == ("root",)


def test_name_of_a_module_is_accepted_and_the_module_is_not_imported() -> None:
    sys.modules.pop("wsgiref.simple_server", None)
    assert resolve("wsgiref.simple_server") == ("wsgiref.simple_server",)
    assert "wsgiref.simple_server" not in sys.modules


def test_name_of_a_module_in_a_directory_of_plugin_path_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "own_connector").mkdir()
    (tmp_path / "own_connector" / "__init__.py").touch()
    (tmp_path / "own_connector" / "source.py").touch()
    assert resolve("own_connector.source", [str(tmp_path)]) == ("own_connector.source",)
    with pytest.raises(UnknownLoggerError):
        resolve("own_connector.source")


@pytest.mark.parametrize(
    "name",
    [
        "headrace.tests",
        "headrace.metrics.logs.Secrets",
        "org.apache.kafka.connect.runtime.Missing",
        "a..b",
        "../x",
        "x y",
    ],
)
def test_name_that_is_neither_a_logger_nor_a_module_is_rejected(name: str) -> None:
    with pytest.raises(UnknownLoggerError, match="not found"):
        resolve(name)


def test_error_for_an_unknown_class_of_apache_kafka_names_the_nearest_known_logger() -> None:
    with pytest.raises(UnknownLoggerError, match=r"org.apache.kafka.connect.runtime.errors is a known name"):
        resolve("org.apache.kafka.connect.runtime.errors.ErrorHandlingMetrics")


def test_listed_loggers_include_packages_that_this_process_has_not_imported() -> None:
    assert {"headrace_connectors.s3", "headrace_transforms.predicates", "headrace.stores"} <= set(logger_names.listed())


def test_documentation_lists_the_loggers_of_apache_kafka() -> None:
    text = (Path(__file__).parents[4] / "docs/logging.md").read_text()
    for name, names in APACHE_LOGGERS.items():
        assert f"| `{name}` | {', '.join(f'`{each}`' for each in names)} |" in text
