"""Validates the parts of a JDBC source's configuration that only the database can validate.

Reports a database that is unreachable or rejects the user, whitelisted tables that do not exist or cannot be read, a
query that the database rejects, and incrementing or timestamp columns that do not exist or cannot be used. The
validation runs only when a connector is created or updated. A connector that is starting waits for its database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace_connectors.jdbc.connections import connection_error, invalid_value
from headrace_connectors.jdbc.dialects import Connection, Dialect
from headrace_connectors.jdbc.names import matches
from headrace_connectors.jdbc.offset_columns import OffsetColumns, find_offset_columns
from headrace_connectors.jdbc.offsets import TimestampIncrementingOffset
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import select
from headrace_connectors.jdbc.tables import missing_table_message, names_of_types, unsupported_reason
from headrace_connectors.jdbc.types import JdbcColumn

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 10.0


def database_errors(config: JdbcSourceConfig, dialect: Dialect, now_s: Callable[[], float]) -> Iterator[ConfigError]:
    """Yield an error for each problem. Stops the validation of tables after `TIME_LIMIT_S`."""
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
) -> Iterator[ConfigError]:
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
            yield ConfigError("table.whitelist", name, missing_table_message(name, existing, tables_of_all_types))
        for table in tables:
            if reason := unsupported_reason(table, config):
                yield ConfigError("table.whitelist", name, f"table {table} cannot be read: {reason}")
            yield from column_errors(config, dialect, connection, name, table)


def column_errors(
    config: JdbcSourceConfig, dialect: Dialect, connection: Connection, name: str, table: str
) -> Iterator[ConfigError]:
    """Yield errors in the columns of `table`. `name` is the table's name in table.whitelist."""
    found = OffsetColumns(None, ())
    try:
        columns = dialect.table_columns(table)
        if config.mode != "bulk":
            found = find_offset_columns(config, table, columns, can_hold_timestamps=dialect.can_hold_timestamps)
    except ConfigErrors as errors:
        yield from errors.errors
        return
    except ConfigError as error:  # the name of the table needs quotes
        yield error
        return
    except ConnectError as error:
        yield invalid_value(config, "unsupported.columns", str(error))
        return
    try:
        if columns:
            _check_select(config, dialect, connection, columns, found, table)
    except ConfigError as error:  # the name of the table or of one of its columns needs quotes
        yield error
    except dialect.driver_error as error:
        if dialect.is_transient(error):
            raise
        dialect.end_transaction(connection)
        yield ConfigError("table.whitelist", name, f"table {table} cannot be read: {_text(dialect, error)}")


def _query_errors(config: JdbcSourceConfig, dialect: Dialect, connection: Connection) -> Iterator[ConfigError]:
    try:
        columns = dialect.query_columns(
            connection, f"{config.sql} {config.query_suffix if config.mode == 'bulk' else ''}"
        )
    except dialect.driver_error as error:
        if dialect.is_transient(error):
            raise
        yield _query_error(config, dialect, error, "the database rejects the query")
        return
    if config.mode == "bulk":
        return
    try:
        found = find_offset_columns(config, "", columns, can_hold_timestamps=dialect.can_hold_timestamps)
        _check_select(config, dialect, connection, columns, found, "")
    except ConfigErrors as errors:
        yield from errors.errors
    except ConfigError as error:  # the name of an offset column needs quotes
        yield error
    except dialect.driver_error as error:
        if dialect.is_transient(error):
            raise
        problem = (
            f"mode={config.mode} appends WHERE and ORDER BY clauses, which the database rejects after this query; "
            "write the query as SELECT * FROM (SELECT ...) AS q, where the inner SELECT returns each column name once"
        )
        yield _query_error(config, dialect, error, problem)


def _check_select(
    config: JdbcSourceConfig,
    dialect: Dialect,
    connection: Connection,
    columns: Sequence[JdbcColumn],
    found: OffsetColumns,
    table: str,
) -> None:
    """Run the statement that a task runs after the first row, with a condition that selects no rows.

    Raises ConfigError if a name needs quotes, and the driver's exception if the database rejects the statement.
    """
    statement = select(
        dialect.select_sql(columns, table),
        dialect.offset_expressions(found.incrementing, found.timestamps, table),
        TimestampIncrementingOffset(0, 0),
        0,
        marker=dialect.parameter_marker,
        suffix=dialect.escape_parameter_markers(config.query_suffix),
        selects_rows=False,
    )
    dialect.rows(connection, statement, columns, table).cursor.close()
    dialect.end_transaction(connection)


def _query_error(config: JdbcSourceConfig, dialect: Dialect, error: Exception, problem: str) -> ConfigError:
    if config.query:
        return invalid_value(config, "query", f"{problem}: {_text(dialect, error)}")
    # The database's message contains parts of the query.
    return invalid_value(config, "query.masked", f"{problem} ({type(error).__name__})")


def _text(dialect: Dialect, error: Exception) -> str:
    """Return the database's message in one line, without the SQL text that PostgreSQL appends."""
    return " ".join(dialect.error_text(error).partition("\nLINE ")[0].split())
