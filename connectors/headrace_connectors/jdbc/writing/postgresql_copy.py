"""Sends rows to PostgreSQL with COPY: directly to their table, or to a temporary table.

The caller writes the rows of a temporary table to their target with an SQL statement. COPY converts the values to the
types of the columns. A temporary table must therefore have the same types as its target, or values would be rounded
silently. The names of temporary tables contain a random number and are always qualified with `pg_temp`, so that no
statement confuses them with other tables.

The rows are sent as CSV that is derived from JSON, because msgspec encodes a row of numbers and short strings about
seven times faster than Python's functions do: `[1,"a",null]` becomes `1,"a",null`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from headrace_connectors.jdbc.writing.database import Connection, Target

SEQUENCE = "headrace_sequence"
_FORMAT = r"(FORMAT csv, NULL 'null', ESCAPE E'\\', ENCODING 'UTF8')"
_ESCAPED = re.compile(rb"\\(?:u00([0-9a-f]{2})|(.))")
_CONTROL_CHARACTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_encode_lines = msgspec.json.Encoder().encode_lines
_ATTEMPTS_SKIPPED_MAX = 1024
_ROWS_PER_WRITE = 500
"""The server inserts these rows while the next ones are converted to text."""

Types = list[tuple[int, int]]
"""The OID and the modifier (such as precision and scale) of each column's type, of the base type for a domain."""


class _TemporaryTable(NamedTuple):
    name: str
    types: Types


class TemporaryTables:
    """The temporary tables of one connection, at most one for each target."""

    def __init__(self) -> None:
        self._prefix = f"pg_temp.headrace_{secrets.token_hex(8)}"
        self._tables: dict[Target, _TemporaryTable] = {}

    def clear(self) -> None:
        """Forget all tables. Called after a rollback, which may have removed tables."""
        self._tables.clear()

    def copy(
        self, connection: Connection, target: Target, values: list[Sequence[Any]], *, has_sequence: bool = False
    ) -> str:
        """Copy rows to the temporary table of `target`, and return the table's name.

        `values` has one element per column. If `has_sequence` is true, the last element belongs to an additional
        column, SEQUENCE, which contains the order of the rows. The caller empties the table.
        """
        names = (*target.names, SEQUENCE) if has_sequence else target.names
        types = _types(connection, target)
        table = self._tables.get(target)
        if table is None or table.types != types:
            table = self._create(connection, target, types, has_sequence)
        copy_rows(connection, table.name, names, values)
        return table.name

    def _create(self, connection: Connection, target: Target, types: Types, has_sequence: bool) -> _TemporaryTable:
        """Create the temporary table of a target, and drop a previous temporary table whose types are outdated."""
        outdated = self._tables.get(target)
        name = f"{self._prefix}_{len(self._tables)}" if outdated is None else outdated.name
        selected = [*target.names, f"0 AS {SEQUENCE}"] if has_sequence else target.names
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {name}")
            cursor.execute(
                f"CREATE TEMPORARY TABLE {name} AS SELECT {', '.join(selected)} FROM {target.table.quoted} LIMIT 0"
            )
        self._tables[target] = table = _TemporaryTable(name, types)
        return table


def _types(connection: Connection, target: Target) -> Types:
    """Return the types of a target's columns, and lock the target so that they do not change in this transaction."""
    with connection.cursor() as cursor:
        # A prepared statement would fail after a change of types.
        cursor.execute(f"SELECT {', '.join(target.names)} FROM {target.table.quoted} LIMIT 0", prepare=False)
        result = cursor.pgresult
        return [(result.ftype(index), result.fmod(index)) for index in range(result.nfields)]


def copy_rows(connection: Connection, table: str, names: Sequence[str], values: list[Sequence[Any]]) -> None:
    """Send rows with COPY. `values` has one sequence for each column.

    A sequence may contain strings, integers, finite floats and None.
    """
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {table} ({', '.join(names)}) FROM STDIN WITH {_FORMAT}") as copy,
    ):
        for start in range(0, len(values[0]), _ROWS_PER_WRITE):
            part = [column[start : start + _ROWS_PER_WRITE] for column in values]
            copy.write(csv_lines(zip(*part, strict=True)))


def csv_lines(rows: Iterable[tuple[Any, ...]]) -> bytes:
    """Return rows as CSV, in which backslashes escape quotes and backslashes, and None is `null`.

    `rows` must contain at least one row.
    """
    # JSON contains line feeds only between rows, because it escapes them in strings.
    text = _encode_lines(rows)[1:-2].replace(b"]\n[", b"\n") + b"\n"
    return _ESCAPED.sub(_unescape, text) if b"\\" in text else text


def _unescape(match: re.Match[bytes]) -> bytes:
    """Return the character for a JSON escape sequence, or the sequence itself if it has the same meaning in CSV."""
    code, letter = match.groups()
    return bytes.fromhex(code.decode()) if code else _CONTROL_CHARACTERS.get(letter, match[0])


class CopyAttempts:
    """Decides whether the next upsert tries to write its rows directly to the table with COPY.

    COPY fails if a row exists already. An update of existing rows is usually followed by more updates of existing rows.
    Therefore, the next upsert after a failed COPY does not try COPY. Each further failed COPY doubles the number of
    upserts that do not try COPY, up to 1024. A successful COPY resets this number to one.
    """

    def __init__(self) -> None:
        self._to_skip = 0
        self._next_pause = 1

    @property
    def is_due(self) -> bool:
        """Whether the next upsert should try COPY."""
        return self._to_skip == 0

    def skip(self) -> None:
        """Record that an upsert did not try COPY, because `is_due` was false."""
        self._to_skip = max(0, self._to_skip - 1)

    def succeeded(self) -> None:
        """Record a successful COPY. The next failed COPY then has the same effect as the first failed COPY."""
        self._next_pause = 1

    def failed(self) -> None:
        """Record a failed COPY. The next upsert does not try COPY.

        Each further failed COPY doubles the number of upserts that do not try COPY.
        """
        self._to_skip = self._next_pause
        self._next_pause = min(2 * self._next_pause, _ATTEMPTS_SKIPPED_MAX)
