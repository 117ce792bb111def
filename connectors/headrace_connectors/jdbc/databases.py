"""From a URL to its database's dialect. Drivers are loaded here, and only the one that is needed."""

from __future__ import annotations

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.dialects import Dialect
from headrace_connectors.jdbc.url import JdbcUrl, shown


def dialect_for(url: JdbcUrl, config: JdbcSourceConfig) -> Dialect:
    """The dialect of a URL. Raises ConfigError when its driver is not installed, saying how to install it."""
    try:
        if url.kind == "sqlite":
            from headrace_connectors.jdbc.sqlite import SqliteDialect

            return SqliteDialect(url, config)
        from headrace_connectors.jdbc.postgresql import PostgresqlDialect

        return PostgresqlDialect(url, config)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "connection.url",
            shown(config.connection_url),
            f'needs the Python package {error.name}: pip install "headrace[jdbc-postgres]"',
        ) from error
