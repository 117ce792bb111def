"""JdbcSourceConnector, which copies SQL tables, or the result of an SQL query, to topics.

The connector assigns tables to tasks, and a background thread checks for new and dropped tables. A task
reads its tables one after another. For each table it runs a query, returns all rows in batches, and
runs the query again after `poll.interval.ms`. Delivery is at least once.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.api.config_def import ConfigValue
from headrace.api.connector import SourceConnector
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError, RetriableError
from headrace.api.redaction import redact_passwords
from headrace.api.retries import Retries
from headrace.api.task import SourceTask
from headrace.data.batch import SourceBatch
from headrace_connectors.jdbc import url
from headrace_connectors.jdbc.altered_offsets import validate_source_offset
from headrace_connectors.jdbc.connections import connection_retries, extra_for
from headrace_connectors.jdbc.initial_load import (
    InitialLoad,
    distribute,
    from_task_config,
    to_task_config,
    unread,
)
from headrace_connectors.jdbc.names import matches, table_of
from headrace_connectors.jdbc.offsets import (
    QUERY_PARTITION,
    TimestampIncrementingOffset,
    legacy_partitions,
    table_partition,
)
from headrace_connectors.jdbc.source_config import JdbcSourceConfig, JdbcSourceTaskConfig
from headrace_connectors.jdbc.tables import (
    check_topics_unambiguous,
    group_tables,
    missing_table_message,
    names_of_types,
    select_tables,
    some_names,
    unsupported_reason,
)
from headrace_connectors.jdbc.unavailable import UnavailableError, UnavailableTables, query_retries

if TYPE_CHECKING:
    from headrace_connectors.jdbc.dialects import Dialect
    from headrace_connectors.jdbc.reader import TableOrQuery, TableReader

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def _dialect(config: JdbcSourceConfig) -> Dialect:
    from headrace_connectors.jdbc.databases import dialect_for  # this imports SQLAlchemy, which is slow

    return dialect_for(url.parse(config.connection_url), config)


class JdbcSourceTask(SourceTask[JdbcSourceTaskConfig]):
    """Reads the assigned tables one after another over one connection."""

    poll_block_s = 1.0
    sets_timestamps = False

    def __init__(self) -> None:
        self._connection: Any = None
        self._readers: list[TableReader] = []
        self._current_table = ""  # the table for error messages, empty for a custom query

    def start(self, config: JdbcSourceTaskConfig) -> None:
        from headrace_connectors.jdbc.reader import TableOrQuery

        self._config = config
        self._dialect = _dialect(config)
        self._connection = _with_retries(config, self._dialect, self._dialect.connect, self.context.wait)
        loads, ranges = from_task_config(config.initial_load)
        sources = [
            TableOrQuery(table, config.topic_prefix + table_of(table), table_partition(table), loads.get(table))
            for table in config.tables
        ]
        sources += [
            TableOrQuery(each.table, config.topic_prefix + table_of(each.table), each.partition, key_range=each)
            for each in ranges
        ]
        if config.sql:
            sources = [TableOrQuery("", config.topic_prefix, dict(QUERY_PARTITION))]
        self._readers = [self._reader(source) for source in sources]
        self._next_query_at = {id(reader): 0.0 for reader in self._readers}
        policy = query_retries(config.query_retry_attempts)
        self._retries, self._unavailable = Retries(policy), UnavailableTables(policy)

    def _reader(self, source: TableOrQuery) -> TableReader:
        from headrace_connectors.jdbc.reader import TableReader

        stored = self._stored_offset(source)
        try:
            start = TimestampIncrementingOffset.from_map(stored)
        except (ValueError, TypeError, OverflowError) as error:
            raise ConnectError(f"The stored offset {stored} of {source.name} is invalid: {error}") from error
        if self._config.mode == "timestamp":
            start = self._start_without_ids(source, stored, start)
        is_new_load = source.load is not None and stored is None
        if source.load is not None and is_new_load:
            started = source.load.started if self._config.uses_timestamp else None
            start = TimestampIncrementingOffset(started, source.load.last)
        return TableReader(
            self._dialect,
            self._config,
            source,
            start,
            commits_start=is_new_load,
            is_load_complete=self._completion_of_load(source),
            report_skipped=self.context.report_skipped if self.context.tolerates_errors else None,
        )

    def _start_without_ids(
        self, source: TableOrQuery, stored: Mapping[str, Any] | None, start: TimestampIncrementingOffset
    ) -> TimestampIncrementingOffset:
        """Return the start offset for mode=timestamp if mode=timestamp+incrementing may have stored the offset.

        mode=timestamp does not read the ranges of an initial load. If a range is not read completely, return an offset
        before all rows.
        """
        load = InitialLoad.from_offset(stored)
        if load is None or load.is_complete(source.table, self.context.offsets):
            return start.without_incrementing()
        logger.warning("Reading all rows of %s, because mode=timestamp cannot continue the initial load", source.name)
        return TimestampIncrementingOffset(None, start.incrementing)

    def _completion_of_load(self, source: TableOrQuery) -> Callable[[], bool] | None:
        """Return a function that tells whether the source may be read, because the initial load is complete.

        Returns None if the source may be read at once. In mode=incrementing, a table may be read during the initial
        load, because the table's reader and the ranges read different rows.
        """
        load = source.load
        if load is None or not self._config.uses_timestamp:
            return None
        return lambda: load.is_complete(source.table, self.context.offsets)

    def _stored_offset(self, source: TableOrQuery) -> Mapping[str, Any] | None:
        if self._config.mode == "bulk":
            return None
        if source.key_range is not None:
            return source.key_range.own_offset(self.context.offsets.read(source.partition))
        partitions = [source.partition]
        if source.table:
            partitions += legacy_partitions(source.table)
        return next((offset for offset in self.context.offsets.read_all(partitions) if offset), None)

    def poll(self) -> SourceBatch | None:
        """Return the next batch, or None if no row is available within `poll_block_s` seconds."""
        if not self._readers:
            self.context.wait(self.poll_block_s)
            return None
        try:
            batch = self._next_batch()
        except self._dialect.driver_error as error:
            if not self._dialect.is_transient(error):
                raise ConnectError(f"{self._query_failed()}: {self._dialect.error_text(error)}") from error
            self._disconnect(error)
            return None
        self._retries.succeeded()
        return batch

    def _next_batch(self) -> SourceBatch | None:
        if self._connection is None:
            self._connection = self._dialect.connect()
        deadline = self.context.monotonic() + self.poll_block_s
        for _ in self._readers:  # in one poll, each reader runs at most one statement that returns no rows
            reader = min(self._readers, key=lambda reader: (not reader.is_running, self._next_query_at[id(reader)]))
            wait_s = min(self._next_query_at[id(reader)], deadline) - self.context.monotonic()
            if not reader.is_running and wait_s > 0 and not self.context.wait(wait_s):
                return None
            if not reader.is_running and self._next_query_at[id(reader)] > self.context.monotonic():
                return None
            self._current_table = reader.source.table
            try:
                batch = reader.next_batch(self._connection)
            except UnavailableError as error:
                self._retry_later(reader, error)
                continue
            self._unavailable.remove(id(reader), reader.source.name)
            if reader.is_complete:
                self._readers.remove(reader)
            if batch is not None:
                return batch
            self._next_query_at[id(reader)] = self.context.monotonic() + self._config.poll_interval_ms / 1000
        return None

    def _retry_later(self, reader: TableReader, error: UnavailableError) -> None:
        """Schedule the next attempt to read a table or query. Raises ConnectError after the last retry."""
        self._dialect.end_transaction(self._connection)
        wait_s = self._unavailable.add(id(reader), error)
        self._next_query_at[id(reader)] = self.context.monotonic() + wait_s

    def _disconnect(self, error: Exception) -> None:
        """Close the connection after a transient error. Raises RetriableError, or ConnectError after the last retry."""
        for reader in self._readers:
            reader.close_statement()
        self._close_connection()
        retry = self._retries.failed(f"{self._query_failed()}: {error}", error)
        self.context.wait(retry.pause_s)
        raise RetriableError(retry.text) from error

    def _query_failed(self) -> str:
        """Return the start of an error message about a failed query."""
        return f"table {self._current_table}: the query failed" if self._current_table else "the query failed"

    def stop(self) -> None:
        for reader in self._readers:
            reader.close_statement()
        self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except self._dialect.transient_errors as error:
                logger.debug("Ignoring an error while closing a broken connection: %s", error)


class JdbcSourceConnector(SourceConnector[JdbcSourceConfig]):
    """Assigns the tables of a database to tasks."""

    task_class = JdbcSourceTask
    java_names = ("io.confluent.connect.jdbc.JdbcSourceConnector", "io.aiven.connect.jdbc.JdbcSourceConnector")

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._monitor: threading.Thread | None = None
        self._tables: list[str] = []
        self._loads: dict[str, InitialLoad | None] = {}
        self._unsupported_tables: set[str] = set()

    def start(self, config: JdbcSourceConfig) -> None:
        from headrace_connectors.jdbc.readable_tables import ReadableTables

        self._config = config
        self._dialect = _dialect(config)
        if config.sql:
            return
        self._tables = _with_retries(config, self._dialect, self._list_tables, self._wait)
        check_topics_unambiguous(self._tables)
        self._readable = ReadableTables(config, self._dialect)
        self._tables = _with_retries(config, self._dialect, lambda: self._readable.find(self._tables), self._wait)
        logger.info("Found %d tables to read: %s", len(self._tables), ", ".join(self._tables) or "none")
        in_context = contextvars.copy_context().run  # log lines of the thread then contain the connector's name
        self._monitor = threading.Thread(
            target=in_context, args=(self._monitor_tables,), name="jdbc-table-monitor", daemon=True
        )
        self._monitor.start()

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        try:
            parsed = url.parse(props.get("connection.url", ""))
        except ConfigError:
            return ()
        package = __package__ or ""
        shared = (__name__, f"{package}.reader", f"{package}.database_validation")
        if not parsed.is_known:
            return (*shared, f"{package}.generic")
        return (*shared, f"{package}.{parsed.dialect}", f"sqlalchemy.dialects.{parsed.dialect}")

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        if self._config.sql:
            return [dict(self._config.originals)]
        groups = group_tables(self._tables, max_tasks)
        loads = self._find_initial_loads() if self._config.uses_incrementing else {}
        ranges = [each for table, load in loads.items() for each in unread(load.ranges(table), self.context.offsets)]
        if not loads:
            return [self._task_config(group) for group in groups]
        return [
            self._task_config(tables)
            | {"initial.load": to_task_config({t: loads[t] for t in tables if t in loads}, own)}
            for tables, own in distribute(groups, ranges, max_tasks)
        ]

    def _task_config(self, tables: Sequence[str]) -> dict[str, str]:
        return {**self._config.originals, "tables": ",".join(tables), "tables.fetched": "true"}

    def _find_initial_loads(self) -> dict[str, InitialLoad]:
        """Return the initial loads that have begun, and new initial loads for tables that were never read.

        An initial load that has begun keeps its ranges, even if `initial.load.chunks` has changed.
        """
        for table in self._tables:
            if table not in self._loads:
                stored = self.context.offsets.read_all([table_partition(table), *legacy_partitions(table)])
                offset = next((each for each in stored if each), None)
                self._loads[table] = InitialLoad.from_offset(offset) if offset else self._new_initial_load(table)
        return {table: load for table in self._tables if (load := self._loads[table]) is not None}

    def _new_initial_load(self, table: str) -> InitialLoad | None:
        from headrace_connectors.jdbc.initial_split import initial_load_of

        if self._config.initial_load_chunks == 1:
            return None
        created_ms = time.time_ns() // 1_000_000
        return _with_retries(
            self._config,
            self._dialect,
            lambda: initial_load_of(table, self._config, self._dialect, created_ms),
            self._wait,
        )

    @classmethod
    def required_extra(cls, props: Mapping[str, str]) -> str:
        """Return the extra that installs SQLAlchemy and the driver for `connection.url`."""
        return extra_for(props.get("connection.url", ""))

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Validate the driver, the connection, and the query, tables and columns that the configuration names."""
        invalid = {key for key, value in values.items() if value.errors}
        try:  # omit invalid values, so that their errors do not hide errors in tables and columns
            config = JdbcSourceConfig.parse({key: text for key, text in props.items() if key not in invalid})
        except ConfigErrors:
            return
        try:
            self._config, self._dialect = config, _dialect(config)
        except ConfigError as error:
            values[error.key].errors.append(str(error))
            return
        if config.snapshot_horizon and not self._dialect.has_horizon:
            values["snapshot.horizon"].errors.append("snapshot.horizon=true needs PostgreSQL, MySQL or MariaDB")
        from headrace_connectors.jdbc.database_validation import database_errors

        for each in database_errors(config, self._dialect, time.monotonic):
            values[each.key].errors.append(str(each))

    def alter_offsets(self, config: JdbcSourceConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Validate the source partitions and offsets that a user wants to store.

        Raises ConnectError if a source partition or offset is invalid, or if an offset has no effect in the connector's
        mode. Any source partition can be reset, so that users can delete invalid source partitions.
        """
        for partition, offset in offsets.items():
            if offset is not None:
                validate_source_offset(config, dict(partition), offset)
        return True

    def stop(self) -> None:
        self._stopping.set()
        if self._monitor is not None:
            self._monitor.join(timeout=5)

    def _wait(self, seconds: float) -> bool:
        """Wait and return True. Return False as soon as `stop` is called."""
        return not self._stopping.wait(seconds)

    def _list_tables(self) -> list[str]:
        """Return the tables to read.

        This method logs an error for each missing table of `table.whitelist`. If no table is missing and no table is
        selected, this method logs a warning.
        """
        all_tables = self._dialect.tables()
        existing = names_of_types(all_tables, self._config.table_types)
        database = self._dialect.url.database
        missing = [
            name
            for name in self._config.table_whitelist
            if not any(matches(name, table, database) for table in existing)
        ]
        for name in missing:
            message = missing_table_message(name, existing, all_tables)
            logger.error("%s. The connector will read the table as soon as the table exists", message)
        selected = self._select(existing)
        if not selected and not missing:
            logger.warning(
                "No table is selected. These tables of the database have a type in table.types: %s",
                some_names(existing),
            )
        return selected

    def _select(self, existing: Sequence[str]) -> list[str]:
        selected = select_tables(self._config, existing, self._dialect.url.database)
        reasons = {table: reason for table in selected if (reason := unsupported_reason(table, self._config))}
        for table, reason in reasons.items():
            if table not in self._unsupported_tables:
                logger.error("Table %s is not read: %s", table, reason)
        self._unsupported_tables |= reasons.keys()
        return [table for table in selected if table not in reasons]

    def _monitor_tables(self) -> None:
        """Request new task configurations whenever the list of tables changes."""
        while not self._stopping.wait(self._config.table_poll_interval_ms / 1000):
            try:
                tables = self._readable.find(self._select(self._dialect.table_names()), self._tables)
            except self._dialect.driver_error as error:
                logger.warning("Cannot list the tables of the database, keeping the current list: %s", error)
                continue
            if tables != self._tables:
                logger.info("The tables to read are now %s; reconfiguring the tasks", ", ".join(tables) or "none")
                self._tables = tables
                self.context.request_task_reconfiguration()


def _with_retries(
    config: JdbcSourceConfig, dialect: Dialect, action: Callable[[], _T], wait: Callable[[float], bool]
) -> _T:
    """Call `action`, which opens a connection, up to `connection.attempts` times. Call `wait` between the attempts.

    Raises ConnectError if the last attempt fails or the connector is stopped.
    """
    address = redact_passwords(config.connection_url)
    return connection_retries(config).call(
        action,
        (dialect.driver_error, OSError),
        lambda error: f"Cannot connect to {address}: {error}",
        wait,
        logger,
    )
