"""Tests of the configurations that the JDBC source and the JDBC sink accept and reject."""

from __future__ import annotations

import pytest

from headrace.api.config import Config
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig

SOURCE = {"connection.url": "jdbc:postgresql://localhost/shop", "mode": "bulk", "topic.prefix": "shop-"}
SINK = {"connection.url": "jdbc:postgresql://localhost/shop"}


def source_errors(**props: str) -> dict[str, str]:
    """Return the errors of a source's configuration by key; ``__`` in a keyword stands for a dot."""
    return _errors(JdbcSourceConfig, SOURCE, props)


def sink_errors(**props: str) -> dict[str, str]:
    """Return the errors of a sink's configuration by key; ``__`` in a keyword stands for a dot."""
    return _errors(JdbcSinkConfig, SINK, props)


def _errors(model: type[Config], base: dict[str, str], props: dict[str, str]) -> dict[str, str]:
    settings = base | {name.replace("__", "."): value for name, value in props.items()}
    return {error.key: str(error) for error in model.errors(settings)}


class TestTimeZones:
    @pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "GMT+2", "+02:00", "PST"])
    def test_names_that_java_accepts_are_valid(self, name: str) -> None:
        assert source_errors(db__timezone=name) == sink_errors(db__timezone=name) == {}

    def test_unknown_name_is_an_error_of_the_configuration(self) -> None:
        for errors in (source_errors(db__timezone="Mars/X"), sink_errors(db__timezone="Mars/X")):
            assert "unknown time zone 'Mars/X'" in errors["db.timezone"]
