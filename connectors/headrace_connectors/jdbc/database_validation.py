"""Validates the parts of a JDBC source's configuration that only the database can validate.

Reports a database that is unreachable or rejects the user, whitelisted tables that do not exist or cannot be read, a
query that the database rejects, and incrementing or timestamp columns that do not exist or cannot be used. The
validation runs only when a connector is created or updated. A connector that is starting waits for its database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.connections import connection_error
from headrace_connectors.jdbc.dialects import Connection, Dialect
from headrace_connectors.jdbc.names import matches
from headrace_connectors.jdbc.offset_columns import find_offset_columns
from headrace_connectors.jdbc.tables import missing_table_message, names_of_types, unsupported_reason

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 10.0


def database_errors(
    config: JdbcSourceConfig, dialect: Dialect, now_s: Callable[[], float]
) -> Iterator[tuple[str, str]]:
    """Yield (configuration key, message) for each error. Stops the validation of tables after `TIME_LIMIT_S`."""
    connection: Connection = None
    try:
        connection = dialect.connect()
        if config.sql:
            yield from _query_errors(config, dialect, connection)
        else:
            yield from _table_errors(config, dialect, connection, now_s)
    except (dialect.driver_error, OSError) as error:  # OSError: a missing file with certificates
        is_denied = dialect.is_denied(error)
        yield connection_error(dialect.url, config, _text(dialect, error), is_denied=is_denied)
    finally:
        if connection is not None:
            connection.close()


def _table_errors(
    config: JdbcSourceConfig, dialect: Dialect, connection: Connection, now_s: Callable[[], float]
) -> Iterator[tuple[str, str]]:
    """Yield an error for each table of table.whitelist that is missing or cannot be read, or whose topic is invalid."""
    deadline_s = now_s() + TIME_LIMIT_S
    tables_of_all_types = dialect.tables()
    existing = names_of_types(tables_of_all_types, config.table_types)
    database = dialect.url.database
    for checked, name in enumerate(config.table_whitelist):
        if now_s() > deadline_s:
            logger.warning(
                "Validation of table.whitelist has taken more than %.0f s, skipping the remaining %d tables",
                TIME_LIMIT_S,
                len(config.table_whitelist) - checked,
            )
            return
        tables = [table for table in existing if matches(name, table, database)]
        if not tables:
            yield "table.whitelist", missing_table_message(name, existing, tables_of_all_types)
        for table in tables:
            if reason := unsupported_reason(table, config):
                yield "table.whitelist", f"table {table} cannot be read: {reason}"
            yield from _column_errors(config, dialect, connection, table)


def _column_errors(
    config: JdbcSourceConfig, dialect: Dialect, connection: Connection, table: str
) -> Iterator[tuple[str, str]]:
    try:
        columns = dialect.table_columns(table)
        if config.mode != "bulk":
            find_offset_columns(config, table, columns, can_hold_timestamps=dialect.can_hold_timestamps)
    except ConfigErrors as errors:
        yield from ((error.key, str(error)) for error in errors.errors)
        return
    except ConfigError as error:  # the name of the table needs quotes
        yield error.key, str(error)
        return
    except ConnectError as error:
        yield "unsupported.columns", str(error)
        return
    try:
        if columns:
            dialect.check_select(connection, columns, table)
    except ConfigError as error:  # the name of the table or of one of its columns needs quotes
        yield error.key, str(error)
    except dialect.driver_error as error:
        if dialect.is_transient(error):
            raise
        dialect.end_transaction(connection)
        yield "table.whitelist", f"table {table} cannot be read: {_text(dialect, error)}"


def _query_errors(config: JdbcSourceConfig, dialect: Dialect, connection: Connection) -> Iterator[tuple[str, str]]:
    try:
        columns = dialect.query_columns(connection, config.sql)
    except dialect.driver_error as error:
        if dialect.is_transient(error):
            raise
        yield _query_error(config, dialect, error, "The database rejects the query")
        return
    if config.mode == "bulk":
        return
    try:
        found = find_offset_columns(config, "", columns, can_hold_timestamps=dialect.can_hold_timestamps)
        for name in found.names:
            dialect.quote_column(name, "")
        dialect.check_select(connection, columns, "")
    except ConfigErrors as errors:
        yield from ((error.key, str(error)) for error in errors.errors)
    except ConfigError as error:  # the name of an offset column needs quotes
        yield error.key, str(error)
    except dialect.driver_error as error:
        if dialect.is_transient(error):
            raise
        problem = (
            f"mode={config.mode} appends a WHERE clause, which the database rejects after this query; write the query "
            "as SELECT * FROM (query) AS q"
        )
        yield _query_error(config, dialect, error, problem)


def _query_error(config: JdbcSourceConfig, dialect: Dialect, error: Exception, problem: str) -> tuple[str, str]:
    if config.query:
        return "query", f"{problem}: {_text(dialect, error)}"
    return "query.masked", f"{problem} ({type(error).__name__})"  # the database's message contains parts of the query


def _text(dialect: Dialect, error: Exception) -> str:
    """Return the database's message in one line, without the SQL text that PostgreSQL appends."""
    return " ".join(dialect.error_text(error).partition("\nLINE ")[0].split())
