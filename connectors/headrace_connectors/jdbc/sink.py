"""JdbcSinkConnector, which writes records to tables of an SQL database.

Each `put` is one transaction, so its records are durable when `put` returns. Their offsets are committed afterwards.
Delivery is at least once. With insert.mode=upsert, a record that is written again changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.api.connector import SinkConnector
from headrace.api.errors import ConfigError, ConnectError, RecordErrors, RetriableError
from headrace.api.retries import Retries, RetryPolicy
from headrace.api.task import SinkTask
from headrace.data.sink_records import SinkRecords
from headrace_connectors.jdbc import url
from headrace_connectors.jdbc.connections import connection_error, connection_retries, extra_for
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig

if TYPE_CHECKING:
    from headrace_connectors.jdbc.writing.database import Database
    from headrace_connectors.jdbc.writing.runs import Run

logger = logging.getLogger(__name__)


def _database(config: JdbcSinkConfig) -> Database:
    from headrace_connectors.jdbc.writing.databases import database_for  # this imports SQLAlchemy, which is slow

    return database_for(url.parse(config.connection_url), config)


class JdbcSinkTask(SinkTask[JdbcSinkConfig]):
    """Writes the records of each `put` in one transaction over one connection."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._uses_savepoints = False  # the database rejected records of the last put

    def start(self, config: JdbcSinkConfig) -> None:
        """Connect to the database. Raises ConnectError after `connection.attempts` attempts or a permanent error."""
        from headrace_connectors.jdbc.writing.runs import RunBuilder
        from headrace_connectors.jdbc.writing.table_cache import TableCache

        self._config = config
        self._database = _database(config)
        self._builder = RunBuilder(self.context.connector_name, config)
        self._tables = TableCache(self._database, config)
        self._retries = Retries(RetryPolicy(config.retry_backoff_ms, config.max_retries, "max.retries"))
        self._connection = connection_retries(config).call(
            self._database.connect, self._database.driver_error, self._connection_problem, self.context.wait, logger
        )

    def _connection_problem(self, error: Exception) -> str:
        """Describe an error that may be temporary. Raises ConnectError for any other error."""
        problem = f"Cannot connect to {self._database.address}: {self._database.error_text(error)}"
        if not self._database.is_transient(error):
            raise ConnectError(problem) from error
        return problem

    def put(self, records: SinkRecords) -> None:
        """Write all records. Raises RetriableError after an error that may be temporary."""
        if not len(records):
            return
        runs, errors = self._builder.build(records)
        if errors and not self.context.tolerates_errors:
            raise RecordErrors({min(errors): errors[min(errors)]})
        try:
            errors |= self._write(runs, records)
        except self._database.driver_error as error:
            self._handle(error)
        self._retries.succeeded()
        if errors:
            raise RecordErrors(errors)

    def _write(self, runs: Sequence[Run], records: SinkRecords) -> dict[int, Exception]:
        """Write the runs in one transaction, and return the errors of rejected records by index.

        Raises RecordErrors for the first rejected record if errors are not tolerated, and the driver's exception for an
        error that does not concern the data of a record.
        """
        from headrace_connectors.jdbc.writing.transaction import Writer

        if self._connection is None:
            self._connection = self._database.connect()
        writer = Writer(
            self._database,
            self._tables,
            self._connection,
            records,
            self.context.tolerates_errors,
            uses_savepoints=self._uses_savepoints,
        )
        try:
            errors = writer.write(runs)
        except Exception:
            self._roll_back()
            raise
        self._uses_savepoints = bool(errors)
        return errors

    def _handle(self, error: Exception) -> None:
        """Raise RetriableError for an error that may be temporary, at most `max.retries` times in a row.

        Otherwise raise ConnectError.
        """
        problem = f"Cannot write to {self._database.address}: {self._database.error_text(error)}"
        self._tables.clear()
        if not self._database.is_transient(error):
            raise ConnectError(problem) from error
        self._disconnect()
        retry = self._retries.failed(problem, error)
        self.context.timeout(retry.pause_ms)
        raise RetriableError(retry.text) from error

    def _roll_back(self) -> None:
        try:
            self._connection.rollback()
        except self._database.driver_error as error:
            logger.debug("Rollback failed, because the connection is lost: %s", error)
            self._disconnect()
        self._database.transaction_failed()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except self._database.driver_error as error:
            logger.debug("Cannot close the lost connection to the database: %s", error)

    def stop(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._disconnect()


class JdbcSinkConnector(SinkConnector[JdbcSinkConfig]):
    """Starts `tasks.max` tasks, each with a connection of its own."""

    task_class = JdbcSinkTask
    java_names = ("io.confluent.connect.jdbc.JdbcSinkConnector", "io.aiven.connect.jdbc.JdbcSinkConnector")

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return the names of the modules that each task imports for the database in `connection.url`.

        The platform imports these modules only once. All tasks then share the memory of the imported modules.
        """
        from headrace_connectors.jdbc.writing.databases import modules_for

        return [__name__, *modules_for(props.get("connection.url", ""))]

    @classmethod
    def required_extra(cls, props: Mapping[str, str]) -> str:
        """Return the extra that installs SQLAlchemy and the driver for `connection.url`."""
        return extra_for(props.get("connection.url", ""))

    def validate_config(self, config: JdbcSinkConfig) -> Iterator[ConfigError]:
        """Yield an error if the driver is not installed, or if the server rejects the connection."""
        database = _database(config)
        try:
            database.check_connection()
        except database.driver_error as error:
            text, is_denied = database.error_text(error), database.is_denied(error)
            yield connection_error(database.url, config, text, is_denied=is_denied)

    def alter_offsets(self, config: JdbcSinkConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Return True for any offsets, because the task stores no offsets in the database."""
        return True
