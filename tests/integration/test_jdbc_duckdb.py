"""Tests of the JDBC source with DuckDB.

The connector has no DuckDB dialect of its own and uses SQLAlchemy's dialect.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from headrace.api.errors import ConfigError, ConnectError
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
    (batch,) = read_all({"connection.url": f"jdbc:duckdb:{path}", "mode": "bulk", "topic.prefix": "duck-"})
    assert batch.topic == "duck-or:ders"
    assert batch.value_schema is not None
    assert [field.schema.type for field in batch.value_schema.fields[:5]] == [
        Type.INT32, Type.INT64, Type.BYTES, Type.FLOAT64, Type.STRING,
    ]  # fmt: skip
    assert batch.values == [
        (
            *(1, 9000000000, Decimal("1.50"), 0.1, "a:b", b"\x00", dt.date(2026, 1, 2)),
            *(dt.datetime(2026, 1, 2, 3, 4, 5, 678000, dt.UTC), True),
        ),
        (2, *[None] * 6, dt.datetime(2026, 1, 2, 3, 4, 6, tzinfo=dt.UTC), None),
    ]


def test_timestamp_and_incrementing_mode_continues_after_the_committed_offset(path: Path) -> None:
    props = {
        "connection.url": f"duckdb:///{path}",
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


def test_missing_sqlalchemy_dialect_is_a_config_error_and_an_invalid_query_fails_the_source(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"connection\.url.*sqlalchemy.dialects:nodb.*install the Python package"):
        read_all({"connection.url": "jdbc:nodb://host/db", "mode": "bulk"})
    with pytest.raises(ConnectError, match=r"the query failed.*nowhere"):
        read_all({"connection.url": f"jdbc:duckdb:{path}", "mode": "bulk", "query": "SELECT * FROM nowhere",
                  "topic.prefix": "q"})  # fmt: skip
