"""Tests that the JDBC source reads correct rows while other transactions change its tables.

A statement of the source waits for a transaction that changes a table. The statement then reads the table with the new
definition, so the records must have the new schema.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import psycopg
import pymysql
import pytest

from headrace.data.batch import SourceBatch
from headrace.data.logical import Date
from headrace.data.schema import Field
from headrace_connectors.jdbc import reader
from headrace_connectors.jdbc.postgresql import PostgresqlDialect
from headrace_connectors.jdbc.source import JdbcSourceConnector, JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceConfig, JdbcSourceTaskConfig
from support import mariadb, postgres
from support.jdbc import Context, Offsets, rows
from support.worker import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.integration]

TABLE, QUERY = {"table.whitelist": "t"}, {"query": "SELECT * FROM t"}
# Each change adds a row. The row and the types of its fields, with a question mark for optional fields, must be read.
CHANGES = {
    "larger integer": ("MODIFY a bigint NOT NULL", "(2, 99999999999, 7)", (2, 99999999999, 7), "int32 int64 int32?"),
    "text": ("MODIFY a varchar(9) NOT NULL", "(2, 'hello', 7)", (2, "hello", 7), "int32 string int32?"),
    "nullable": ("MODIFY a int NULL", "(2, NULL, 7)", (2, None, 7), "int32 int32? int32?"),
    "dropped column": ("DROP COLUMN a", "(2, 7)", (2, 7), "int32 int32?"),
    "new column": ("ADD COLUMN c int", "(2, 5, 7, 8)", (2, 5, 7, 8), "int32 int32 int32? int32?"),
}


class Server(Protocol):
    """A database with a table `t`. A session locks and changes the table while the source waits for the lock."""

    url: Mapping[str, str]

    def begin(self, change: str) -> None:
        """Lock the table for `change`, the part of an ALTER TABLE statement after the table's name."""

    def is_waiting(self) -> bool:
        """Whether the source waits for the lock."""

    def end(self, values: str) -> None:
        """Complete the change, insert a row with `values` (such as "(2, 5)"), and release the lock."""


class PostgresqlServer:
    def __init__(self, server: postgres.Postgres) -> None:
        self.url = {"connection.url": server.jdbc_url, "connection.user": server.user}
        self.monitor = psycopg.connect(server.conninfo, autocommit=True)
        self.session = psycopg.connect(server.conninfo)
        self.create("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b int); INSERT INTO t VALUES (1, 5, 6)")

    def create(self, statements: str) -> None:
        self.monitor.execute(f"DROP SCHEMA public CASCADE; CREATE SCHEMA public; {statements}")

    def begin(self, change: str) -> None:
        if change == "MODIFY a int NULL":
            change = "ALTER a DROP NOT NULL"
        elif change.startswith("MODIFY a"):
            change = change.replace("MODIFY a", "ALTER a TYPE").removesuffix(" NOT NULL")
        self.session.execute(f"ALTER TABLE t {change}")

    def is_waiting(self) -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return bool(self.monitor.execute(query).fetchone()[0])  # type: ignore[index]

    def end(self, values: str) -> None:
        self.session.execute(f"INSERT INTO t VALUES {values}")
        self.session.commit()

    def close(self) -> None:
        self.monitor.close()
        self.session.close()


class MariadbServer:
    def __init__(self, server: mariadb.MariaDb) -> None:
        self.url = {"connection.url": server.jdbc_url, "connection.user": server.user}
        address: Any = {"host": "127.0.0.1", "port": server.port, "user": server.user, "database": "shop"}
        self.connections = [pymysql.connect(**address, autocommit=True) for _ in range(2)]
        self.monitor, self.session = (connection.cursor() for connection in self.connections)
        self.create("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b int); INSERT INTO t VALUES (1, 5, 6)")

    def create(self, statements: str) -> None:
        for statement in ("DROP TABLE IF EXISTS t", *statements.split(";")):
            self.monitor.execute(statement)

    def begin(self, change: str) -> None:
        self.session.execute("LOCK TABLES t WRITE")
        self.change = change

    def is_waiting(self) -> bool:
        self.monitor.execute(
            "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock'"
        )
        return bool(self.monitor.fetchone()[0])  # type: ignore[index]

    def end(self, values: str) -> None:
        self.session.execute(f"ALTER TABLE t {self.change}")
        self.session.execute(f"INSERT INTO t VALUES {values}")
        self.session.execute("UNLOCK TABLES")

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


@pytest.fixture(scope="module")
def postgres_process() -> Iterator[postgres.Postgres]:
    if reason := postgres.unavailable_reason():
        pytest.skip(reason)
    with postgres.running() as server:
        yield server


@pytest.fixture(scope="module")
def mariadb_process() -> Iterator[mariadb.MariaDb]:
    if reason := mariadb.unavailable_reason():
        pytest.skip(reason)
    with mariadb.running() as server:
        yield server


@pytest.fixture
def postgresql(postgres_process: postgres.Postgres) -> Iterator[PostgresqlServer]:
    server = PostgresqlServer(postgres_process)
    yield server
    server.close()


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "postgresql":
        yield request.getfixturevalue("postgresql")
        return
    found = MariadbServer(request.getfixturevalue("mariadb_process"))
    yield found
    found.close()


@contextmanager
def running_task(props: Mapping[str, str]) -> Iterator[JdbcSourceTask]:
    offsets = Offsets()
    settings = {"mode": "incrementing", "incrementing.column.name": "id", "topic.prefix": "x", "poll.interval.ms": "0"}
    connector = JdbcSourceConnector()
    connector.context = Context(offsets)
    connector.start(JdbcSourceConfig.parse({**settings, **props}))
    (config,) = connector.task_configs(1)
    connector.stop()
    task = JdbcSourceTask()
    task.poll_block_s = 0.0
    task.context = Context(offsets)  # type: ignore[assignment]
    task.start(JdbcSourceTaskConfig.parse(config))
    try:
        yield task
    finally:
        task.stop()


def read_during_change(
    monkeypatch: pytest.MonkeyPatch, server: Server, task: JdbcSourceTask, change: str, values: str
) -> SourceBatch:
    """Let the source query the table while another session changes it, and return the batch that the query reads.

    The change begins after the source has read the columns and before it starts the query. The query waits until the
    change is complete. `change` and `values` are passed to `server.begin` and `server.end`.
    """
    assert task.poll() is not None
    assert task.poll() is None
    before = reader.select

    def begin(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(reader, "select", before)
        server.begin(change)
        return before(*args, **more)

    monkeypatch.setattr(reader, "select", begin)
    with ThreadPoolExecutor(1) as executor:
        polled = executor.submit(lambda: next(batch for batch in iter(task.poll, object()) if batch is not None))
        wait_for(server.is_waiting, "the source waits for the lock", 40)
        server.end(values)
        batch = polled.result(timeout=20)
    assert isinstance(batch, SourceBatch)
    return batch


def types_of(fields: tuple[Field, ...]) -> str:
    return " ".join(f"{field.schema.type.value}{'?' if field.schema.optional else ''}" for field in fields)


@pytest.mark.parametrize("name", CHANGES)
def test_rows_of_a_table_have_the_new_schema_if_the_table_changes_before_the_query_starts(
    server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table changes after the source has read the columns."""
    change, values, row, types = CHANGES[name]
    with running_task({**server.url, **TABLE}) as task:
        batch = read_during_change(monkeypatch, server, task, change, values)
    assert batch.value_schema is not None
    assert (list(batch.values), types_of(batch.value_schema.fields)) == ([row], types)


@pytest.mark.parametrize("name", ["larger integer", "text", "new column"])
def test_rows_of_a_query_have_the_new_schema_if_the_table_changes_before_the_query_starts(
    server: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table changes after the source has read the columns."""
    change, values, row, types = CHANGES[name]
    with running_task({**server.url, **QUERY}) as task:
        batch = read_during_change(monkeypatch, server, task, change, values)
    assert batch.value_schema is not None
    expected = " ".join(each.rstrip("?") + "?" for each in types.split())  # a query may return NULL for any column
    assert (list(batch.values), types_of(batch.value_schema.fields)) == ([row], expected)


def test_column_is_read_as_a_date_if_its_type_changes_from_timestamp_to_date_after_the_task_has_read_the_column_types(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "timestamp" if isinstance(server, PostgresqlServer) else "datetime"
    server.create(f"CREATE TABLE t (id int PRIMARY KEY, a {kind} NOT NULL); INSERT INTO t VALUES (1, '2026-01-01')")
    with running_task({**server.url, **TABLE}) as task:
        batch = read_during_change(monkeypatch, server, task, "MODIFY a date NOT NULL", "(2, '2026-02-03')")
    assert list(batch.values) == [(2, Date.of(dt.date(2026, 2, 3)))]


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_column_rename_is_detected_if_the_snapshot_of_the_transaction_is_older_than_the_lock_on_the_table(
    postgresql: PostgresqlServer, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgresql.create(
        "CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL, b text NOT NULL); INSERT INTO t VALUES (1, 5, 'x')"
    )
    props = {**postgresql.url, **TABLE, "mode": "bulk", "transaction.isolation.mode": level}
    with running_task(props) as task:
        change = "RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b"
        batch = read_during_change(monkeypatch, postgresql, task, change, "(4, 4, 'z')")
    assert batch.value_schema is not None
    types = {field.name: field.schema.type.value for field in batch.value_schema.fields}
    assert types == {"id": "int32", "b": "int32", "a": "string"}
    assert dict(zip(types, batch.values[0], strict=True)) == {"id": 1, "b": 5, "a": "x"}


def test_source_reads_the_new_columns_if_its_table_is_replaced_by_a_renamed_table(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgresql.create(
        "CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 5); "
        "CREATE TABLE t2 (id int PRIMARY KEY, a text NOT NULL)"
    )
    with running_task({**postgresql.url, **TABLE}) as task:
        batch = read_during_change(
            monkeypatch, postgresql, task, "RENAME TO t3; ALTER TABLE t2 RENAME TO t", "(2, 'new')"
        )
    assert batch.value_schema is not None
    assert (list(batch.values), types_of(batch.value_schema.fields)) == ([(2, "new")], "int32 string")


def test_change_that_is_reversed_while_the_source_reads_the_columns_does_not_affect_the_schema(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgresql.create("CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'hello')")
    table_columns = PostgresqlDialect.table_columns

    def read_changed_columns(*args: Any) -> Any:
        monkeypatch.undo()
        postgresql.monitor.execute("ALTER TABLE t ALTER a TYPE int USING 5")
        columns = table_columns(*args)
        postgresql.monitor.execute("ALTER TABLE t ALTER a TYPE text USING 'hello'")
        return columns

    with running_task({**postgresql.url, **TABLE}) as task:
        monkeypatch.setattr(PostgresqlDialect, "table_columns", read_changed_columns)
        batch = task.poll()
    assert batch is not None
    assert batch.value_schema is not None
    assert (list(batch.values), types_of(batch.value_schema.fields)) == ([(1, "hello")], "int32 string?")


# For each case: the task's properties, statements that remove what it reads, and statements that restore it.
MISSING = {
    "table": (TABLE, "DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, a varchar(9), b int)"),
    "renamed table": (TABLE, "ALTER TABLE t RENAME TO old", "ALTER TABLE old RENAME TO t"),
    "table of a query": (QUERY, "ALTER TABLE t RENAME TO old", "ALTER TABLE old RENAME TO t"),
    "incrementing column": (TABLE, "ALTER TABLE t RENAME COLUMN id TO old", "ALTER TABLE t RENAME COLUMN old TO id"),
    "incrementing column of a query": (
        {"query": "SELECT id FROM t"},
        "ALTER TABLE t RENAME COLUMN id TO old",
        "ALTER TABLE t RENAME COLUMN old TO id",
    ),
    "timestamp column": (
        {**TABLE, "mode": "timestamp+incrementing", "timestamp.column.name": "at"},
        "ALTER TABLE t RENAME COLUMN at TO old",
        "ALTER TABLE t RENAME COLUMN old TO at",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_task_waits_until_its_table_and_its_offset_columns_exist_again(
    server: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    props, remove, restore = MISSING[name]
    server.create(
        "CREATE TABLE t (id int PRIMARY KEY, at timestamp NOT NULL DEFAULT '2026-01-01'); INSERT INTO t (id) VALUES (1)"
    )
    with running_task({**server.url, **props}) as task:
        task.poll_block_s = 1.0
        assert [row[0] for row in poll_rows(task, 2)] == [1]
        connection = task._connection
        server.monitor.execute(remove)
        assert poll_rows(task, 5) == []
        server.monitor.execute(restore)
        server.monitor.execute("INSERT INTO t (id) VALUES (2)")
        assert [row[0] for row in poll_rows(task, 3)] == [2]
        assert task._connection is connection
    assert caplog.text.count(". The task continues to read its other tables") == 1


def poll_rows(task: JdbcSourceTask, polls: int) -> list[tuple[Any, ...]]:
    """Call `poll` `polls` times and return all rows."""
    return rows([batch for _ in range(polls) if (batch := task.poll()) is not None])
