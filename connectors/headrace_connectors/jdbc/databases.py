"""Creates the dialect for a JDBC URL, and imports only the driver that this dialect needs."""

from __future__ import annotations

from headrace_connectors.jdbc.dialects import Dialect
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.url import JdbcUrl


def dialect_for(url: JdbcUrl, config: JdbcSourceConfig) -> Dialect:
    """Return the dialect for `url`. Raises ModuleNotFoundError if the database's driver is not installed."""
    if not url.is_known:
        from headrace_connectors.jdbc.generic import GenericDialect

        return GenericDialect(url, config)
    if url.kind == "sqlite":
        from headrace_connectors.jdbc.sqlite import SqliteDialect

        return SqliteDialect(url, config)
    if url.kind == "postgresql":
        from headrace_connectors.jdbc.postgresql import PostgresqlDialect

        return PostgresqlDialect(url, config)
    from headrace_connectors.jdbc.mysql import MysqlDialect

    return MysqlDialect(url, config)
