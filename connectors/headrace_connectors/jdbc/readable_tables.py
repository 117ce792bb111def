"""Skips the tables that the JDBC source cannot read, so that they do not stop the other tables."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from headrace.api.errors import ConnectError
from headrace_connectors.jdbc.database_validation import TIME_LIMIT_S, column_errors
from headrace_connectors.jdbc.dialects import Connection, Dialect
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.tables import check_topics_unambiguous

logger = logging.getLogger(__name__)


class ReadableTables:
    """Finds the readable tables among the selected tables. Logs one error for each other table."""

    def __init__(self, config: JdbcSourceConfig, dialect: Dialect, now_s: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._dialect = dialect
        self._now_s = now_s
        self._reasons: dict[str, str] = {}
        """The tables that the last call of `find` skipped, with the reasons."""

    def find(self, tables: Sequence[str], healthy: Sequence[str] = ()) -> list[str]:
        """Return the tables that can be read. Tables in `healthy` are not checked again.

        If no table can be read, return all tables, so that the task fails with the error. After `TIME_LIMIT_S`, the
        remaining tables are not checked. Raises the driver's exception if the database cannot be reached.
        """
        found, reasons = self._check(tables, healthy)
        if not found:
            return list(tables)
        for table, reason in reasons.items():
            if self._reasons.get(table) != reason:
                logger.error("Table %s is skipped: %s. The connector continues to read the other tables", table, reason)
        self._reasons = reasons
        return found

    def _check(self, tables: Sequence[str], healthy: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        known = [table for table in tables if table in healthy]
        found, reasons = list(known), dict[str, str]()
        deadline_s = self._now_s() + TIME_LIMIT_S
        connection = self._dialect.connect() if len(known) < len(tables) else None
        try:
            for table in tables:
                if table in known:
                    continue
                reason = self._topic_conflict(table, found)
                if reason is None and self._now_s() <= deadline_s:
                    reason = self._error(connection, table)
                if reason is None:
                    found.append(table)
                else:
                    reasons[table] = reason
        finally:
            if connection is not None:
                connection.close()
        return [table for table in tables if table in found], reasons

    def _error(self, connection: Connection, table: str) -> str | None:
        try:
            errors = column_errors(self._config, self._dialect, connection, table, table)
            return next((str(error) for error in errors), None)
        except self._dialect.driver_error as error:
            if self._dialect.is_transient(error):
                raise
            self._dialect.end_transaction(connection)
            return self._dialect.error_text(error)

    @staticmethod
    def _topic_conflict(table: str, others: Sequence[str]) -> str | None:
        try:
            check_topics_unambiguous([*others, table])
        except ConnectError as error:
            return str(error)
        return None
