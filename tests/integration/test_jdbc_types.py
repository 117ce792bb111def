"""Tests that the JDBC source reads every type of each database as a value that fits the field's schema.

`read_all` itself checks the values of each batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from headrace.data.schema import Type
from support import mariadb, postgres
from support.jdbc import read_all

pytestmark = pytest.mark.integration

POSTGRESQL: dict[str, str] = {
    # a literal of each type in pg_catalog
    "aclitem": "postgres=arwdDxt/postgres", "bit": "1", "bit(3)": "101", "bool": "t", "box": "(1,1),(0,0)",
    "bpchar": "ab", "bytea": "\\x00ff", '"char"': "c", "cid": "1", "cidr": "10.0.0.0/8", "circle": "<(1,2),3>",
    "date": "2026-02-03", "datemultirange": "{[2026-01-01,2026-01-03)}", "daterange": "[2026-01-01,2026-01-03)",
    "float4": "0.1", "float8": "0.1", "inet": "10.0.0.1/8", "int2": "-2", "int2vector": "1 2",
    "int4": "4", "int4multirange": "{[1,3),[5,7)}", "int4range": "[1,5)", "int8": "8",
    "int8multirange": "{[1,3)}", "int8range": "[1,5)", "interval": "1 year 2 mons 3 days 04:05:06.7",
    "json": '{"a": [1, null]}', "jsonb": '{"a": [1, null]}', "jsonpath": '$."a"', "line": "{1,2,3}",
    "lseg": "[(1,2),(3,4)]", "macaddr": "08:00:2b:01:02:03", "macaddr8": "08:00:2b:01:02:03:04:05",
    "money": "$12.50", "name": "n", "numeric": "1.50", "numeric(6,2)": "1.50", "nummultirange": "{[1.5,2.5)}",
    "numrange": "[1.5,2.5)", "oid": "5", "oidvector": "1 2", "path": "((1,2),(3,4))", "pg_lsn": "0/16B3748",
    "pg_snapshot": "10:20:10,14", "point": "(1,2)", "polygon": "((1,2),(3,4),(5,6))", "refcursor": "c",
    "regclass": "pg_class", "regcollation": '"C"', "regconfig": "english", "regdictionary": "simple",
    "regnamespace": "pg_catalog", "regoper": "^@", "regoperator": "+(integer,integer)", "regproc": "now",
    "regprocedure": "now()", "regrole": "tester", "regtype": "integer", "text": "hé", "tid": "(0,1)",
    "time": "04:05:06.7", "timestamp": "2026-02-03 04:05:06.7", "timestamptz": "2026-02-03 04:05:06.7+00",
    "timetz": "04:05:06+02", "tsmultirange": '{["2026-01-01 00:00:00","2026-01-02 00:00:00")}',
    "tsquery": "'a' & 'b'", "tsrange": '["2026-01-01 00:00:00","2026-01-02 00:00:00")',
    "tstzmultirange": '{["2026-01-01 00:00:00+00","2026-01-02 00:00:00+00")}',
    "tstzrange": '["2026-01-01 00:00:00+00","2026-01-02 00:00:00+00")', "tsvector": "'a' 'b':2",
    "txid_snapshot": "10:20:10,14", "uuid": "00000000-0000-0000-0000-000000000001", "varbit": "101", "varchar": "v",
    "xid": "7", "xid8": "8", "xml": "<a/>",
    # extensions, and types that a user creates
    "hstore": '"a"=>"1", "b"=>NULL', "citext": "Text", "mood": "sad", "pair": '(1,"a b")', "positive": "5",
}  # fmt: skip
_INTERNAL = {"gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "pg_dependencies", "pg_mcv_list",
             "pg_ndistinct", "pg_node_tree"}  # fmt: skip
_CREATED = """
    CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE TYPE mood AS ENUM ('sad', 'glad');
    CREATE TYPE pair AS (n int, t text); CREATE DOMAIN positive AS int CHECK (VALUE > 0)
"""
MARIADB: dict[str, str] = {
    # a value of each type, as SQL text
    "tinyint": "-5", "tinyint unsigned": "200", "boolean": "true", "smallint": "-300", "smallint unsigned": "60000",
    "mediumint": "-8000000", "mediumint unsigned": "16000000", "int": "-70000", "int unsigned": "4000000000",
    "bigint": "-9000000000", "bigint unsigned": "9000000000", "float": "0.1", "double": "0.1",
    "decimal(10,2)": "12.34", "decimal(20)": "12", "bit(1)": "b'1'", "bit(9)": "b'101'", "date": "'2026-02-03'",
    "time": "'04:05:06'", "time(6)": "'04:05:06.789'", "datetime": "'2026-02-03 04:05:06'",
    "datetime(6)": "'2026-02-03 04:05:06.7'", "timestamp NULL": "'2026-02-03 04:05:06'", "year": "2026",
    "char(3)": "'abc'", "varchar(9)": "'abc'", "tinytext": "'t'", "text": "'t'", "mediumtext": "'t'",
    "longtext": "'t'", "json": """'{"a": 1}'""", "enum('x','y')": "'y'", "set('p','q')": "'p,q'",
    "binary(2)": "x'00ff'", "varbinary(9)": "x'00ff'", "tinyblob": "x'00ff'", "blob": "x'00ff'",
    "mediumblob": "x'00ff'",
    "longblob": "x'00ff'", "inet6": "'::1'", "inet4": "'10.0.0.1'",
    "uuid": "'00000000-0000-0000-0000-000000000001'", "point": "POINT(1,2)", "geometry": "POINT(1,2)",
    "linestring": "ST_GeomFromText('LINESTRING(0 0,1 1)')",
}  # fmt: skip
SQLITE = (
    "tinyint", "smallint", "int", "integer", "bigint", "unsigned big int", "real", "double", "float", "numeric",
    "numeric(2)", "decimal(10,2)", "boolean", "date", "time", "datetime", "timestamp", "text", "varchar(5)", "clob",
    "blob", "json", "jsonb", "uuid", "anything", "",
)  # fmt: skip


@pytest.fixture(scope="module")
def postgresql() -> Iterator[tuple[psycopg.Connection[Any], dict[str, str]]]:
    if reason := postgres.unavailable_reason():
        pytest.skip(reason)
    with postgres.running() as server, psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(_CREATED)
        literals = POSTGRESQL | {"regrole": server.user, "aclitem": f"{server.user}=r/{server.user}"}
        columns = [f"{mark}{kind}{end}" for kind in literals for mark, end in (("", ""), ("", "[]"))]
        names = ", ".join(f"c{number} {kind}" for number, kind in enumerate(columns))
        connection.execute(f"CREATE TABLE kinds (id int, {names})")
        values = [f"'{text.replace(chr(39), 2 * chr(39))}'::{kind}" for kind, text in literals.items()]
        row = ", ".join(f"{value}, ARRAY[{value}, NULL]" for value in values)
        connection.execute(f"INSERT INTO kinds VALUES (1, {row})")
        props = {"connection.url": server.jdbc_url, "connection.user": server.user, "topic.prefix": "t", "mode": "bulk"}
        yield connection, {**props, "unsupported.columns": "text"}


@pytest.mark.postgres
@pytest.mark.parametrize("query", ["", "SELECT * FROM kinds"], ids=["table", "query"])
def test_values_of_all_postgresql_types_fit_their_schemas_and_text_is_that_of_the_server(
    postgresql: tuple[psycopg.Connection[Any], dict[str, str]], query: str
) -> None:
    connection, props = postgresql
    (batch,) = read_all({**props, **({"query": query} if query else {"table.whitelist": "kinds"})})
    fields = batch.value_schema.fields
    assert len(fields) == 1 + 2 * len(POSTGRESQL)
    texts = connection.execute(f"SELECT {', '.join(f'{field.name}::text' for field in fields)} FROM kinds").fetchone()
    assert texts is not None
    for field, value, text in zip(fields, batch.values[0], texts, strict=True):
        if field.schema.type is Type.STRING:
            assert value == text


@pytest.mark.postgres
def test_all_types_of_pg_catalog_are_tested(postgresql: tuple[psycopg.Connection[Any], dict[str, str]]) -> None:
    connection, _ = postgresql
    found = connection.execute(
        "SELECT typname FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace WHERE nspname = 'pg_catalog' "
        "AND typtype <> 'p' AND typcategory NOT IN ('A', 'C')"
    )
    tested = {kind.split("(")[0].strip('"') for kind in POSTGRESQL}
    assert {name for (name,) in found} <= tested | _INTERNAL


@pytest.mark.slow
def test_values_of_all_mariadb_types_fit_their_schemas() -> None:
    if reason := mariadb.unavailable_reason():
        pytest.skip(reason)
    with mariadb.running() as server, pymysql.connect(
        host="127.0.0.1", port=server.port, user=server.user, database="shop", autocommit=True
    ) as connection, connection.cursor() as cursor:  # fmt: skip
        names = ", ".join(f"c{number} {kind}" for number, kind in enumerate(MARIADB))
        cursor.execute(f"CREATE TABLE kinds ({names})")
        cursor.execute(f"INSERT INTO kinds VALUES ({', '.join(MARIADB.values())})")
        props = {"connection.url": server.jdbc_url, "connection.user": server.user, "topic.prefix": "t", "mode": "bulk"}
        for source in ({"table.whitelist": "kinds"}, {"query": "SELECT * FROM kinds"}):
            (batch,) = read_all({**props, **source})
            assert len(batch.values[0]) == len(MARIADB)
            assert None not in batch.values[0]


@pytest.mark.parametrize("mapping", ["none", "best_fit"])
@pytest.mark.parametrize("source", ["table", "query"])
def test_values_of_all_sqlite_types_fit_their_schemas(tmp_path: Path, source: str, mapping: str) -> None:
    path = tmp_path / "kinds.db"
    values = (1, 300, -(2**63), 1.5, "2026-02-03", "04:05:06", "text", b"\xff", "2026-02-03 04:05:06+02:00")
    with sqlite3.connect(path) as database:
        for number, kind in enumerate(SQLITE):
            database.execute(f'CREATE TABLE t{number} (v "{kind}")' if kind else f"CREATE TABLE t{number} (v)")
            database.executemany(f"INSERT INTO t{number} VALUES (?)", [(value,) for value in values])
    database.close()
    props = {"connection.url": f"jdbc:sqlite:{path}", "topic.prefix": "t", "mode": "bulk", "numeric.mapping": mapping}
    for number in range(len(SQLITE)):
        table = {"table.whitelist": f"t{number}"} if source == "table" else {"query": f"SELECT v FROM t{number}"}
        assert read_all({**props, **table, "unmappable.values": "skip"})


@pytest.mark.parametrize("source", ["table", "query"])
def test_values_of_all_duckdb_types_fit_their_schemas(tmp_path: Path, source: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "kinds.duckdb"
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE kinds AS SELECT * FROM test_all_types()")
    where = {"table.whitelist": "kinds"} if source == "table" else {"query": "SELECT * FROM kinds"}
    props = {"connection.url": f"jdbc:duckdb:{path}", "topic.prefix": "t", "mode": "bulk", "unmappable.values": "null"}
    (batch,) = read_all({**props, **where})
    assert len(batch.values) == 3
