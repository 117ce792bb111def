"""Generates the vectors of how Spark stores JSON values in columns of declared types.

The first lakehouse sink parsed records without schemas with Spark's `from_json`, and later versions must store the same
values. The file VECTORS has JSON texts, and for each type the numbers of the texts that Spark stored in a column `c`,
with the stored values. Spark rejected all other texts. It also has whole records with the stored row, or null, and the
differences that later versions have on purpose: the type, the text and the stored value (none if it is rejected).

Run `python tests/support/declared_columns.py`, with PySpark 4.2 and Java 17, to write the file again after adding
texts, types or records to it. A time without a date is missing, because Spark stores it with the current date.

Stored values are written as JSON: decimals as text, dates as days, timestamps as microseconds since 1970, bytes in hex,
floating-point numbers as text, structs as lists, and maps as lists of [key, value].
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

VECTORS = Path(__file__).parents[1] / "unit/connectors/lakehouse/declared_columns.json"
BAD = "_bad"


def encode(type_: pa.DataType, value: Any) -> Any:
    """Return a stored value as JSON."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return [encode(field.type, value[field.name]) for field in type_]
    if pa.types.is_map(type_):
        return [[encode(type_.key_type, key), encode(type_.item_type, item)] for key, item in value]
    if pa.types.is_list(type_):
        return [encode(type_.value_type, item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, float | Decimal) else value


def integral(type_: pa.DataType) -> pa.DataType:
    """Return the type with dates and timestamps as integers, because Python's types have a smaller range."""
    if pa.types.is_date(type_):
        return pa.int32()
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(integral(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(integral(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(integral(type_.key_type), integral(type_.item_type))
    return type_


def encoded(array: pa.Array) -> list[Any]:
    """Return the values of an Arrow array as JSON."""
    plain = array.view(integral(array.type)) if integral(array.type) != array.type else array
    return [encode(plain.type, value) for value in plain.to_pylist()]


def main() -> None:
    """Write VECTORS."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.caseSensitive", "true")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.sql.optimizer.enableJsonExpressionOptimization", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    def parse(ddl: str, payloads: list[str]) -> list[list[Any] | None]:
        rows = spark.createDataFrame(list(enumerate(payloads)), "n int, payload string").coalesce(1)
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BAD}
        parsed = F.from_json("payload", f"{BAD} string, {ddl}", options)
        table = rows.select("n", parsed.alias("p")).orderBy("n").toArrow()
        struct = table["p"].combine_chunks()
        fields = {field.name: array for field, array in zip(struct.type, struct.flatten(), strict=True)}
        bad = fields.pop(BAD).to_pylist()
        columns = zip(*(encoded(array) for array in fields.values()), strict=True)
        return [None if text is not None else list(row) for text, row in zip(bad, columns, strict=True)]

    vectors = json.loads(VECTORS.read_text())
    texts, types = vectors["texts"], vectors["types"]
    for type_ in types:
        found = parse(f"c {type_}", [f'{{"c":{text}}}' for text in texts])
        types[type_] = [[number, row[0]] for number, row in enumerate(found) if row is not None]
    records = {
        ddl: [[payload, row] for (payload, _), row in zip(rows, parse(ddl, [row[0] for row in rows]), strict=True)]
        for ddl, rows in vectors["records"].items()
    }
    # One line per type keeps the differences between two versions readable.
    lines = [f'"texts":{json.dumps(texts)}']
    lines += [f'"types":{{\n{_lines(types)}\n}}', f'"records":{{\n{_lines(records)}\n}}']
    lines += ['"differences":[\n' + ",\n".join(map(json.dumps, vectors["differences"])) + "\n]"]
    VECTORS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _lines(entries: dict[str, Any]) -> str:
    return ",\n".join(
        f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}" for name, entry in entries.items()
    )


if __name__ == "__main__":
    main()
