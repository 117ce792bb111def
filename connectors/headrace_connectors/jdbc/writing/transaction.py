"""Writes runs of rows in one transaction, and finds the records that the database rejects.

The first attempt sets no savepoints, because each savepoint costs two round trips. If the database rejects a record,
the transaction is rolled back, and all runs are written again with savepoints.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from headrace.api.errors import DataError, RecordErrors
from headrace.data.schema import Type
from headrace.data.sink_records import SinkRecords
from headrace_connectors.jdbc.writing.database import Connection, Database, Target
from headrace_connectors.jdbc.writing.fields import Column
from headrace_connectors.jdbc.writing.runs import Run
from headrace_connectors.jdbc.writing.table_cache import TableCache
from headrace_connectors.jdbc.writing.timestamps import timestamp_reader
from headrace_connectors.jdbc.writing.unique_indexes import missing_constraint

logger = logging.getLogger(__name__)


class _TransactionRolledBack(Exception):
    """The database has rolled back the transaction because of an error in a row."""


class _RecordRejected(Exception):
    """The database has rejected a record in a transaction without savepoints, so all rows must be written again."""


class Writer:
    """Writes the records of one `put`."""

    def __init__(
        self,
        database: Database,
        tables: TableCache,
        connection: Connection,
        records: SinkRecords,
        tolerates_errors: bool,
        *,
        uses_savepoints: bool = False,
    ) -> None:
        self._database = database
        self._tables = tables
        self._connection = connection
        self._records = records
        self._tolerates_errors = tolerates_errors
        self._errors: dict[int, Exception] = {}
        self._rejected: list[tuple[Run, Target]] = []
        self._has_fresh_tables = False
        self._uses_savepoints = uses_savepoints
        self._writes_single_rows = False

    def write(self, runs: Sequence[Run]) -> dict[int, Exception]:
        """Write the runs, commit the transaction, and return the errors of rejected records by index in the `put`.

        If a table or column no longer exists, this method makes a second attempt to write all runs. The second attempt
        reads the definitions of the tables again. With `auto.create`, it creates missing tables. With `auto.evolve`, it
        creates missing columns.

        If errors are not tolerated, raises RecordErrors for the first rejected record. Raises the driver's exception
        for every error that the data of a record has not caused. Raises ConnectError if an upsert needs a unique index
        that does not exist. After an exception, the caller must roll back the
        transaction.
        """
        try:
            return self._write(runs)
        except self._database.driver_error as error:
            if self._has_fresh_tables or not self._database.is_missing_object(error):
                raise
            logger.warning(
                "A table or column no longer exists (%s), reading the columns of the tables again",
                self._database.error_text(error),
            )
        self._roll_back()
        self._tables.clear()
        self._has_fresh_tables = True
        return self._write(runs)

    def _write(self, runs: Sequence[Run]) -> dict[int, Exception]:
        self._errors.clear()
        targets = [(run, target) for run in runs if (target := self._target(run)) is not None]
        missing = dict(self._errors)
        self._write_runs(targets)
        try:
            self._connection.commit()
        except self._database.driver_error as error:
            if not self._database.is_record_error(error):
                raise
            logger.info(
                "%s: a record violates a constraint that is checked at COMMIT (%s), looking for the records at fault",
                self._database.address,
                self._database.error_text(error),
            )
            self._roll_back()
            self._errors = missing
            self._write_without_violations(targets)
        return self._errors

    def _write_runs(self, targets: Sequence[tuple[Run, Target]]) -> None:
        """Write the runs in a new transaction.

        If the database rejects a record, begin again with savepoints. If a row causes the database to roll back the
        whole transaction, begin again and write the rows one by one to find this row. Then begin again without it.
        """
        # Write to tables without transactions at the end: after a write to an Aria table, MariaDB sets no savepoint.
        targets = sorted(targets, key=lambda each: not each[1].table.is_transactional)
        while True:
            self._database.begin(self._connection)
            try:
                for run, target in targets:
                    if len(run):
                        self._write_run(run, target)
                return
            except _RecordRejected:
                self._roll_back()
                self._uses_savepoints = True
            except _TransactionRolledBack:
                self._database.transaction_failed()
                self._writes_single_rows = True
                targets = [(run.without(self._errors), target) for run, target in targets]

    def _write_without_violations(self, targets: Sequence[tuple[Run, Target]]) -> None:
        """Write the runs, and reject the records that violate constraints which the database checks at COMMIT."""
        finder = Writer(
            self._database, self._tables, self._connection, self._records, tolerates_errors=True, uses_savepoints=True
        )
        violations = finder._find_violations(targets)
        self._roll_back()
        if violations and not self._tolerates_errors:
            index = min(violations)
            raise RecordErrors({index: violations[index]})
        self._errors |= violations
        self._write_runs([(run.without(violations), target) for run, target in targets])
        self._connection.commit()

    def _find_violations(self, targets: Sequence[tuple[Run, Target]]) -> dict[int, Exception]:
        """Write the runs while constraints are checked immediately, and return the errors of rejected records by index.

        A record may refer to a later record. This method therefore writes rejected records again, the last record
        first, until the database accepts no more of them. The caller must roll back the transaction.
        """
        self._database.begin(self._connection)
        self._database.check_constraints_immediately(self._connection)
        count = sum(len(run) for run, _ in targets)
        while True:
            self._errors, self._rejected = {}, []
            for run, target in targets:
                self._write_run(run, target)
            if len(self._rejected) in (0, count):
                return self._errors
            count = len(self._rejected)
            targets = self._rejected[::-1]

    def _roll_back(self) -> None:
        self._connection.rollback()
        self._database.transaction_failed()

    def _target(self, run: Run) -> Target | None:
        try:
            return self._tables.target(self._connection, run)
        except DataError as error:
            if not self._tolerates_errors:
                raise RecordErrors({run.indexes[0]: error}) from error
            self._errors.update(dict.fromkeys(run.indexes, error))
            return None

    def _write_run(self, run: Run, target: Target) -> None:
        """Write the rows of a run. If the database rejects them, halve the run repeatedly to find the bad rows.

        If the table does not support transactions, write the rows one by one, because the rows that were written before
        a bad row cannot be rolled back.
        """
        is_transactional = target.table.is_transactional
        if len(run) > 1 and (self._writes_single_rows or not is_transactional):
            for row in range(len(run)):
                self._write_run(run.part(row, row + 1), target)
            return
        has_savepoint = is_transactional and self._uses_savepoints
        try:
            with self._savepoint(target):
                self._database.write(self._connection, target, run)
        except (DataError, self._database.driver_error) as error:
            if not isinstance(error, DataError) and not self._database.is_record_error(error):
                if self._database.is_missing_constraint(error):
                    text = self._database.error_text(error)
                    raise missing_constraint(target.table.quoted, target.keys, text) from error
                raise
            if is_transactional and not has_savepoint:
                raise _RecordRejected from error
            has_rolled_back = self._database.has_rolled_back(self._connection)
            if len(run) == 1:
                self._reject(run, target, error)
            if has_rolled_back:
                raise _TransactionRolledBack from error
            if len(run) == 1:
                return
            middle = len(run) // 2
            self._write_run(run.part(0, middle), target)
            self._write_run(run.part(middle, len(run)), target)

    def _savepoint(self, target: Target) -> AbstractContextManager[None]:
        has_savepoint = target.table.is_transactional and self._uses_savepoints
        if has_savepoint and not self._database.has_rolled_back(self._connection):
            return self._database.savepoint(self._connection)
        return nullcontext()

    def _reject(self, run: Run, target: Target, cause: Exception) -> None:
        index = run.indexes[0]
        record = self._records[index]
        text = str(cause) if isinstance(cause, DataError) else self._database.error_text(cause)
        error = DataError(
            f"{self._database.address} rejects record {record.original_topic}-{record.original_partition}@"
            f"{record.original_offset} for table {target.table.quoted}: {text} {self._columns(run, target, cause)}"
        )
        error.__cause__ = cause
        if not self._tolerates_errors:
            raise RecordErrors({index: error}) from cause
        self._errors[index] = error
        self._rejected.append((run, target))

    def _columns(self, row: Run, target: Target, cause: Exception) -> str:
        """Describe the column that caused the error: its name, its type and the type of the value.

        If this column is unknown, describe all columns of the row. Add a hint if timestamp.fields.list would convert
        the value.
        """
        types: Mapping[str, str] = {}
        at_fault = None
        try:
            with self._savepoint(target):
                types = self._database.column_types(self._connection, target.table)
                if isinstance(cause, self._database.driver_error):
                    at_fault = self._database.column_at_fault(self._connection, target, row, cause)
        except self._database.driver_error as error:
            if self._database.is_transient(error):
                raise
            logger.debug("Cannot read the columns of table %s: %s", target.table.quoted, error)
        descriptions = {}
        hint = ""
        for column, (value,) in zip(row.columns, row.values, strict=True):
            name = target.table.column(column.name) or column.name
            value_type = column.schema.name or column.schema.type.name
            descriptions[name] = f"column {name}: type {types.get(name, 'unknown')}, value {value_type}"
            if isinstance(cause, DataError) and str(cause).startswith(f"field {column.name}: "):
                at_fault = name
            if name == at_fault and self._is_unconverted_timestamp(column, types.get(name, ""), value):
                hint = f"; if the field {column.name} contains timestamps, add it to timestamp.fields.list"
        if at_fault is not None and at_fault not in descriptions:
            return f"(column {at_fault}: type {types.get(at_fault, 'unknown')}, missing from the record)"
        return f"({descriptions.get(at_fault or '') or '; '.join(descriptions.values())}){hint}"

    def _is_unconverted_timestamp(self, column: Column, type_: str, value: Any) -> bool:
        """Whether the value is a valid timestamp for a column of type `type_`, but the sink has not converted it."""
        is_plain = column.schema.name is None and column.schema.type in (Type.INT64, Type.STRING)
        if not is_plain or column.is_key or column.is_timestamp or value is None:
            return False
        if not type_.lower().startswith(("date", "timestamp")):
            return False
        try:
            timestamp_reader(column.name, self._database.config.timestamp_precision_mode)(value)
        except DataError:
            return False
        return True
