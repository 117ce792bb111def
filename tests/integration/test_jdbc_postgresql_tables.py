"""Tests that the JDBC source reads, skips or rejects the right tables, columns and rows of a PostgreSQL server."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from headrace.api.config import config_def
from headrace.api.errors import ConnectError
from headrace.data.columns import CheckedRows
from headrace.data.schema import Type
from headrace.testing import run_source
from headrace_connectors.jdbc import postgresql_rows
from headrace_connectors.jdbc.postgresql import PostgresqlDialect
from headrace_connectors.jdbc.postgresql_rows import ServerSideRows
from headrace_connectors.jdbc.source import JdbcSourceConnector
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.url import parse
from support import postgres
from support.jdbc import Offsets, drain, read_all, rows

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.integration,
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]

Database = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


@pytest.fixture
def database(server: postgres.Postgres) -> Iterator[Database]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA public")


@pytest.fixture
def props(server: postgres.Postgres) -> dict[str, str]:
    return {"connection.url": server.jdbc_url, "connection.user": server.user, "mode": "bulk"}


def topics(props: dict[str, str], **more: str) -> list[str]:
    given = {**props, **{name.replace("__", "."): value for name, value in more.items()}}
    return sorted({batch.topic for batch in read_all(given)})


def validation_errors(props: dict[str, str]) -> dict[str, list[str]]:
    values = config_def(JdbcSourceConfig).validate(props)
    JdbcSourceConnector().validate(props, values)
    return {name: value.errors for name, value in values.items() if value.errors}


ODD_TYPES = {
    "money": "'12.5'::money",
    "int[]": "'{1,2}'",
    "text[]": """'{a,"b c"}'""",
    "interval": "'1 day 02:00'",
    "int4range": "'[1,5)'",
    "inet": "'10.0.0.1/8'",
    "cidr": "'10.0.0.0/8'",
    "timetz": "'12:00:00+02'",
    "point": "'(1,2)'",
    "tsvector": "'a b'",
}
ODD_TEXTS = [
    *("$12.50", "{1,2}", '{a,"b c"}', "1 day, 2:00:00", "[1,5)", "10.0.0.1/8", "10.0.0.0/8"),
    *("12:00:00+02", "(1,2)", "'a' 'b'"),
]
ODD_TEXTS[3] = "1 day 02:00:00"


def create_odd_table(database: Database) -> None:
    columns = ", ".join(f'"{kind}" {kind}' for kind in ODD_TYPES)
    database.execute(f"CREATE TABLE odd (id int PRIMARY KEY, {columns})")
    database.execute(f"INSERT INTO odd VALUES (1, {', '.join(ODD_TYPES.values())})")


def test_columns_without_a_connect_type_are_read_as_text(database: Database, props: dict[str, str]) -> None:
    create_odd_table(database)
    (batch,) = read_all(props)
    assert batch.value_schema is not None
    assert {field.schema.type for field in batch.value_schema.fields[1:]} == {Type.STRING}
    assert batch.values == [(1, *ODD_TEXTS)]


def test_query_reads_columns_without_a_connect_type_as_text(database: Database, props: dict[str, str]) -> None:
    create_odd_table(database)
    props = {**props, "query": "SELECT * FROM odd; -- all rows", "topic.prefix": "odd"}
    assert rows(read_all(props)) == [(1, *ODD_TEXTS)]


def test_query_may_contain_percent_signs(database: Database, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2), (3)")
    props = {**props, "query": "SELECT id FROM t WHERE id % 2 = 1 AND 'a%' LIKE 'a%'", "topic.prefix": "odd"}
    assert sorted(rows(read_all(props))) == [(1,), (3,)]


def test_columns_without_a_connect_type_are_skipped_with_a_warning(
    database: Database, props: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The setting is ``unsupported.columns=warn``."""
    create_odd_table(database)
    with caplog.at_level(logging.WARNING):
        assert rows(read_all({**props, "unsupported.columns": "warn"})) == [(1,)]
    assert "table public.odd: no Connect type can represent the columns money (MONEY)" in caplog.text


def test_validation_and_source_fail_if_a_column_has_no_connect_type(database: Database, props: dict[str, str]) -> None:
    """The setting is ``unsupported.columns=fail``."""
    create_odd_table(database)
    props = {**props, "unsupported.columns": "fail", "table.whitelist": "odd"}
    (message,) = validation_errors(props)["unsupported.columns"]
    assert "table public.odd: no Connect type can represent the columns money (MONEY)" in message
    with pytest.raises(ConnectError, match=r"set unsupported.columns=text"):
        read_all(props)


def test_domains_are_read_as_their_base_types(database: Database, props: dict[str, str]) -> None:
    database.execute(
        "CREATE DOMAIN amount AS numeric(6,2); CREATE DOMAIN price AS amount; CREATE DOMAIN tags AS text[]"
    )
    database.execute("CREATE TABLE shoes (size price, labels tags, owner oid)")
    database.execute("INSERT INTO shoes VALUES (12.5, '{a}', 42)")
    (batch,) = read_all(props)
    assert batch.values == [(Decimal("12.50"), "{a}", 42)]
    assert batch.value_schema is not None
    size, _, owner = batch.value_schema.fields
    assert size.schema.parameters == {"scale": "2", "connect.decimal.precision": "6"}
    assert owner.schema.type is Type.INT64


_FOREIGN = """
    CREATE EXTENSION IF NOT EXISTS file_fdw; CREATE SERVER IF NOT EXISTS files FOREIGN DATA WRAPPER file_fdw;
    CREATE FOREIGN TABLE {} SERVER files OPTIONS (program 'echo 1,', format 'csv')
"""
UNENFORCED = {
    "view with a domain": """
        CREATE DOMAIN code AS int NOT NULL; CREATE TABLE labels (id int NOT NULL, v code NOT NULL);
        CREATE TABLE items (id int NOT NULL); INSERT INTO items VALUES (1);
        CREATE VIEW t AS SELECT id, v FROM items LEFT JOIN labels USING (id)
    """,
    "parent table": """
        CREATE TABLE t (id int NOT NULL, v int); CREATE TABLE child () INHERITS (t);
        CREATE TABLE grandchild () INHERITS (child); ALTER TABLE ONLY t ALTER v SET NOT NULL;
        ALTER TABLE ONLY child ALTER v SET NOT NULL; INSERT INTO grandchild VALUES (1, NULL)
    """,
    "foreign table": _FOREIGN.format("t (id int NOT NULL, v int NOT NULL)"),
    "partitioned table with a foreign partition": "CREATE TABLE t (id int NOT NULL, v int NOT NULL) "
    "PARTITION BY RANGE (id);" + _FOREIGN.format("p PARTITION OF t FOR VALUES FROM (0) TO (10)"),
}
"""Tables whose column `v` contains NULL, although it is described as NOT NULL."""
ALL_TYPES = "TABLE,VIEW,PARTITIONED TABLE,FOREIGN TABLE"


@pytest.mark.parametrize("name", UNENFORCED)
def test_field_of_a_not_null_column_is_optional_if_the_constraint_is_not_enforced(
    database: Database, props: dict[str, str], name: str
) -> None:
    """The column contains NULL, for example in a row of a child table without the constraint."""
    database.execute(UNENFORCED[name])
    try:
        (batch,) = read_all({**props, "table.types": ALL_TYPES, "table.whitelist": "t"})
    finally:
        database.execute("DROP EXTENSION IF EXISTS file_fdw CASCADE")
    assert batch.value_schema is not None
    assert [field.schema.optional for field in batch.value_schema.fields][1] is True
    assert batch.values == [(1, None)]
    assert isinstance(batch.compact, CheckedRows)


def test_field_is_required_if_all_partitions_and_child_tables_enforce_not_null(
    database: Database, props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE parts (id int NOT NULL, v int NOT NULL) PARTITION BY RANGE (id)")
    database.execute(
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10); INSERT INTO parts VALUES (1, 2)"
    )
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL); CREATE TABLE c () INHERITS (t)")
    database.execute("INSERT INTO c VALUES (1, 2)")
    for table in ("parts", "t"):
        (batch,) = read_all({**props, "table.types": ALL_TYPES, "table.whitelist": table})
        assert batch.value_schema is not None
        assert [field.schema.optional for field in batch.value_schema.fields] == [False, False]
        assert batch.values == [(1, 2)]


def test_field_becomes_optional_when_a_child_table_without_the_not_null_constraint_is_added(
    database: Database, props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE t (id int NOT NULL, v int NOT NULL); INSERT INTO t VALUES (1, 2)")
    database.execute("CREATE TABLE c (id int NOT NULL, v int NOT NULL); ALTER TABLE c INHERIT t")
    dialect = PostgresqlDialect(parse(props["connection.url"]), JdbcSourceConfig.parse(props | {"topic.prefix": "x"}))
    connection = dialect.connect()
    before = dialect.shape(connection, "public.t")
    database.execute("ALTER TABLE c NO INHERIT t; ALTER TABLE c ALTER v DROP NOT NULL")
    database.execute("ALTER TABLE ONLY t ALTER v DROP NOT NULL; ALTER TABLE c INHERIT t")
    database.execute("ALTER TABLE ONLY t ALTER v SET NOT NULL; INSERT INTO c VALUES (3, NULL)")
    assert dialect.shape(connection, "public.t") != before
    connection.close()


REVERSED = {
    "type": ("ALTER TABLE t ALTER v TYPE text", "ALTER TABLE t ALTER v TYPE int USING 5"),
    "names of columns": ("ALTER TABLE t RENAME v TO w", "ALTER TABLE t RENAME w TO v"),
    "new column": ("ALTER TABLE t ADD w int", "ALTER TABLE t DROP w"),
    "other table": (
        "ALTER TABLE t RENAME TO old; ALTER TABLE other RENAME TO t",
        "ALTER TABLE t RENAME TO other; ALTER TABLE old RENAME TO t",
    ),
    "other schema": ("ALTER SCHEMA public RENAME TO old", "ALTER SCHEMA old RENAME TO public"),
    "column of a child table": ("ALTER TABLE c ALTER v SET NOT NULL", "ALTER TABLE c ALTER v DROP NOT NULL"),
    "child table": ("ALTER TABLE c NO INHERIT t", "ALTER TABLE c INHERIT t"),
}


@pytest.mark.parametrize("name", REVERSED)
def test_change_of_the_table_definition_is_detected_even_if_it_was_reversed(
    database: Database, props: dict[str, str], name: str
) -> None:
    """After the change and its reversal, the method `shape` returns a different value than before."""
    database.execute("CREATE TABLE t (id int NOT NULL, v int); CREATE TABLE c () INHERITS (t); CREATE TABLE other ()")
    dialect = PostgresqlDialect(parse(props["connection.url"]), JdbcSourceConfig.parse(props | {"topic.prefix": "x"}))
    connection = dialect.connect()
    before = dialect.shape(connection, "public.t")
    for statements in REVERSED[name]:
        database.execute(statements)
    assert dialect.shape(connection, "public.t") != before
    connection.close()


def test_change_of_rows_is_not_detected_as_a_change_of_the_table_definition(
    database: Database, props: dict[str, str]
) -> None:
    """The method `shape` returns the same value as before."""
    database.execute("CREATE TABLE t (id int NOT NULL, v int); CREATE TABLE c () INHERITS (t)")
    dialect = PostgresqlDialect(parse(props["connection.url"]), JdbcSourceConfig.parse(props | {"topic.prefix": "x"}))
    connection = dialect.connect()
    before = dialect.shape(connection, "public.t")
    for statement in ("INSERT INTO t VALUES (1, 2)", "ANALYZE t", "VACUUM FREEZE t", "CREATE INDEX ON t (id)"):
        database.execute(statement)
        assert dialect.shape(connection, "public.t") == before
    connection.close()


def test_column_that_is_declared_not_null_in_a_foreign_table_can_be_the_incrementing_column(
    database: Database, props: dict[str, str]
) -> None:
    database.execute(_FOREIGN.format("t (id int NOT NULL, v int)"))
    props = {**props, "mode": "incrementing", "incrementing.column.name": "id", "topic.prefix": "x"}
    props |= {"table.types": "FOREIGN TABLE", "table.whitelist": "t"}
    try:
        assert validation_errors(props) == {}
        assert rows(read_all(props)) == [(1, None)]
    finally:
        database.execute("DROP EXTENSION file_fdw CASCADE")


def test_numeric_column_without_a_precision_has_the_configured_scale(database: Database, props: dict[str, str]) -> None:
    """The setting is `numeric.unconstrained.scale`. A value that needs a larger scale fails the source."""
    database.execute("CREATE TABLE numbers (n numeric); INSERT INTO numbers VALUES (1.25)")
    assert rows(read_all({**props, "numeric.unconstrained.scale": "2"})) == [(Decimal("1.25"),)]
    with pytest.raises(
        ConnectError, match=r"numbers, column n, row .*: 1.25 does not fit|does not fit a decimal with 1"
    ):
        read_all({**props, "numeric.unconstrained.scale": "1"})


def test_rows_of_partitioned_tables_are_read_once(database: Database, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE events (id int, day date) PARTITION BY RANGE (day)")
    for year in (2025, 2026):
        database.execute(
            f"CREATE TABLE events_{year} PARTITION OF events FOR VALUES FROM ('{year}-01-01') TO ('{year + 1}-01-01')"
        )
    database.execute("INSERT INTO events VALUES (1, '2025-05-05'), (2, '2026-05-05')")
    assert topics(props) == ["events_2025", "events_2026"]
    assert topics(props, table__types="TABLE,PARTITIONED TABLE") == ["events"]
    assert len(rows(read_all({**props, "table.types": "PARTITIONED TABLE"}))) == 2


def test_source_reads_only_tables_whose_types_are_in_table_types(database: Database, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE orders (id int); INSERT INTO orders VALUES (1)")
    database.execute("CREATE VIEW recent AS SELECT * FROM orders")
    database.execute("CREATE MATERIALIZED VIEW totals AS SELECT count(*) AS n FROM orders")
    assert topics(props) == ["orders"]
    assert topics(props, table__types="view") == ["recent"]
    assert topics(props, table__types="MATERIALIZED VIEW") == ["totals"]
    assert topics(props, table__types="TABLE, VIEW, MATERIALIZED VIEW") == ["orders", "recent", "totals"]
    (message,) = validation_errors({**props, "table.whitelist": "totals"})["table.whitelist"]
    assert message == (
        "Invalid value totals for configuration table.whitelist: totals is a MATERIALIZED VIEW, which table.types does "
        "not contain: add MATERIALIZED VIEW to table.types"
    )


def test_source_logs_the_available_tables_if_its_selection_matches_no_table(
    database: Database, props: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    database.execute("CREATE TABLE orders (id int)")
    with caplog.at_level(logging.WARNING):
        assert read_all({**props, "table.include.list": "public[.]order"}) == []
    assert "No table is selected. These tables of the database have a type in table.types: public.orders" in caplog.text


@pytest.mark.parametrize("name", ['"a.b"', "a.b", 'public."a.b"', '{database}.public."a.b"', '"public"."a.b"'])
def test_table_whose_name_contains_a_dot_can_be_listed_in_table_whitelist(
    database: Database, props: dict[str, str], server: postgres.Postgres, name: str
) -> None:
    database.execute('CREATE TABLE "a.b" (id int PRIMARY KEY); INSERT INTO "a.b" VALUES (1); CREATE TABLE b (id int)')
    name = name.replace("{database}", database.info.dbname)
    (batch,) = read_all({**props, "table.whitelist": name, "topic.prefix": "t-"})
    assert (batch.topic, batch.source_partition["table"]) == ("t-a.b", "public.a.b")
    assert batch.value_schema is not None
    assert batch.value_schema.name == "a.b"


UNMAPPABLE = {
    "date": {"infinity": 2**31 - 1, "-infinity": -(2**31)},
    "timestamp": {"infinity": 2**63 - 1, "-infinity": -(2**63)},
    "timestamptz": {"infinity": 2**63 - 1, "-infinity": -(2**63)},
    "time": {"24:00:00": 86_399_999},
}
FORMATS = pytest.mark.parametrize("other", ["int", "real"], ids=["binary", "text"])
"""The type of another column. The source reads tables in binary format, but tables with reals in text format."""


@FORMATS
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "date",
            {
                "5874897-12-31": 2145042905,
                "10000-01-01": 2932897,
                "9999-12-31": 2932896,
                "1582-10-10": -141432,
                "0001-01-01": -719162,
                "0044-03-15 BC": -735160,
                "4713-01-01 BC": -2440550,
            },
        ),
        (
            "timestamp",  # America/New_York
            {
                "9999-12-31 23:59:59": 253402318799000,
                "294276-12-31 23:59:59.999999": 9224318033999999,
                "12345-07-01 12:00:00": 327419078400000,
                "0001-01-01 00:00:00": -62135579038000,
                "0044-03-15 12:00:00.5 BC": -63517763037500,
            },
        ),
        (
            "timestamptz",
            {
                "294276-12-31 23:59:59.999999+00": 9224318015999999,
                "10000-01-01 00:00:00+01": 253402297200000,
                "0044-03-15 12:00:00+00 BC": -63517780800000,
                "4713-01-01 00:00:00+00 BC": -210863520000000,
            },
        ),
    ],
)
def test_dates_and_timestamps_of_all_years_are_read(
    database: Database, props: dict[str, str], kind: str, values: dict[str, int], other: str
) -> None:
    database.execute(f"CREATE TABLE moments (id int PRIMARY KEY, at {kind}, other {other})")
    with database.cursor() as cursor:
        cursor.executemany("INSERT INTO moments VALUES (%s, %s)", list(enumerate(values)))
    props = {**props, "mode": "incrementing", "incrementing.column.name": "id", "db.timezone": "America/New_York"}
    assert [row[1] for row in rows(read_all(props))] == list(values.values())


@FORMATS
def test_source_offsets_may_be_in_years_that_python_does_not_support(
    database: Database, props: dict[str, str], other: str
) -> None:
    database.execute(f"CREATE TABLE moments (id int PRIMARY KEY, at timestamp NOT NULL, other {other})")
    texts = ["0044-03-15 BC", "0001-12-31 23:59:59.5 BC", "0001-01-01", "0001-01-01 00:00:00.000001", "2026-01-01"]
    with database.cursor() as cursor:
        cursor.executemany("INSERT INTO moments VALUES (%s, %s)", list(enumerate(texts)))
    props = {**props, "mode": "timestamp", "timestamp.column.name": "at", "db.timezone": "Europe/Berlin"}
    props = {**props, "batch.max.rows": "1", "tables": "public.moments", "poll.interval.ms": "600000"}
    offsets = Offsets()
    found = [row[0] for _ in texts for row in rows(drain(props, offsets, polls=1))]  # a restart after each row
    assert found == list(range(len(texts)))


@FORMATS
@pytest.mark.parametrize("kind", UNMAPPABLE)
def test_dates_and_times_out_of_range_are_handled_as_configured(
    database: Database, props: dict[str, str], kind: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The setting is `unmappable.values`. By default, a value out of range fails the source."""
    texts = list(UNMAPPABLE[kind])
    good = "12:30:00" if kind == "time" else "2026-01-01"
    database.execute(f"CREATE TABLE moments (id int PRIMARY KEY, at {kind}, other {other})")
    with database.cursor() as cursor:
        cursor.executemany("INSERT INTO moments VALUES (%s, %s)", list(enumerate([good, *texts, good])))
    last = len(texts) + 1
    props = {**props, "mode": "incrementing", "incrementing.column.name": "id"}
    with pytest.raises(
        ConnectError, match=rf"moments, column at, row id=1: .*, but .*{texts[0][:4]}.* is out of range"
    ):
        read_all(props)
    nulls = rows(read_all({**props, "unmappable.values": "null"}))
    assert [row[1] is None for row in nulls] == [False, *[True] * len(texts), False]
    clamped = rows(read_all({**props, "unmappable.values": "clamp"}))
    assert [row[0] for row in clamped] == list(range(last + 1))
    assert [row[1] for row in clamped[1:last]] == list(UNMAPPABLE[kind].values())
    skipped = rows(read_all({**props, "unmappable.values": "skip"}))
    assert [row[0] for row in skipped] == [0, last]
    assert "moments, column at, row id=1" in caplog.text


def test_source_fails_if_a_value_of_the_timestamp_column_is_out_of_range(
    database: Database, props: dict[str, str]
) -> None:
    """The setting `unmappable.values` does not apply, because the value would be part of a source offset."""
    database.execute("CREATE TABLE moments (id int PRIMARY KEY, at timestamp NOT NULL)")
    database.execute("INSERT INTO moments VALUES (1, '-infinity'), (2, '2026-01-01'), (3, 'infinity')")
    props = {**props, "mode": "timestamp", "timestamp.column.name": "at", "unmappable.values": "clamp"}
    props["batch.max.rows"] = "1"
    with pytest.raises(ConnectError, match=r"moments: the timestamp -infinity cannot be part of a source"):
        read_all(props)
    database.execute("DELETE FROM moments WHERE id = 1")
    assert [row[0] for row in rows(read_all(props))] == [
        2
    ]  # row 3 is not read: infinity is later than the current time


def test_polls_of_idle_tables_open_no_connections_and_a_changed_table_is_read_with_its_new_columns(
    database: Database, props: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        database.execute(f"CREATE TABLE t{number} (id serial PRIMARY KEY); INSERT INTO t{number} DEFAULT VALUES")
    opened: list[int] = []
    connect = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda *args, **more: opened.append(1) or connect(*args, **more))
    monkeypatch.setattr(
        psycopg.Connection, "connect", classmethod(lambda cls, *a, **m: opened.append(1) or connect(*a, **m))
    )
    props = {**props, "mode": "incrementing", "poll.interval.ms": "1000"}
    short = run_source(JdbcSourceConnector, props, records=100, idle_s=10)
    count, opened[:] = len(opened), []
    long = run_source(JdbcSourceConnector, props, records=100, idle_s=300)
    assert len(short.records) == len(long.records) == 5
    assert len(opened) == count
    database.execute("ALTER TABLE t0 ADD COLUMN note text DEFAULT 'new'")
    (record,) = run_source(JdbcSourceConnector, {**props, "table.whitelist": "t0"}, records=1).records
    assert dict(record.value) == {"id": 1, "note": "new"}


def test_rows_are_read_once_and_in_order_if_a_date_out_of_range_follows_many_rows(
    database: Database, props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE moments (id int PRIMARY KEY, at date, note text)")
    database.execute(  # more than fits in the socket's buffers, so that the server is still sending rows
        "INSERT INTO moments SELECT n, CASE n WHEN 2500 THEN 'infinity' ELSE '2026-01-01' END::date, repeat('x', 2000) "
        "FROM generate_series(1, 10000) n"
    )
    found = rows(
        read_all({**props, "mode": "incrementing", "incrementing.column.name": "id", "unmappable.values": "null"})
    )
    assert [row[0] for row in found] == list(range(1, 10001))
    assert [row[0] for row in found if row[1] is None] == [2500]


def test_large_table_is_read_with_several_fetch_statements(
    database: Database, props: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_rows, "_ROWS_PER_FETCH", 300)
    database.execute("CREATE TABLE numbers (id int PRIMARY KEY)")
    database.execute("INSERT INTO numbers SELECT generate_series(1, 3000)")
    batches = read_all({**props, "mode": "incrementing", "incrementing.column.name": "id", "batch.max.rows": "700"})
    assert [len(batch) for batch in batches] == [700, 700, 700, 700, 200]
    assert [row[0] for row in rows(batches)] == list(range(1, 3001))


@pytest.mark.parametrize("count", [1, 10_000])
def test_connection_can_be_used_after_a_cursor_is_closed_before_its_last_row(
    server: postgres.Postgres, count: int
) -> None:
    statement = Statement("SELECT n, repeat('x', 2000) FROM generate_series(1, 10000) n", ())
    with psycopg.connect(server.conninfo) as connection:
        for _ in range(2):
            cursor = ServerSideRows(connection, statement, binary=True, loaders={})
            assert len(cursor.fetchmany(count)) == count
            cursor.close()
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.timeout(300)
def test_closing_a_cursor_cancels_a_fetch_that_runs_for_a_long_time_on_the_server(server: postgres.Postgres) -> None:
    condition = "n <= 1000 OR pg_sleep(60) IS NOT NULL"
    statement = Statement(f"SELECT n FROM generate_series(1, 10000) n WHERE {condition}", ())
    with psycopg.connect(server.conninfo) as connection:
        cursor = ServerSideRows(connection, statement, binary=True, loaders={})
        assert len(cursor.fetchmany(1000)) == 1000
        started_s = time.monotonic()
        cursor.close()
        assert time.monotonic() - started_s < 30
        assert connection.closed or connection.execute("SELECT 1").fetchone() == (1,)


def test_query_that_fails_while_its_rows_are_fetched_is_reported_with_the_error_of_the_server(
    database: Database, props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE numbers (id int PRIMARY KEY)")
    database.execute("INSERT INTO numbers SELECT generate_series(1, 3000)")
    with pytest.raises(ConnectError, match="division by zero"):
        read_all({**props, "query": "SELECT id, 1 / (2500 - id) FROM numbers", "topic.prefix": "t"})
