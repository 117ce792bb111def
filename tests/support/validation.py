"""The validation of a connector's own configuration keys, without the keys of the framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.config import config_def
from headrace.api.connector import Connector
from headrace.api.errors import ConfigError


def validation_errors(connector: type[Connector[Any]], props: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the errors by key, as validation in a worker calls the checks of the connector class."""
    values = config_def(connector.config_model).validate(props)
    instance = connector()
    instance.validate(props, values)
    found = connector.config_model.errors(props)
    if not found:
        try:
            found += instance.validate_config(connector.config_model.parse(props))
        except ConfigError as raised:
            found.append(raised)
    for error in found:
        errors = values[error.key].errors
        errors += [] if str(error) in errors else [str(error)]
    return {key: value.errors for key, value in values.items() if value.errors}
