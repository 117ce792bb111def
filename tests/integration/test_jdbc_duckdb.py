"""Tests of the JDBC source with DuckDB.

The connector has no DuckDB dialect of its own and uses SQLAlchemy's dialect.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.data.logical import Date, Timestamp
from headrace.data.schema import Type
from support.jdbc import Offsets, read_all, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute(
            'CREATE TABLE "or:ders" (id INTEGER PRIMARY KEY, big BIGINT, price DECIMAL(8,2), rate DOUBLE, '
            "note VARCHAR, raw BLOB, day DATE, seen TIMESTAMP NOT NULL, flag BOOLEAN)"
        )
        database.execute(
            "INSERT INTO \"or:ders\" VALUES (1, 9000000000, 1.50, 0.1, 'a:b', '\\x00'::BLOB, DATE '2026-01-02', "
            "TIMESTAMP '2026-01-02 03:04:05.678', true), (2, NULL, NULL, NULL, NULL, NULL, NULL, "
            "TIMESTAMP '2026-01-02 03:04:06', NULL)"
        )
    return path


def test_duckdb_types_are_converted_to_connect_types(path: Path) -> None:
    (batch,) = read_all({"connection.url": f"jdbc:duckdb:{path}", "mode": "bulk", "topic.prefix": "duck-",
                         "transforms": "topic"})  # fmt: skip
    assert batch.topic == "duck-or:ders"
    assert batch.value_schema is not None
    assert [field.schema.type for field in batch.value_schema.fields[:5]] == [
        Type.INT32, Type.INT64, Type.BYTES, Type.FLOAT64, Type.STRING,
    ]  # fmt: skip
    assert batch.values == [
        (
            *(1, 9000000000, Decimal("1.50"), 0.1, "a:b", b"\x00", Date.of(dt.date(2026, 1, 2))),
            *(Timestamp.of(dt.datetime(2026, 1, 2, 3, 4, 5, 678000)), True),
        ),
        (2, *[None] * 6, Timestamp.of(dt.datetime(2026, 1, 2, 3, 4, 6)), None),
    ]


def test_dates_and_timestamps_of_all_years_are_read(tmp_path: Path) -> None:
    """DuckDB's driver returns text for years that Python does not support."""
    with duckdb.connect(str(tmp_path / "a.duckdb")) as database:
        database.execute("CREATE TABLE t (local TIMESTAMP, zoned TIMESTAMPTZ, day DATE)")
        database.execute(
            "INSERT INTO t VALUES ('12345-07-01 12:00:00', '12345-07-01 12:00:00+00', '12345-07-01'), "
            "('0044-03-15 (BC) 12:00:00', '0044-03-15 (BC) 12:00:00+00', '0044-03-15 (BC)'), "
            "('9999-12-31 23:59:59', '2020-01-01', '0001-01-01')"
        )
    props = {"connection.url": f"jdbc:duckdb:{tmp_path / 'a.duckdb'}", "mode": "bulk"}
    assert rows(read_all({**props, "db.timezone": "America/New_York"})) == [
        (327419078400000, 327419064000000, 3789572),
        (-63517763038000, -63517780800000, -735160),
        (253402318799000, 1577836800000, -719162),
    ]


def test_timestamp_and_incrementing_mode_continues_after_the_committed_offset(path: Path) -> None:
    props = {
        "connection.url": f"duckdb:///{path}",
        "transforms": "topic",  # the table's topic is valid only with a transform
        "mode": "timestamp+incrementing",
        "timestamp.column.name": "seen",
        "incrementing.column.name": "id",
    }
    offsets = Offsets()
    assert [row[0] for row in rows(read_all(props, offsets))] == [1, 2]
    with duckdb.connect(str(path)) as database:
        database.execute("INSERT INTO \"or:ders\" (id, seen) VALUES (3, TIMESTAMP '2026-01-02 03:04:06')")
    assert [row[0] for row in rows(read_all(props, offsets))] == [3]


def test_column_types_of_a_query_are_derived_from_the_first_row_of_the_result(path: Path) -> None:
    query = "SELECT id, note, price, id::BIGINT * 2 AS twice FROM \"or:ders\" WHERE note <> ':x' ORDER BY id"
    (batch,) = read_all({"connection.url": f"jdbc:duckdb:{path}", "mode": "bulk", "query": query, "topic.prefix": "q"})
    assert batch.values == [(1, "a:b", Decimal("1.5").quantize(Decimal(1).scaleb(-20)), 2)]


def test_date_column_of_a_query_is_rejected_as_a_timestamp_column(path: Path) -> None:
    props = {"connection.url": f"jdbc:duckdb:{path}", "mode": "timestamp", "topic.prefix": "q"}
    props["query"] = 'SELECT * FROM (SELECT day, seen FROM "or:ders" ORDER BY id) AS q'
    message = r"value day for configuration timestamp\.column\.name: query: the column's type is DATE, not a timestamp"
    with pytest.raises(ConfigErrors, match=message):
        read_all({**props, "timestamp.column.name": "day"})
    assert len(rows(read_all({**props, "timestamp.column.name": "seen"}))) == 2
    props["query"] = "SELECT * FROM (SELECT NULL::TIMESTAMP AS day) AS q"
    assert read_all({**props, "timestamp.column.name": "day"}) == []  # the type is unknown


@pytest.fixture(scope="module")
def url_with_schemas(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("schemas") / "schemas.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE t1 (id INTEGER PRIMARY KEY)")
        database.execute("INSERT INTO t1 VALUES (1)")
        database.execute("CREATE SCHEMA other")
        database.execute("CREATE TABLE other.t3 (id INTEGER PRIMARY KEY, note VARCHAR)")
        database.execute("INSERT INTO other.t3 VALUES (3, 'three')")
        database.execute("CREATE VIEW other.latest AS SELECT max(id) AS id FROM other.t3")
        database.execute('CREATE SCHEMA "o.d:d"')
        database.execute('CREATE TABLE "o.d:d"."t.5" (id INTEGER)')
        database.execute('INSERT INTO "o.d:d"."t.5" VALUES (5)')
    return f"jdbc:duckdb:{path}"


class TestSchemas:
    @pytest.mark.parametrize(
        ("props", "expected"),
        [
            ({}, {"t1": (1,), "t3": (3, "three"), "t.5": (5,)}),
            ({"schema.pattern": "main"}, {"t1": (1,)}),
            ({"schema.pattern": "oth%"}, {"t3": (3, "three")}),
            ({"schema.pattern": "oth%", "table.types": "VIEW"}, {"latest": (3,)}),
            ({"table.whitelist": "other.t3"}, {"t3": (3, "three")}),
            ({"table.whitelist": '"o.d:d"."t.5",t1'}, {"t1": (1,), "t.5": (5,)}),
            ({"table.blacklist": "other.t3,t.5"}, {"t1": (1,)}),
            ({"table.include.list": r"other\..*"}, {"t3": (3, "three")}),
            ({"table.include.list": ".*", "table.exclude.list": r"other\..*,t1"}, {"t.5": (5,)}),
        ],
    )
    def test_tables_of_all_schemas_are_read(
        self, url_with_schemas: str, props: dict[str, str], expected: dict[str, tuple[object, ...]]
    ) -> None:
        batches = read_all({"connection.url": url_with_schemas, "mode": "bulk", **props})
        assert {batch.topic: row for batch in batches for row in batch.values} == expected

    def test_tables_with_equal_names_in_two_schemas_are_told_apart(self, url_with_schemas: str, tmp_path: Path) -> None:
        path = shutil.copy(url_with_schemas.removeprefix("jdbc:duckdb:"), tmp_path / "equal.duckdb")
        with duckdb.connect(str(path)) as database:
            database.execute("CREATE TABLE t3 (price DOUBLE)")
            database.execute("INSERT INTO t3 VALUES (0.5)")
        props = {"connection.url": f"jdbc:duckdb:{path}", "mode": "bulk"}
        with pytest.raises(ConnectError, match=r"tables other\.t3 and t3 would be written to the same topic"):
            read_all(props)
        assert rows(read_all({**props, "table.whitelist": "other.t3"})) == [(3, "three")]
        (batch,) = read_all({**props, "table.whitelist": "t3", "schema.pattern": "main"})
        assert (batch.source_partition["table"], batch.values) == ("t3", [(0.5,)])

    def test_source_partition_contains_the_schema(self, url_with_schemas: str) -> None:
        props = {"connection.url": url_with_schemas, "mode": "incrementing", "incrementing.column.name": "id"}
        offsets = Offsets()
        (batch,) = read_all({**props, "table.whitelist": "other.t3"}, offsets)
        assert batch.source_partition == {"protocol": "1", "table": "other.t3"}
        assert read_all({**props, "table.whitelist": "other.t3"}, offsets) == []

    def test_database_without_an_information_schema_lists_the_tables_of_its_default_schema(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "shop.sqlite"
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE t1 (id INTEGER PRIMARY KEY)")
            database.execute("INSERT INTO t1 VALUES (1)")
            database.execute("CREATE VIEW v1 AS SELECT id FROM t1")
        props = {"connection.url": f"jdbc:sqlite+pysqlite:{path}", "mode": "bulk", "table.types": "TABLE,VIEW"}
        assert rows(read_all(props)) == [(1,), (1,)]
        assert rows(read_all({**props, "schema.pattern": "ma%"})) == [(1,), (1,)]
        assert read_all({**props, "schema.pattern": "other"}) == []


def test_missing_sqlalchemy_dialect_is_a_config_error_and_an_invalid_query_fails_the_source(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"connection\.url.*sqlalchemy.dialects:nodb.*install the Python package"):
        read_all({"connection.url": "jdbc:nodb://host/db", "mode": "bulk"})
    with pytest.raises(ConnectError, match=r"the query failed.*nowhere"):
        read_all({"connection.url": f"jdbc:duckdb:{path}", "mode": "bulk", "query": "SELECT * FROM nowhere",
                  "topic.prefix": "q"})  # fmt: skip
