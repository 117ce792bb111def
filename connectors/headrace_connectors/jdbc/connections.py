"""The configuration of a connection, which the JDBC source and the JDBC sink share. This module has no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from headrace.api.config import Config, Password, config_def


class ConnectionConfig(Protocol):
    """The configuration keys of a connection, which source and sink share."""

    connection_user: str | None
    connection_password: Password | None

    def originals_with_prefix(self, prefix: str) -> Mapping[str, str]: ...


def driver_properties(config: ConnectionConfig) -> dict[str, str]:
    """Return the `connection.*` keys that are no keys of the connector, without the prefix."""
    known = config_def(cast("Config", config).__class__).keys
    given = config.originals_with_prefix("connection.")
    return {name: value for name, value in given.items() if f"connection.{name}" not in known}
