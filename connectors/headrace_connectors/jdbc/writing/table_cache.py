"""Finds the table for a run of rows, and creates or extends it if auto.create or auto.evolve allow this."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from headrace.api.errors import ConnectError, DataError
from headrace_connectors.jdbc.names import split_name
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig
from headrace_connectors.jdbc.writing.database import Connection, Database, ExistingTable, Target
from headrace_connectors.jdbc.writing.fields import Column
from headrace_connectors.jdbc.writing.runs import Run

logger = logging.getLogger(__name__)


class TableCache:
    """The tables that the task has found. Other tasks may create or extend tables at the same time."""

    def __init__(self, database: Database, config: JdbcSinkConfig) -> None:
        self._database = database
        self._config = config
        self._types = {kind.strip().upper() for kind in config.table_types} | {"PARTITIONED TABLE", "FOREIGN TABLE"}
        self._tables: dict[str, ExistingTable] = {}
        self._targets: dict[tuple[str, tuple[Column, ...]], Target] = {}

    def clear(self) -> None:
        """Forget all tables. Called after an error, because a table may have changed."""
        self._tables.clear()
        self._targets.clear()

    def target(self, connection: Connection, run: Run) -> Target | None:
        """Return the table of a run, or None if the table is missing and the run only deletes rows.

        Call this method only while no transaction is open. Raises DataError if the table or a column is missing and may
        not be created, ConnectError if the user lacks the privilege to create it or if the table has no unique index
        that upserts need, and the driver's exception if the database fails.
        """
        found = self._targets.get((run.table, run.columns)) or self._find(connection, run)
        if found is not None:
            self._targets[run.table, run.columns] = found
        return found

    def _find(self, connection: Connection, run: Run) -> Target | None:
        table = self._tables.get(run.table)
        if table is not None and _missing_columns(table, run):
            table = None  # the user may have added the columns
        table = table or self._database.find_table(run.table)
        if table is None:
            if run.is_delete and self._config.auto_create:
                return None
            table = self._create(connection, run)
        if table.kind not in self._types:
            types = ",".join(self._config.table_types)
            raise DataError(
                f"{run.table} is a {table.kind}, but table.types is {types}; add {table.kind} to table.types"
            )
        if missing := _missing_columns(table, run):
            table = self._add_columns(connection, run, table, missing)
        self._tables[run.table] = table
        names = tuple(self._database.quote(table.column(column.name) or column.name) for column in run.columns)
        keys = tuple(name for name, column in zip(names, run.columns, strict=True) if column.is_key)
        key_columns = frozenset(table.column(column.name) or column.name for column in run.columns if column.is_key)
        target = Target(table, names, keys, key_columns)
        if self._config.insert_mode.lower() == "upsert":
            self._database.check_upsert(target)
        return target

    def _create(self, connection: Connection, run: Run) -> ExistingTable:
        if not self._config.auto_create:
            raise DataError(
                f"Table {run.table} is missing and auto-creation is disabled (auto.create=false)"
                + _advice_about_dots(run.table)
            )
        statement = self._database.create_table(connection, run.table, run.columns)
        problem = self._run_ddl(connection, run.table, [statement])
        table = self._database.find_table(run.table)
        if table is None:
            has_no_schema = problem is not None and self._database.is_missing_schema(problem)
            advice = _advice_about_dots(run.table) if has_no_schema or len(split_name(run.table)) > 2 else ""
            raise self._ddl_error(f"Cannot create table {run.table} ({statement})", problem, advice)
        return table

    def _add_columns(
        self, connection: Connection, run: Run, table: ExistingTable, missing: Sequence[Column]
    ) -> ExistingTable:
        names = ", ".join(column.name for column in missing)
        if not self._config.auto_evolve or table.kind == "VIEW":
            raise DataError(
                f"Table {run.table} is missing fields ({names}) and auto-evolution is disabled (auto.evolve=false)"
            )
        required = [column.name for column in missing if not column.schema.optional and column.schema.default is None]
        if required:
            raise DataError(
                f"Cannot ALTER {run.table} to add missing fields {', '.join(required)}, as the fields are not optional "
                "and do not have default values"
            )
        problem = self._run_ddl(connection, run.table, self._database.add_columns(table, missing))
        found = self._database.find_table(run.table)
        if found is None or _missing_columns(found, run):
            raise self._ddl_error(f"Cannot add the columns {names} to table {run.table}", problem)
        return found

    def _ddl_error(self, problem: str, cause: Exception | None, advice: str = "") -> Exception:
        """Return the error for failed DDL statements. Its message begins with `problem` and ends with `advice`.

        If `cause` means that the user lacks a privilege, the error is a ConnectError, which fails the task. Otherwise,
        it is a DataError.
        """
        if cause is None:
            return DataError(f"{problem}: the database reported no error")
        kind = ConnectError if self._database.is_forbidden(cause) else DataError
        error = kind(f"{problem}: {self._database.error_text(cause)}{advice}")
        error.__cause__ = cause
        return error

    def _run_ddl(self, connection: Connection, table: str, statements: Sequence[str]) -> Exception | None:
        """Run DDL statements, and return the driver's exception if a statement fails.

        A statement fails, for example, if another task has already run it.
        """
        try:
            for statement in statements:
                logger.info("Table %s: %s", table, statement)
                self._database.run_statement(connection, statement)
            connection.commit()
            return None
        except self._database.driver_error as error:
            connection.rollback()
            if self._database.is_transient(error):
                raise
            return error


def _advice_about_dots(table: str) -> str:
    """Return advice for topics whose names contain dots, or "" if the table's name contains no schema."""
    *schemas, _ = split_name(table)
    if not schemas:
        return ""
    return (
        f"; the sink reads the part of the name before the last dot ({'.'.join(schemas)}) as schema. For a table whose "
        'own name contains dots, quote the name: table.name.format="${topic}". To change the topic\'s name, use the '
        "transform RegexRouter"
    )


def _missing_columns(table: ExistingTable, run: Run) -> list[Column]:
    """Return the columns of the run that the table does not have.

    A column of the run matches a column of the table if their names differ only in case. If several columns of the run
    match one column of the table, the table has only the one with exactly the same name. The others are missing.
    """
    found = [table.column(column.name) for column in run.columns]
    matches = Counter(found)
    return [
        column
        for column, name in zip(run.columns, found, strict=True)
        if name is None or (name != column.name and matches[name] > 1)
    ]
