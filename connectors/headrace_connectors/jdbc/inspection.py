"""What the validation of a configuration finds in the database: whitelisted tables that are not there, and cursor
columns that they do not have or that cannot be followed. A database that does not answer is no error: it may be up by
the time that the connector starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.cursors import cursor_columns
from headrace_connectors.jdbc.dialects import Dialect
from headrace_connectors.jdbc.tables import is_named, missing

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 10.0


def faults(config: JdbcSourceConfig, dialect: Dialect, now_s: Callable[[], float]) -> Iterator[tuple[str, str]]:
    """(key, message) for whatever is wrong with the whitelisted tables; those of ten seconds at most are looked at."""
    until_s = now_s() + TIME_LIMIT_S
    try:
        existing = dialect.table_names()
        for number, name in enumerate(config.table_whitelist):
            if now_s() > until_s:
                logger.warning(
                    "the database is slow: columns of %d tables are not checked", len(config.table_whitelist) - number
                )
                return
            tables = [table for table in existing if is_named(name, table)]
            if not tables:
                yield "table.whitelist", missing(name, existing)
            for table in tables:
                yield from _column_faults(config, dialect, table)
    except dialect.driver_error as error:
        reason = str(error).partition("\n")[0]
        logger.warning("the database does not answer (%s): its tables are not checked", reason)


def _column_faults(config: JdbcSourceConfig, dialect: Dialect, table: str) -> Iterator[tuple[str, str]]:
    if config.mode == "bulk":
        return
    columns = dialect.table_columns(table)
    try:
        cursor_columns(config, f"table {table}", columns, is_table=True, holds_timestamps=dialect.holds_timestamps)
    except ConfigError as error:
        yield error.key, str(error)
