"""JdbcSourceConnector: tables, or a query, of an SQL database to topics; at least once.

The connector lists tables and shares them among tasks; a thread looks for new and dropped tables. A task takes its
tables in turn: it runs a statement to its end, batch by batch, and comes back to the table after `poll.interval.ms`.
"""

from __future__ import annotations

import difflib
import logging
import re
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

if TYPE_CHECKING:
    from headrace_connectors.jdbc.reader import TableReader

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def _dialect(config: JdbcSourceConfig) -> Any:
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
        self._failures = 0

    def start(self, config: JdbcSourceTaskConfig) -> None:
        from headrace_connectors.jdbc.reader import Source, TableReader

        self._config = config
        self._dialect = _dialect(config)
        self._connection = _attempt(config, self._dialect.connect, self._stopping)
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
                raise ConnectError(f"the database refuses the query: {error}") from error
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
        self._stopping.wait(min(1.0, 0.1 * 2**self._failures))
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
        self._tables = _attempt(config, self._list_tables, self._stopping)
        _refuse_ambiguous(self._tables)
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
        return (__name__, f"{package}.reader", f"{package}.{kind}", f"sqlalchemy.dialects.{kind}")

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        if self._config.sql:
            return [dict(self._config.originals)]
        groups = _groups(self._tables, max_tasks)
        return [{**self._config.originals, "tables": ",".join(group), "tables.fetched": "true"} for group in groups]

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Look into the database: a driver or file that is missing, tables that are not there."""
        if any(value.errors for value in values.values()):
            return
        config = JdbcSourceConfig.parse(props)
        try:
            self._config, self._dialect = config, _dialect(config)
        except ConfigError as error:
            values[error.key].errors.append(str(error))
            return
        if not config.table_whitelist:
            return
        try:
            existing = self._dialect.table_names()
        except _database_errors(self._dialect) as error:
            reason = str(getattr(error, "orig", None) or error).partition("\n")[0]  # the driver's own words
            logger.warning("the database does not answer yet (%s): its tables are not checked", reason)
            return
        for name in config.table_whitelist:
            if not any(_names(name, table) for table in existing):
                values["table.whitelist"].errors.append(_missing(name, existing))

    def stop(self) -> None:
        self._stopping.set()
        if self._monitor is not None:
            self._monitor.join(timeout=5)

    def _list_tables(self) -> list[str]:
        existing = self._dialect.table_names()
        chosen = _chosen(self._config, existing)
        for name in self._config.table_whitelist:
            if not any(_names(name, table) for table in existing):
                logger.error("%s; it will be read once it is there", _missing(name, existing))
        return chosen

    def _watch(self) -> None:
        """Ask for new task configurations whenever the list of tables changes."""
        while not self._stopping.wait(self._config.table_poll_interval_ms / 1000):
            try:
                tables = _chosen(self._config, self._dialect.table_names())
            except _database_errors(self._dialect) as error:
                logger.warning("could not list the tables, the present list stays: %s", error)
                continue
            if tables != self._tables:
                logger.info("the tables changed: now %s", ", ".join(tables) or "none")
                self._tables = tables
                self.context.request_task_reconfiguration()


def _attempt(config: JdbcSourceConfig, action: Callable[[], _T], stopping: threading.Event) -> _T:
    """Do what needs a connection, `connection.attempts` times at most. Raises ConnectError with the last reason."""
    from sqlalchemy.exc import DBAPIError

    driver_errors = _driver_errors(url.parse(config.connection_url).kind)
    failures: tuple[type[Exception], ...] = (DBAPIError, OSError, *driver_errors)
    for attempt in range(1, config.connection_attempts + 1):
        try:
            return action()
        except failures as error:
            if attempt == config.connection_attempts or stopping.is_set():
                raise ConnectError(
                    f"cannot connect to {config.connection_url} ({attempt} attempts): {error}"
                ) from error
            logger.warning(
                "attempt %d to connect failed, next in %d ms: %s", attempt, config.connection_backoff_ms, error
            )
            stopping.wait(config.connection_backoff_ms / 1000)
    raise AssertionError("connection.attempts is at least 1")


def _database_errors(dialect: Any) -> tuple[type[Exception], ...]:
    from sqlalchemy.exc import DBAPIError

    errors: tuple[type[Exception], ...] = (DBAPIError, *dialect.transient_errors)
    return errors


def _driver_errors(kind: str) -> tuple[type[Exception], ...]:
    if kind == "sqlite":
        import sqlite3

        return (sqlite3.Error,)
    import psycopg

    return (psycopg.Error,)


def _chosen(config: JdbcSourceConfig, existing: Sequence[str]) -> list[str]:
    """The tables that the configuration selects."""
    tables = [table for table in existing if not any(_names(name, table) for name in config.table_blacklist)]
    if config.table_whitelist:
        tables = [table for table in tables if any(_names(name, table) for name in config.table_whitelist)]
    if config.table_include_list:
        tables = [table for table in tables if any(re.fullmatch(item, table) for item in config.table_include_list)]
    return [table for table in tables if not any(re.fullmatch(item, table) for item in config.table_exclude_list)]


def _names(name: str, table: str) -> bool:
    """Whether a name from a list means that qualified table: exact, or by its last parts."""
    return table == name or table.endswith("." + name)


def _missing(name: str, existing: Sequence[str]) -> str:
    short = [table.rsplit(".", 1)[-1] for table in existing]
    near = difflib.get_close_matches(name, [*existing, *short], n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(existing[:20]) or 'none'}"
    return f"table {name} does not exist in the database{hint}"


def _refuse_ambiguous(tables: Sequence[str]) -> None:
    short: dict[str, str] = {}
    for table in tables:
        name = table.rsplit(".", 1)[-1]
        if name in short:
            raise ConnectError(
                f"tables {short[name]} and {table} would share a topic: "
                "choose one in table.whitelist or by schema.pattern"
            )
        short[name] = table


def _groups(tables: Sequence[str], max_tasks: int) -> list[list[str]]:
    """Contiguous groups, as even as can be; the first ones take what is left over."""
    count = min(len(tables), max_tasks)
    groups, start = [], 0
    for index in range(count):
        size = len(tables) // count + (index < len(tables) % count)
        groups.append(list(tables[start : start + size]))
        start += size
    return groups
