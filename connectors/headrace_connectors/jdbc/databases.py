"""Creates the dialect for a JDBC URL, and imports only the driver that this dialect needs."""

from __future__ import annotations

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.dialects import Dialect
from headrace_connectors.jdbc.url import JdbcUrl, redact_passwords


def dialect_for(url: JdbcUrl, config: JdbcSourceConfig) -> Dialect:
    """Return the dialect for `url`. Raises ConfigError if the database's driver is not installed."""
    try:
        if url.kind == "sqlite":
            from headrace_connectors.jdbc.sqlite import SqliteDialect

            return SqliteDialect(url, config)
        if url.kind == "postgresql":
            from headrace_connectors.jdbc.postgresql import PostgresqlDialect

            return PostgresqlDialect(url, config)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "connection.url",
            redact_passwords(config.connection_url),
            f'needs the Python package {error.name}: pip install "headrace[jdbc-postgres]"',
        ) from error
    raise ConfigError(
        "connection.url",
        redact_passwords(config.connection_url),
        f"the source cannot read jdbc:{url.kind} yet, only jdbc:sqlite and jdbc:postgresql",
    )
