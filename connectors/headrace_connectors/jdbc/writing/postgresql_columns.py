"""Finds the column of a PostgreSQL table that cannot store a value.

If a value is too long or out of range, the server's error does not name the column. Therefore, this module has the
server convert each value to the type of its column. A cast of a value would not do: it shortens a text to the length of
the column. A conversion of a text to the row type of the table checks each value as INSERT does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.sql import Literal

_COLUMNS = """
    SELECT attname, pg_catalog.format_type(atttypid, atttypmod), reltype::pg_catalog.regtype::text
    FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_class ON pg_class.oid = attrelid
    WHERE attrelid = {table}::pg_catalog.regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def column_types_sql(table: str) -> str:
    """Return the query of the name and the type of each column of a table, and of the name of the table's row type.

    `table` is the table's quoted name.
    """
    return _COLUMNS.format(table=Literal(table).as_string())


def first_invalid_column(
    connection: psycopg.Connection[Any], table: str, texts: Mapping[str, str | None], error: psycopg.Error
) -> str | None:
    """Return the first column whose value causes the same error as `error`, or None if there is no such column.

    `table` is the table's quoted name, and `texts` has the values as text by column. Raises psycopg.Error if the
    connection is lost.
    """
    columns = connection.execute(column_types_sql(table)).fetchall()
    for index, (name, _, row_type) in enumerate(columns):
        text = texts.get(name)
        if text is None:
            continue
        row = "(" + "," * index + _field(text) + "," * (len(columns) - index - 1) + ")"
        try:
            with connection.transaction():
                connection.execute(f"SELECT %s::{row_type.replace('%', '%%')} IS NULL", [row], prepare=False)
        except psycopg.OperationalError:
            raise
        except psycopg.Error as found:
            if (found.sqlstate, found.diag.message_primary) == (error.sqlstate, error.diag.message_primary):
                return str(name)
    return None


def _field(text: str) -> str:
    """Return a value in the text of a row."""
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
