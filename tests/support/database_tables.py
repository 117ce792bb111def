"""Compares tables with those of a PostgreSQL database: columns, counts, minima, maxima, sums, and all rows.

DuckDB reads both: the rows of the database from the files that PostgreSQL writes, and the other tables from Parquet or
JSON files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from support import data_sets
from support.postgres import Postgres

_TYPES = {
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "double precision": "DOUBLE",
    "numeric": "DECIMAL(15,2)",
    "text": "VARCHAR",
    "date": "DATE",
    "timestamp without time zone": "TIMESTAMP WITH TIME ZONE",
}
"""The DuckDB type of a lakehouse table's column by the PostgreSQL type of the database's column."""
_METADATA_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp")


class DatabaseTables:
    """The tables of a database at the time when this object was created.

    The tables that are compared with them have the sink's metadata columns too.
    """

    def __init__(self, server: Postgres, directory: Path) -> None:
        self.types = {
            table: {column: _TYPES[kind] for column, kind in columns.items()}
            for table, columns in data_sets.columns_of(server).items()
        }
        self.rows: dict[str, int] = {}
        """The number of rows of each table."""
        self._summaries: dict[str, tuple[Any, ...]] = {}
        self._duckdb = duckdb.connect()
        self._duckdb.execute("SET TimeZone='UTC'")
        with psycopg.connect(server.conninfo) as connection:
            for table in self.types:
                self._copy(connection, table, directory / f"{table}.rows")

    def _copy(self, connection: psycopg.Connection[Any], table: str, file: Path) -> None:
        summary = connection.execute(_summary_of(self.types[table], f'"{table}"')).fetchone()  # type: ignore[arg-type]
        assert summary is not None
        self._summaries[table], self.rows[table] = summary, summary[0]
        query = f"COPY {table} TO STDOUT (FORMAT csv)"
        with connection.cursor() as cursor, cursor.copy(query) as copy, file.open("wb") as output:
            output.writelines(copy)
        self._duckdb.execute(
            f"CREATE TABLE \"{table}\" AS FROM read_csv(?, header = false, quote = '\"', escape = '\"', "
            "nullstr = '', allow_quoted_nulls = false, columns = ?)",
            [str(file), self.types[table]],
        )
        file.unlink()

    def assert_parquet_equals(self, table: str, files: str) -> None:
        """Check that Parquet files contain exactly the rows of a table."""
        self._assert_equal(table, f"read_parquet('{files}', hive_partitioning = false)")

    def assert_json_equals(self, table: str, file: Path, types: Mapping[str, str]) -> None:
        """Check that an array of JSON objects contains exactly the rows of a table. `types` are DuckDB's."""
        columns = ", ".join(f"\"{column}\": '{kind}'" for column, kind in types.items())
        self._assert_equal(table, f"read_json('{file}', format = 'array', columns = {{{columns}}})")

    def _assert_equal(self, table: str, found: str) -> None:
        relation = f"(SELECT * EXCLUDE ({', '.join(_METADATA_COLUMNS)}) FROM {found})"
        types = {column: kind for column, kind, *_ in self._fetch(f"DESCRIBE FROM {relation}")}
        assert types == self.types[table], table
        [summary] = self._fetch(_summary_of(types, relation))
        assert summary == self._summaries[table], table
        # Both have the same number of rows, so they are equal if no row of the database is missing.
        missing = self._fetch(f'FROM "{table}" EXCEPT ALL FROM {relation} LIMIT 5')
        assert missing == [], f"{table}: these rows of the database are missing"

    def _fetch(self, query: str) -> Sequence[tuple[Any, ...]]:
        return self._duckdb.execute(query).fetchall()


def _summary_of(types: Mapping[str, str], relation: str) -> str:
    """Return a query that PostgreSQL and DuckDB understand."""
    terms = ["count(*)"]
    for column, kind in types.items():
        value = f'"{column}"'
        if kind == "VARCHAR":
            value += ' COLLATE "C"'
        elif kind.startswith("TIMESTAMP"):
            value = f"CAST({value} AS timestamp)"  # in UTC
        terms += [f"count({value})", f"count(DISTINCT {value})", f"min({value})", f"max({value})"]
        if kind == "DOUBLE":
            terms.append(f"sum(floor({value} * 1000))")  # a sum of integers does not depend on the order of the rows
        elif kind in ("INTEGER", "BIGINT") or kind.startswith("DECIMAL"):
            terms.append(f"sum({value})")
    return f"SELECT {', '.join(terms)} FROM {relation} AS t"
