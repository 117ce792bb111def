"""Creates the `Database` object for a JDBC URL, and imports only the driver of this database."""

from __future__ import annotations

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc import url as urls
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig
from headrace_connectors.jdbc.url import JdbcUrl
from headrace_connectors.jdbc.writing.database import Database


def database_for(url: JdbcUrl, config: JdbcSinkConfig) -> Database:
    """Return the `Database` object for `url`. Raises ModuleNotFoundError if the database's driver is not installed."""
    if url.kind == "sqlite":
        from headrace_connectors.jdbc.writing.sqlite import SqliteDatabase

        return SqliteDatabase(url, config)
    if url.dialect == "mysql":
        from headrace_connectors.jdbc.writing.mysql import MysqlDatabase

        return MysqlDatabase(url, config)
    from headrace_connectors.jdbc.writing.postgresql import PostgresqlDatabase

    return PostgresqlDatabase(url, config)


def modules_for(connection_url: str) -> tuple[str, ...]:
    """Return the names of the modules that a task with this URL imports. The tuple is empty for an invalid URL."""
    try:
        module = urls.parse(connection_url).dialect
    except ConfigError:
        return ()
    package = __package__ or ""
    names = ("runs", "table_cache", "transaction", module)
    return (*(f"{package}.{name}" for name in names), f"sqlalchemy.dialects.{module}")
