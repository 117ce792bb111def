"""JdbcSourceConnector: tables, or a query, of an SQL database to topics; at least once.

The connector lists tables and shares them among tasks; a thread looks for new and dropped tables. A task takes its
tables in turn: it runs a statement to its end, batch by batch, and comes back to the table after `poll.interval.ms`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.api.config_def import ConfigValue
from headrace.api.connector import SourceConnector
from headrace.api.errors import ConfigError, ConnectError, RetriableError
from headrace.api.task import SourceTask
from headrace.data.batch import SourceBatch
from headrace_connectors.jdbc import url
from headrace_connectors.jdbc.config import JdbcSourceConfig, JdbcSourceTaskConfig
from headrace_connectors.jdbc.offsets import QUERY_PARTITION, Position, older_partitions, table_partition
from headrace_connectors.jdbc.tables import chosen, groups, is_named, missing, refuse_ambiguous

if TYPE_CHECKING:
    from headrace_connectors.jdbc.dialects import Dialect
    from headrace_connectors.jdbc.reader import TableReader

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def _dialect(config: JdbcSourceConfig) -> Dialect:
    from headrace_connectors.jdbc.databases import dialect_for  # SQLAlchemy is loaded where a database is opened

    return dialect_for(url.parse(config.connection_url), config)


class JdbcSourceTask(SourceTask):
    """Reads its tables one after the other over one connection."""

    config_model = JdbcSourceTaskConfig
    poll_block_s = 1.0

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._connection: Any = None
        self._readers: list[TableReader] = []
        self._reading = ""  # the table whose turn it is
        self._failures = 0

    def start(self, config: JdbcSourceTaskConfig) -> None:
        from headrace_connectors.jdbc.reader import Source, TableReader

        self._config = config
        self._dialect = _dialect(config)
        self._connection = _attempt(config, self._dialect, self._dialect.connect, self._stopping)
        sources = [
            Source(table, config.topic_prefix + table.rsplit(".", 1)[-1], table_partition(table))
            for table in config.tables
        ]
        if config.sql:
            sources = [Source("", config.topic_prefix, dict(QUERY_PARTITION))]
        self._readers = [TableReader(self._dialect, config, source, self._position(source.table)) for source in sources]
        self._due = {id(reader): 0.0 for reader in self._readers}

    def _position(self, table: str) -> Position:
        if self._config.mode == "bulk":
            return Position()
        partitions = [table_partition(table), *older_partitions(table)] if table else [dict(QUERY_PARTITION)]
        offsets = self.context.offsets.read_all(partitions)
        return Position.from_map(next((offset for offset in offsets if offset), None))

    def poll(self) -> SourceBatch | None:
        """The next batch of the table whose turn it is; None after a second without rows."""
        if not self._readers:
            self._stopping.wait(self.poll_block_s)
            return None
        try:
            batch = self._next_batch()
        except self._dialect.driver_error as error:
            if not self._dialect.is_transient(error):
                table = f"table {self._reading}: " if self._reading else ""
                raise ConnectError(f"{table}the database refuses the query: {self._dialect.reason(error)}") from error
            self._reconnect(error)
            return None
        self._failures = 0
        return batch

    def _next_batch(self) -> SourceBatch | None:
        if self._connection is None:
            self._connection = self._dialect.connect()
        until = time.monotonic() + self.poll_block_s
        while not self._stopping.is_set():
            reader = min(self._readers, key=lambda reader: (not reader.running, self._due[id(reader)]))
            wait = min(self._due[id(reader)], until) - time.monotonic()
            if not reader.running and wait > 0:
                self._stopping.wait(wait)
            if not reader.running and self._due[id(reader)] > time.monotonic():
                return None
            self._reading = reader.source.table
            batch = reader.next_batch(self._connection)
            if batch is not None:
                return batch
            self._due[id(reader)] = time.monotonic() + self._config.poll_interval_ms / 1000
        return None

    def _reconnect(self, error: Exception) -> None:
        for reader in self._readers:
            reader.abandon()
        self._close_connection()
        self._failures += 1
        attempts = self._config.query_retry_attempts
        if attempts >= 0 and self._failures > attempts:
            raise ConnectError(f"the database failed {self._failures} times in a row: {error}") from error
        self._stopping.wait(min(1.0, 0.2 * self._failures))
        raise RetriableError(f"the database failed, trying again: {error}") from error

    def wake_up(self) -> None:
        self._stopping.set()

    def stop(self) -> None:
        for reader in self._readers:
            reader.abandon()
        self._close_connection()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except self._dialect.transient_errors as error:
                logger.debug("closing a broken connection: %s", error)


class JdbcSourceConnector(SourceConnector):
    """Shares the tables of a database among tasks."""

    config_model = JdbcSourceConfig
    task_class = JdbcSourceTask
    java_names = ("io.confluent.connect.jdbc.JdbcSourceConnector", "io.aiven.connect.jdbc.JdbcSourceConnector")

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._monitor: threading.Thread | None = None
        self._tables: list[str] = []

    def start(self, config: JdbcSourceConfig) -> None:
        self._config = config
        self._dialect = _dialect(config)
        if config.sql:
            return
        self._tables = _attempt(config, self._dialect, self._list_tables, self._stopping)
        refuse_ambiguous(self._tables)
        logger.info("reading %d tables: %s", len(self._tables), ", ".join(self._tables) or "none yet")
        self._monitor = threading.Thread(target=self._watch, name="jdbc-table-monitor", daemon=True)
        self._monitor.start()

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        try:
            kind = url.parse(props.get("connection.url", "")).kind
        except ConfigError:
            return ()
        package = __package__ or ""
        return (
            __name__,
            f"{package}.reader",
            f"{package}.inspection",
            f"{package}.{kind}",
            f"sqlalchemy.dialects.{kind}",
        )

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        if self._config.sql:
            return [dict(self._config.originals)]
        return [
            {**self._config.originals, "tables": ",".join(group), "tables.fetched": "true"}
            for group in groups(self._tables, max_tasks)
        ]

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Look into the database: a driver or file that is missing, tables and cursor columns that are not there."""
        if any(value.errors for value in values.values()):
            return
        config = JdbcSourceConfig.parse(props)
        try:
            self._config, self._dialect = config, _dialect(config)
        except ConfigError as error:
            values[error.key].errors.append(str(error))
            return
        if config.table_whitelist:
            from headrace_connectors.jdbc.inspection import faults

            for key, message in faults(config, self._dialect, time.monotonic):
                values[key].errors.append(message)

    def stop(self) -> None:
        self._stopping.set()
        if self._monitor is not None:
            self._monitor.join(timeout=5)

    def _list_tables(self) -> list[str]:
        existing = self._dialect.table_names()
        for name in self._config.table_whitelist:
            if not any(is_named(name, table) for table in existing):
                logger.error("%s; it will be read once it is there", missing(name, existing))
        return chosen(self._config, existing)

    def _watch(self) -> None:
        """Ask for new task configurations whenever the list of tables changes."""
        while not self._stopping.wait(self._config.table_poll_interval_ms / 1000):
            try:
                tables = chosen(self._config, self._dialect.table_names())
            except self._dialect.driver_error as error:
                logger.warning("could not list the tables, the present list stays: %s", error)
                continue
            try:
                refuse_ambiguous(tables)
            except ConnectError as error:
                self.context.raise_error(error)
                return
            if tables != self._tables:
                logger.info("the tables changed: now %s", ", ".join(tables) or "none")
                self._tables = tables
                self.context.request_task_reconfiguration()


def _attempt(config: JdbcSourceConfig, dialect: Dialect, action: Callable[[], _T], stopping: threading.Event) -> _T:
    """Do what needs a connection, `connection.attempts` times at most. Raises ConnectError with the last reason."""
    for attempt in range(1, config.connection_attempts + 1):
        try:
            return action()
        except (dialect.driver_error, OSError) as error:
            if attempt == config.connection_attempts or stopping.is_set():
                raise ConnectError(
                    f"cannot connect to {url.shown(config.connection_url)} ({attempt} attempts): {error}"
                ) from error
            logger.warning(
                "attempt %d to connect failed, next in %d ms: %s", attempt, config.connection_backoff_ms, error
            )
            stopping.wait(config.connection_backoff_ms / 1000)
    raise AssertionError("connection.attempts is at least 1")
