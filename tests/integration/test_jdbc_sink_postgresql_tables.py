"""Tests that the JDBC sink writes correct rows to PostgreSQL tables, regardless of the number of records in a put."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from headrace.api.errors import ConnectError, DataError
from headrace.data.logical import TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.schema import (
    FLOAT64_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    struct,
)
from support import postgres
from support.jdbc_sink import item, put, put_after_change, record

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.integration,
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]

MANY = 60
"""More rows than the sink sends with INSERT."""
NOON = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
UPSERT = {"insert__mode": "upsert", "pk__mode": "record_key"}

Database = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


@pytest.fixture
def database(server: postgres.Postgres) -> Iterator[Database]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
def url(server: postgres.Postgres) -> str:
    return f"{server.jdbc_url}?user={server.user}"


def query(database: Database, sql: str) -> list[tuple[Any, ...]]:
    return database.execute(sql).fetchall()  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("count", [1, 3, MANY])
@pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
@pytest.mark.parametrize(
    ("before", "after", "schema", "first", "second"),
    [
        ("numeric(10,2)", "numeric(10,4)", decimal_schema(4), Decimal("1.5"), Decimal("1.2345")),
        ("real", "float8", FLOAT64_SCHEMA, 1.5, 0.1234567890123),
        ("int", "bigint", INT64_SCHEMA, 1, 2**40),
        ("date", "timestamp", TIMESTAMP_SCHEMA, NOON - dt.timedelta(hours=12), NOON),
    ],
)
def test_values_are_not_rounded_after_the_type_of_a_column_was_changed(
    url: str,
    database: Database,
    count: int,
    mode: str,
    before: str,
    after: str,
    schema: Schema,
    first: Any,
    second: Any,
) -> None:
    database.execute(f"CREATE TABLE items (id int PRIMARY KEY, v {before})")  # type: ignore[call-overload]
    row = struct([("id", INT32_SCHEMA), ("v", schema)])
    if mode != "insert":
        database.execute("INSERT INTO items SELECT generate_series(0, 199)")

    def records(offset: int, value: Any) -> list[Any]:
        first_id = offset if mode == "insert" else 0
        ids = range(first_id, first_id + count)
        return [record(offset + n, {"id": id_, "v": value}, row, key={"id": id_}) for n, id_ in enumerate(ids)]

    put_after_change(
        url,
        records(0, first),
        lambda: database.execute(f"ALTER TABLE items ALTER v TYPE {after}"),  # type: ignore[call-overload]
        records(count, second),
        insert__mode=mode,
        pk__mode="record_key",
    )
    expected = second if not isinstance(second, dt.datetime) else second.replace(tzinfo=None)
    found = [value for (value,) in query(database, "SELECT v FROM items WHERE v IS NOT NULL ORDER BY id")]
    assert found[-count:] == count * [expected]


@pytest.mark.parametrize("table", ["items", "headrace_stage_0"])
def test_upserts_write_to_the_right_table_if_a_table_has_the_same_name_as_the_sinks_temporary_table(
    url: str, database: Database, table: str
) -> None:
    database.execute("CREATE TABLE headrace_stage_0 (id int PRIMARY KEY, name text, price float8)")
    for name in ("old", "new"):
        put(url, [item(number, name) for number in range(MANY)], table__name__format=table, **UPSERT)
    assert query(database, f"SELECT name, count(*) FROM {table} GROUP BY name") == [("new", MANY)]
    if table == "items":
        assert query(database, "SELECT count(*) FROM headrace_stage_0") == [(0,)]


@pytest.mark.parametrize("count", [3, MANY])
def test_insert_rule_of_a_postgresql_table_redirects_the_inserted_rows_to_another_table(
    url: str, database: Database, count: int
) -> None:
    database.execute("CREATE TABLE items (id int, name text, price float8); CREATE TABLE other (LIKE items)")
    move = "CREATE RULE move AS ON INSERT TO items DO INSTEAD INSERT INTO other VALUES (NEW.*)"
    first = [item(number) for number in range(count)]
    second = [item(number) for number in range(count, 2 * count)]
    put_after_change(url, first, lambda: database.execute(move), second)
    assert query(database, "SELECT count(*), max(id) FROM items") == [(count, count - 1)]
    assert query(database, "SELECT count(*), min(id) FROM other") == [(count, count)]


@pytest.mark.parametrize("count", [3, MANY])
def test_column_is_added_for_a_field_whose_name_differs_from_another_field_only_in_case(
    url: str, database: Database, count: int
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    schema = struct([("id", INT32_SCHEMA), ("name", STRING_SCHEMA), ("NAME", OPTIONAL_STRING_SCHEMA)])
    records = [record(n, {"id": n, "name": "lower", "NAME": "upper"}, schema, key={"id": n}) for n in range(count)]
    run = put(url, records, errors__tolerance="all", **UPSERT)
    assert len(run.reported) == count
    assert "missing fields (NAME) and auto-evolution is disabled" in str(run.reported[0][1])
    put(url, records, auto__evolve="true", **UPSERT)
    assert query(database, 'SELECT name, "NAME", count(*) FROM items GROUP BY 1, 2') == [("lower", "upper", count)]


@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_sink_writes_no_values_to_an_identity_column_with_the_clause_generated_always(
    url: str, database: Database, mode: str, count: int
) -> None:
    database.execute("CREATE TABLE items (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, price float8)")
    with pytest.raises(ConnectError, match=r"cannot insert a non-DEFAULT value into column .id."):
        put(url, [item(number) for number in range(count)], insert__mode=mode, pk__mode="record_key")
    put(url, [item(number) for number in range(count)], fields__whitelist="name,price")
    assert query(database, "SELECT count(*), min(id) FROM items") == [(count, 1)]


@pytest.fixture
def limited_url(url: str, database: Database) -> Iterator[str]:
    """Create a user who may only read and change the table `items`, and yield the connection URL for this user."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, price float8); CREATE ROLE limited LOGIN")
    database.execute("GRANT USAGE ON SCHEMA public TO limited; GRANT ALL ON items TO limited")
    yield url.replace("user=postgres", "user=limited")
    database.execute("DROP OWNED BY limited; DROP ROLE limited")


@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
def test_only_records_that_violate_a_row_level_security_policy_are_rejected(
    limited_url: str, database: Database, mode: str, count: int
) -> None:
    if mode == "update":
        database.execute("INSERT INTO items SELECT generate_series(0, 99)")
    database.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    database.execute("CREATE POLICY names ON items USING (true) WITH CHECK (name <> 'n1')")
    records = [item(number) for number in range(count)]
    run = put(limited_url, records, insert__mode=mode, pk__mode="record_key", errors__tolerance="all")
    assert [found.offset for found, _ in run.reported] == [1]
    assert "violates row-level security policy" in str(run.reported[0][1])
    assert query(database, "SELECT count(*) FROM items WHERE name IS NOT NULL") == [(count - 1,)]


def test_user_with_the_insert_privilege_for_only_the_written_columns_can_insert_rows(
    limited_url: str, database: Database
) -> None:
    database.execute("ALTER TABLE items ADD secret text; REVOKE ALL ON items FROM limited")
    database.execute("GRANT INSERT (id, name, price) ON items TO limited")
    put(limited_url, [item(number) for number in range(MANY)], pk__mode="record_key")
    assert query(database, "SELECT count(*) FROM items") == [(MANY,)]


@pytest.mark.parametrize("mode", ["upsert", "update"])
def test_users_who_may_not_create_temporary_tables_can_upsert_and_update_many_rows(
    limited_url: str, database: Database, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    database.execute("INSERT INTO items SELECT generate_series(0, 59)")
    database.execute("REVOKE TEMPORARY ON DATABASE postgres FROM public")
    try:
        records = [item(number, name, offset=number) for name in ("old", "new") for number in range(MANY)]
        put(limited_url, records, insert__mode=mode, pk__mode="record_key", batch__size=str(MANY))
    finally:
        database.execute("GRANT TEMPORARY ON DATABASE postgres TO public")
    assert query(database, "SELECT name, count(*) FROM items GROUP BY name") == [("new", MANY)]
    (text,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert text.startswith(
        'Table "items": the user has no privilege to copy rows to a temporary table (permission denied to create'
    )


def test_users_who_may_not_read_the_columns_that_they_update_can_update_many_rows(
    limited_url: str, database: Database
) -> None:
    database.execute("INSERT INTO items SELECT generate_series(0, 59)")
    database.execute("REVOKE ALL ON items FROM limited; GRANT SELECT (id), UPDATE (name, price) ON items TO limited")
    put(limited_url, [item(number) for number in range(MANY)], insert__mode="update", pk__mode="record_key")
    assert query(database, "SELECT count(name) FROM items") == [(MANY,)]


class TestDeferredConstraints:
    """Tests with constraints that PostgreSQL checks at COMMIT."""

    @pytest.mark.parametrize("count", [5, MANY])
    @pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
    def test_only_records_that_violate_a_foreign_key_are_rejected(
        self, url: str, database: Database, mode: str, count: int
    ) -> None:
        database.execute("CREATE TABLE owners (name text PRIMARY KEY)")
        database.execute("INSERT INTO owners SELECT 'n' || id FROM generate_series(0, 99) AS id WHERE id NOT IN (1, 3)")
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, price float8 CHECK (price > 0))")
        database.execute("ALTER TABLE items ADD FOREIGN KEY (name) REFERENCES owners DEFERRABLE INITIALLY DEFERRED")
        if mode == "update":
            database.execute("INSERT INTO items SELECT generate_series(0, 99)")
        records = [item(number, price=-1.0 if number == 2 else 1.0) for number in range(count)]
        run = put(url, records, insert__mode=mode, pk__mode="record_key", errors__tolerance="all")
        assert [found.offset for found, _ in run.reported] == [1, 2, 3]
        assert "is not present in table" in str(run.reported[0][1])
        assert "items_price_check" in str(run.reported[1][1])
        assert query(database, "SELECT count(name) FROM items") == [(count - 3,)]

    @pytest.mark.parametrize("mode", ["insert", "upsert"])
    def test_only_records_that_violate_a_unique_constraint_are_rejected(
        self, url: str, database: Database, mode: str
    ) -> None:
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, price float8)")
        database.execute("ALTER TABLE items ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED")
        records = [*(item(number) for number in range(MANY)), item(MANY, "n3"), item(MANY + 1)]
        run = put(url, records, insert__mode=mode, pk__mode="record_key", errors__tolerance="all")
        assert [found.offset for found, _ in run.reported] == [MANY]
        assert query(database, "SELECT count(*), max(id) FROM items") == [(MANY + 1, MANY + 1)]

    def test_records_with_foreign_keys_to_later_records_are_written_even_if_other_records_are_rejected(
        self, url: str, database: Database
    ) -> None:
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name text UNIQUE, price float8)")
        database.execute("ALTER TABLE items ADD parent text REFERENCES items (name) DEFERRABLE INITIALLY DEFERRED")
        schema = struct([("id", INT32_SCHEMA), ("name", STRING_SCHEMA), ("parent", STRING_SCHEMA)])
        parents = {MANY - 1: "n0", 7: "missing"}  # the parent of any other record is the next record
        rows = [{"id": n, "name": f"n{n}", "parent": parents.get(n, f"n{n + 1}")} for n in range(MANY)]
        rows[0]["parent"] = "n0"
        records = [record(n, row, schema, key={"id": n}) for n, row in enumerate(rows)]
        run = put(url, records, errors__tolerance="all", **UPSERT)
        assert [found.offset for found, _ in run.reported] == [1, 2, 3, 4, 5, 6, 7]
        assert query(database, "SELECT count(*) FROM items") == [(MANY - 7,)]

    def test_record_that_violates_a_foreign_key_fails_the_task_if_errors_are_not_tolerated(
        self, url: str, database: Database
    ) -> None:
        database.execute("CREATE TABLE owners (name text PRIMARY KEY); INSERT INTO owners VALUES ('n0'), ('n2')")
        database.execute("CREATE TABLE items (id int, name text, price float8)")
        database.execute("ALTER TABLE items ADD FOREIGN KEY (name) REFERENCES owners DEFERRABLE INITIALLY DEFERRED")
        with pytest.raises(DataError, match=r"rejects record items-0@1 for table .items."):
            put(url, [item(number) for number in range(3)])
        assert query(database, "SELECT count(*) FROM items") == [(0,)]
