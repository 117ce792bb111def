"""Validates the tables and columns that a JDBC source's configuration names.

Reports whitelisted tables that do not exist, and incrementing or timestamp columns that do not
exist or cannot be used. An unavailable database is not an error, because it may be available when
the connector starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from headrace.api.errors import ConfigError, ConnectError
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.dialects import Dialect
from headrace_connectors.jdbc.names import matches
from headrace_connectors.jdbc.offset_columns import find_offset_columns
from headrace_connectors.jdbc.tables import missing_table_message, names_of_types

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 10.0


def table_errors(config: JdbcSourceConfig, dialect: Dialect, now_s: Callable[[], float]) -> Iterator[tuple[str, str]]:
    """Yield (configuration key, message) for each error in a table of table.whitelist. Stops after `TIME_LIMIT_S`."""
    deadline_s = now_s() + TIME_LIMIT_S
    try:
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
                yield from _column_errors(config, dialect, table)
    except dialect.driver_error as error:
        reason = str(error).partition("\n")[0]
        logger.warning("Database is not available (%s), skipping the validation of its tables", reason)


def _column_errors(config: JdbcSourceConfig, dialect: Dialect, table: str) -> Iterator[tuple[str, str]]:
    try:
        columns = dialect.table_columns(table)
        if config.mode != "bulk":
            find_offset_columns(config, table, columns, can_hold_timestamps=dialect.can_hold_timestamps)
    except ConfigError as error:
        yield error.key, str(error)
    except ConnectError as error:
        yield "unsupported.columns", str(error)
