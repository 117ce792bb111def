"""The base class of the conformance suites for all kinds of connectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.api.errors import ConfigErrors
from headrace.testing.task_configs import connector_class_of

STOP_TIMEOUT_S = 5.0
"""The default of task.shutdown.graceful.timeout.ms."""

HOSTILE_TOPICS = ("a.b-c_d", "UPPER", "x" * 249, "...1", "select")
"""Names that Kafka permits and that external systems may not expect."""


class Conformance:
    """The attributes of a connector under test, and the test of its configuration.

    The class is not abstract, because pytest silently ignores abstract test classes.
    """

    plugin: ClassVar[type[Any]]
    """The connector class, task class or decorated function."""

    directory: Path
    """A new directory for each test."""

    @pytest.fixture(autouse=True)
    def _set_directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    def config(self) -> dict[str, str]:
        """Return a valid configuration. The suite calls this method once in each test, before all other methods."""
        raise NotImplementedError(f"{type(self).__name__} must define the method `config`")

    def invalid_configs(self) -> Sequence[Mapping[str, str]]:
        """Return configurations that validation must reject.

        By default, return one empty configuration if the connector rejects it, otherwise no configurations.
        """
        return [{}] if self._errors({}) else []

    def _errors(self, props: Mapping[str, str]) -> list[Any]:
        return connector_class_of(self.plugin).config_model.errors(props)

    def test_validation_without_the_external_system_accepts_valid_and_rejects_invalid_configurations(self) -> None:
        """Validation uses only the configuration model."""
        assert self._errors(self.config()) == []
        for props in self.invalid_configs():
            with pytest.raises(ConfigErrors):
                connector_class_of(self.plugin).config_model.parse(props)
