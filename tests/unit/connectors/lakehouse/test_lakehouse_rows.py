"""Tests of the conversion of record batches to rows of lakehouse tables."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.converters.json_converter import JsonConverter, JsonConverterConfig
from headrace.data.batch import SinkBatch
from headrace.data.columns import Columns, Lines, Shared, Values
from headrace.data.headers import Headers
from headrace.data.json_texts import JsonTexts
from headrace.data.logical import (
    DATE_SCHEMA,
    OPTIONAL_TIMESTAMP_SCHEMA,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
    decimal_schema,
)
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_BYTES_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    array,
    map_of,
    struct,
)
from headrace_connectors.lakehouse.column_types import SchemaError, TableColumn, leaf_types
from headrace_connectors.lakehouse.committers.base import TableSchemaError
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.driver.table_columns import check_table_columns
from headrace_connectors.lakehouse.values.options import METADATA_COLUMNS, METADATA_NAMES, RowOptions
from headrace_connectors.lakehouse.values.rows import BadRow, ConvertedRows, RowConverter, columns_of

PLAIN = RowOptions(metadata_columns=False)
POINT = struct([("x", INT32_SCHEMA), ("at", OPTIONAL_TIMESTAMP_SCHEMA)], optional=True)
EVERY_TYPE = struct(
    [
        ("i8", INT8_SCHEMA),
        ("i16", INT16_SCHEMA),
        ("i32", INT32_SCHEMA),
        ("i64", INT64_SCHEMA),
        ("f32", FLOAT32_SCHEMA),
        ("f64", FLOAT64_SCHEMA),
        ("ok", BOOLEAN_SCHEMA),
        ("s", OPTIONAL_STRING_SCHEMA),
        ("b", OPTIONAL_BYTES_SCHEMA),
        ("day", DATE_SCHEMA),
        ("time", TIME_SCHEMA),
        ("at", TIMESTAMP_SCHEMA),
        ("d", decimal_schema(2)),
        ("small", decimal_schema(1, parameters={"connect.decimal.precision": "5"})),
        ("tags", array(OPTIONAL_STRING_SCHEMA)),
        ("numbers", map_of(STRING_SCHEMA, array(INT32_SCHEMA))),
        ("by_day", map_of(DATE_SCHEMA, decimal_schema(1))),
        ("point", POINT),
        ("points", array(POINT)),
    ]
)
DDL = (
    "i8 tinyint, i16 smallint, i32 int, i64 bigint, f32 float, f64 double, ok boolean, s string, b binary, day date,"
    " time int, at timestamp, d decimal(38,2), small decimal(5,1), tags array<string>,"
    " numbers map<string,array<int>>, by_day map<date,decimal(38,1)>, point struct<x:int,at:timestamp>,"
    " points array<struct<x:int,at:timestamp>>"
)
ROW = (
    *(-128, 32767, 1, 2**63 - 1, 0.5, 1e300, True, "é", b"\xff", Date(-1), Time(86_399_999), Timestamp(-1)),
    *(Decimal("1.10"), Decimal("-9999.9"), ["a", None], {"k": [1, 2]}, {Date(1): Decimal("0.5")}),
    *((1, Timestamp(5)), [(2, None), None]),
)
STORED = [
    *(-128, 32767, 1, 2**63 - 1, 0.5, 1e300, True, "é", b"\xff", -1, 86_399_999, -1000),
    *(Decimal("1.10"), Decimal("-9999.9"), ["a", None], [("k", [1, 2])], [(1, Decimal("0.5"))]),
    *({"x": 1, "at": 5000}, [{"x": 2, "at": None}, None]),
]


def batch(values: Values, value_schema: Schema | None = None, **attributes: Any) -> SinkBatch:
    offsets = attributes.pop("offsets", range(10, 10 + len(values)))
    return SinkBatch("t", values, partition=3, offsets=offsets, value_schema=value_schema, **attributes)


def convert(records: SinkBatch, options: RowOptions = PLAIN, columns: Sequence[TableColumn] | None = None) -> Any:
    """Convert a batch to rows of a table, which has the columns of the batch unless `columns` are given."""
    found = columns_of(records, options) if columns is None else columns
    assert found is not None
    converted = RowConverter(found, options, "/tables/t").convert(records)
    converted.rows.validate(full=True)
    assert converted.rows.num_rows == len(converted.indexes)
    return converted


def plain_rows(converted: ConvertedRows) -> list[list[Any]]:
    """Return rows with dates and timestamps as integers."""
    return [[plain(item) for item in row.values()] for row in converted.rows.to_pylist()]


def plain(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: plain(value) for name, value in item.items()}
    if isinstance(item, list | tuple):
        return type(item)(map(plain, item))
    if hasattr(item, "tzinfo"):
        return pa.scalar(item, pa.timestamp("us", tz="UTC")).value
    return pa.scalar(item, pa.date32()).value if hasattr(item, "isoformat") else item


# --- values with schemas ----------------------------------------------------------------------------------------------


def test_values_of_every_connect_type_become_columns() -> None:
    records = batch([ROW], EVERY_TYPE)
    columns = columns_of(records, PLAIN)
    assert columns is not None
    assert leaf_types(columns) == leaf_types(parse_ddl(DDL))
    converted = convert(records)
    assert plain_rows(converted) == [STORED]
    assert not converted.bad
    assert converted.rows.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert all(field.nullable for field in converted.rows.schema)


def test_columnar_values_and_rows_become_the_same_rows() -> None:
    names = [field.name for field in EVERY_TYPE.fields]
    columns: list[Any] = [[value] * 3 for value in ROW]
    columns[names.index("i32")] = range(3)
    columns[names.index("i64")] = Shared(7)
    columns[names.index("s")] = Lines("a\nb\n", 3)
    values = Columns(names, columns, 3, is_maps=False)
    rows = convert(batch(list(values.items()), EVERY_TYPE)).rows
    assert convert(batch(values, EVERY_TYPE)).rows.equals(rows)
    assert rows["s"].to_pylist() == ["a", "b", ""]
    shared = Columns(names, list(map(Shared, ROW)), 3, is_maps=False)
    assert plain_rows(convert(batch(shared, EVERY_TYPE))) == [STORED] * 3
    bad = convert(batch(Columns(["s"], [Shared(1)], 3, is_maps=False), struct([("s", STRING_SCHEMA)]))).bad
    assert [row.index for row in bad] == [0, 1, 2]


def test_value_that_is_not_a_struct_becomes_the_column_value() -> None:
    for values, schema, stored in (
        (Lines("a\nb", 2), OPTIONAL_STRING_SCHEMA, ["a", "b"]),
        (["a", None], OPTIONAL_STRING_SCHEMA, ["a", None]),
        ([b"\xff", None], OPTIONAL_BYTES_SCHEMA, [b"\xff", None]),
        ([1, 2], INT64_SCHEMA, [1, 2]),
        ([[1], []], array(INT32_SCHEMA), [[1], []]),
    ):
        converted = convert(batch(values, schema))
        assert converted.rows.to_pydict() == {"value": stored}
        assert not converted.bad


def test_tombstone_becomes_a_row_with_metadata_and_nulls() -> None:
    records = batch([None, (1, None)], POINT, timestamps=5)
    converted = convert(records, RowOptions())
    assert converted.rows.select(["_kafka_offset", "x"]).to_pydict() == {"_kafka_offset": [10, 11], "x": [None, 1]}
    only_tombstones = batch([None], None)
    columns = columns_of(records, RowOptions())
    assert convert(only_tombstones, RowOptions(), columns).rows["x"].to_pylist() == [None]
    assert columns_of(only_tombstones, RowOptions()) is None


def test_fields_and_columns_may_have_different_orders_at_every_level() -> None:
    inner = struct([("at", OPTIONAL_TIMESTAMP_SCHEMA), ("x", INT32_SCHEMA)])
    records = batch([((Timestamp(1), 2), 3)], struct([("p", inner), ("n", INT32_SCHEMA)]))
    converted = convert(records, PLAIN, parse_ddl("n int, p struct<x:int,at:timestamp>"))
    assert plain_rows(converted) == [[3, {"x": 2, "at": 1000}]]


def test_value_out_of_the_range_of_its_column_is_a_bad_record() -> None:
    schema = struct([("at", TIMESTAMP_SCHEMA), ("d", decimal_schema(2, parameters={"connect.decimal.precision": "4"}))])
    largest = (2**63 - 1) // 1000
    rows = [
        (Timestamp(largest), Decimal("99.99")),
        (Timestamp(largest + 1), Decimal("1.00")),
        (Timestamp(-largest), Decimal("100.00")),
        (Timestamp(0), Decimal("1.005")),
    ]
    converted = convert(batch(rows, schema))
    assert converted.indexes == [0, 3]
    assert converted.rows["d"].to_pylist() == [Decimal("99.99"), Decimal("1.01")]
    assert converted.bad == [
        BadRow(1, "field at: the value does not fit timestamp"),
        BadRow(2, "field d: the value does not fit decimal(4,2)"),
    ]


def test_value_of_another_type_than_its_schema_is_a_bad_record() -> None:
    """A transform may return values that do not match their schema."""
    schema = struct([("n", OPTIONAL_INT32_SCHEMA), ("tags", array(POINT)), ("s", OPTIONAL_STRING_SCHEMA)])
    rows = [(1, [], "a"), (1.5, [], "a"), (1, [(1, None), ("x", None)], "a"), (True, [], "a"), (1, [], b"a")]
    converted = convert(batch(rows, schema))
    assert converted.rows.to_pylist() == [{"n": 1, "tags": [], "s": "a"}]
    assert [row.reason for row in converted.bad] == [
        "field n: expected int, found 1.5",
        'field tags[1].x: expected int, found "x"',
        "field n: expected int, found true",
        "field s: expected string, found b'a'",
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (struct([("n", decimal_schema(127))]), "value.n: a Decimal with scale 127 does not fit"),
        (struct([]), "value: a struct without fields cannot be stored"),
        (struct([("a", struct([]))]), "value.a: a struct without fields cannot be stored"),
        (struct([("a", INT32_SCHEMA), ("A", INT32_SCHEMA)]), "columns 'a' and 'A' differ only in case"),
        (map_of(array(INT32_SCHEMA), INT32_SCHEMA), "maps with keys of type array<int> are not supported"),
        (struct([("_Kafka_Offset", INT32_SCHEMA)]), "the field '_Kafka_Offset' has the same name as a metadata column"),
        (struct([("_kafka_key", INT32_SCHEMA)]), "the same name as the column of the record's key"),
        (struct([("H", INT32_SCHEMA)]), "the same name as the column of the record's headers"),
    ],
)
def test_schema_that_a_table_cannot_store_is_rejected(schema: Schema, message: str) -> None:
    options = RowOptions(key_columns="key", headers_column="h")
    records = batch([None, {"anything": 1}], schema)
    with pytest.raises(SchemaError) as error:
        columns_of(records, options)
    assert message in str(error.value)
    # The table exists already.
    columns = columns_of(batch([(1, None)], POINT), options)
    converted = convert(records, options, columns)
    assert converted.indexes == [0]
    assert [(row.index, row.columns_mismatch) for row in converted.bad] == [(1, False)]
    assert message in converted.bad[0].reason


A, B = ("a", OPTIONAL_INT32_SCHEMA), ("b", STRING_SCHEMA)


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ([A], "column b removed (string)"),
        ([A, B, ("c d", INT8_SCHEMA)], "column `c d` added (tinyint)"),
        ([("a", INT64_SCHEMA), B], "column a: int -> bigint"),
        ([B, ("a", struct([("a", INT64_SCHEMA)]))], "column a removed (int), column a.a added (bigint)"),
        ([A, B, *[(f"c{n}", INT8_SCHEMA) for n in range(10)]], "column c7 added (tinyint) and 2 more changes"),
    ],
)
def test_record_whose_columns_are_not_the_columns_of_the_table_is_a_bad_record(
    fields: list[tuple[str, Schema]], changed: str
) -> None:
    schema = struct(fields, optional=True)
    records = batch([None, (1,) * len(fields)], schema)
    converted = convert(records, PLAIN, parse_ddl("a int, b string"))
    assert converted.rows.to_pylist() == [{"a": None, "b": None}]
    (bad,) = converted.bad
    assert bad.columns_mismatch
    assert bad.reason.startswith("the record's columns do not match table /tables/t: ")
    assert bad.reason.endswith(changed)


def test_converter_remembers_its_decision_for_each_schema() -> None:
    converter = RowConverter(parse_ddl("a int"), PLAIN, "t")
    for _ in range(2):
        assert converter.convert(batch([(1,)], struct([("a", INT32_SCHEMA)]))).bad == []
        assert converter.convert(batch([(1,)], struct([("a", OPTIONAL_INT32_SCHEMA)]))).bad == []
        assert len(converter.convert(batch([("x",)], struct([("a", STRING_SCHEMA)]))).bad) == 1


# --- values without schemas -------------------------------------------------------------------------------------------

DECLARED = parse_ddl("id bigint, d decimal(4,2), at timestamp, tags array<string>")


def test_bad_json_value_is_reported_with_the_field_and_the_expected_type() -> None:
    texts = [
        b'{"id":1,"more":[1,2]}',
        b'{"id":"abc"}',
        b'{"d":100}',
        b'{"at":"soon"}',
        b'{"tags":"x"}',
        b"{}",
        b'{"at":1e3,"id":1}',
    ]
    reasons = {
        1: 'field id: expected bigint, found "abc"',
        2: "field d: expected decimal(4,2), found 100",
        3: 'field at: expected timestamp, found "soon"',
        4: 'field tags: expected array<string>, found "x"',
        6: "field at: expected timestamp, found 1E+3",
    }
    options = RowOptions(metadata_columns=False, declared=DECLARED)
    maps = [json.loads(text) for text in texts]
    for values in (JsonTexts(texts), maps):
        converted = convert(batch(values), options)
        assert converted.rows["id"].to_pylist() == [1, None]
        assert converted.indexes == [0, 5]
        found = {row.index: row.reason.replace("1000.0", "1E+3") for row in converted.bad}
        assert found == reasons
    not_objects = convert(batch([None, [1], "x", 5]), options)
    assert not_objects.indexes == [0]
    assert not_objects.bad[0].reason == (
        "the payload: expected struct<id:bigint,d:decimal(4,2),at:timestamp,tags:array<string>>, found [1]"
    )


def test_maps_that_transforms_have_changed_are_stored() -> None:
    declared = parse_ddl("at timestamp, day date, b binary, d decimal(6,3), s string, n int, f double")
    options = RowOptions(metadata_columns=False, declared=declared)
    row = {"at": Timestamp(5), "day": Date(2), "b": b"x", "d": 1.005, "s": {"k": [1.0, b"x"]}, "n": Time(3), "f": 1}
    names = list(row)
    values: list[Values] = [
        [row, {}],
        Columns(names, [[value] for value in row.values()], 1, is_maps=True),
        Columns([*names, "x"], [Shared(value) for value in row.values()] + [range(1)], 1, is_maps=True),
    ]
    for each in values:
        converted = convert(batch(each), options)
        assert not converted.bad
        assert plain_rows(converted)[0] == [5000, 2, b"x", Decimal("1.005"), '{"k":[1.0,"eA=="]}', 3, 1.0]


def test_values_without_schemas_and_without_declared_columns_are_rejected() -> None:
    records = batch([{"a": 1}, None])
    with pytest.raises(SchemaError, match=r"topic t: the records have no schema, .* lakehouse.table.<table>.schema"):
        columns_of(records, PLAIN)
    converted = convert(records, PLAIN, parse_ddl("a int"))
    assert converted.indexes == [1]
    assert "the records have no schema" in converted.bad[0].reason


def test_declared_map_must_have_string_keys() -> None:
    with pytest.raises(SchemaError, match="a map cannot have int keys"):
        columns_of(batch([{}]), RowOptions(declared=parse_ddl("s struct<m:map<int,int>>")))


# --- metadata, keys and headers ---------------------------------------------------------------------------------------


def test_metadata_columns_contain_the_original_position_and_the_timestamp_in_utc() -> None:
    records = batch(
        [1, 2],
        INT64_SCHEMA,
        timestamps=[1_000, None],
        offsets=[1, 2],
        original_topic="from",
        original_partition=7,
        original_offsets=[5, 9],
    )
    columns = columns_of(records, RowOptions())
    assert columns is not None
    assert columns[:4] == METADATA_COLUMNS
    rows = convert(records, RowOptions()).rows
    assert [plain(list(row.values())) for row in rows.to_pylist()] == [
        ["from", 7, 5, 1_000_000, 1],
        ["from", 7, 9, None, 2],
    ]


def test_timestamp_of_a_record_that_does_not_fit_becomes_null() -> None:
    rows = convert(batch([1, 2], INT64_SCHEMA, timestamps=[2**62, 1]), RowOptions()).rows
    assert [plain(value) for value in rows["_kafka_timestamp"].to_pylist()] == [None, 1000]
    assert convert(batch([1], INT64_SCHEMA, timestamps=2**62), RowOptions()).rows["_kafka_timestamp"].null_count == 1


KEY = struct([("id", INT64_SCHEMA), ("day", DATE_SCHEMA)])


@pytest.mark.parametrize(
    ("mode", "schema", "keys", "names", "stored"),
    [
        ("key", STRING_SCHEMA, ["a", "b"], ["_kafka_key"], [["a"], ["b"]]),
        ("key", OPTIONAL_BYTES_SCHEMA, [b"a", None], ["_kafka_key"], [[b"a"], [None]]),
        ("key", KEY, [(1, Date(2))] * 2, ["_kafka_key"], [[{"id": 1, "day": 2}]] * 2),
        ("key", None, [{"a": 1.0}, "x"], ["_kafka_key"], [['{"a":1.0}'], ["x"]]),
        ("key", None, None, ["_kafka_key"], [[None], [None]]),
        ("fields", KEY.replace(optional=True), [(1, Date(2)), None], ["_key_id", "_key_day"], [[1, 2], [None, None]]),
        ("fields", INT32_SCHEMA, [1, 2], ["_kafka_key"], [[1], [2]]),
        ("fields", None, [{"a": 1, "b": "x"}, {"a": 2, "c": 1}], ["_key_a", "_key_b"], [[1, "x"], [2, None]]),
        ("fields", None, ["a", None], ["_kafka_key"], [["a"], [None]]),
    ],
)
def test_key_is_stored_as_lakehouse_key_columns_says(
    mode: Any, schema: Schema | None, keys: list[Any] | None, names: list[str], stored: list[list[Any]]
) -> None:
    options = RowOptions(metadata_columns=False, key_columns=mode)
    converted = convert(batch([1, 2], INT64_SCHEMA, keys=keys, key_schema=schema), options)
    assert converted.rows.schema.names == [*names, "value"]
    assert [row[:-1] for row in plain_rows(converted)] == stored
    assert not converted.bad


def test_key_with_other_columns_than_the_table_is_a_bad_record() -> None:
    options = RowOptions(metadata_columns=False, key_columns="fields")
    table = parse_ddl("_key_id bigint, _key_day date, value bigint")
    records = batch([1, 2], INT64_SCHEMA, keys=["a", None], key_schema=OPTIONAL_STRING_SCHEMA)
    converted = convert(records, options, table)
    assert converted.rows.to_pylist() == [{"_key_id": None, "_key_day": None, "value": 2}]
    (bad,) = converted.bad
    assert bad.columns_mismatch
    assert "column _key_id removed (bigint)" in bad.reason
    assert "column _kafka_key added (string)" in bad.reason


def test_headers_become_a_column_of_keys_and_bytes() -> None:
    headers = [
        Headers().add("a", b"\xff").add("a", "é").add("n", 1.5).add("t", Timestamp(86_400_005)).add("z", None),
        Headers().add("o", 1j),
    ]
    options = RowOptions(metadata_columns=False, headers_column="h")
    rows = convert(batch([1, 2], INT64_SCHEMA, headers=headers), options).rows
    assert [[tuple(item.values()) for item in row] for row in rows["h"].to_pylist()] == [
        [("a", b"\xff"), ("a", "é".encode()), ("n", b"1.5"), ("t", b"1970-01-02T00:00:00.005Z"), ("z", None)],
        [("o", b"1j")],
    ]
    assert convert(batch([1], INT64_SCHEMA), options).rows["h"].to_pylist() == [[]]


# --- existing tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        (
            "value int",
            RowOptions(),
            "has no column _kafka_topic: the table was created with lakehouse.meta",
        ),
        ("value int", RowOptions(metadata_columns=False), None),
        ("value int, M", RowOptions(), None),
        ("M, value int", RowOptions(metadata_columns=False), "has metadata columns (_kafka_topic, _kafka_partition, "),
        ("M, a int", RowOptions(declared=parse_ddl("a int")), None),
        ("M, a int", RowOptions(declared=parse_ddl("a string")), "column a: int -> string; load the records into"),
        ("M, a int", RowOptions(declared=parse_ddl("a string")), "the declared columns (lakehouse.schema or"),
        ("M, a int", RowOptions(headers_column="h"), "has no column h: the table was created without"),
        ("M, a int, h string", RowOptions(headers_column="h"), "column h: string -> array<struct<key:string,value:bi"),
        ("M, a int", RowOptions(key_columns="key"), "has no column of the record's key"),
        ("M, a int, _kafka_key int", RowOptions(), "has the column _kafka_key, but lakehouse.key.columns=none"),
        ("M, a int, _key_id int", RowOptions(key_columns="fields", declared=parse_ddl("a int")), None),
    ],
)
def test_existing_table_is_checked_against_the_configuration(
    ddl: str, options: RowOptions, message: str | None
) -> None:
    metadata = ", ".join(f"{column.name} {column.type}" for column in METADATA_COLUMNS)
    columns = parse_ddl(ddl.replace("M", metadata))
    if message is None:
        check_table_columns("/tables/t", columns, options)
        return
    with pytest.raises(TableSchemaError) as error:
        check_table_columns("/tables/t", columns, options)
    assert message in str(error.value)


def test_metadata_column_of_another_type_in_an_existing_table_is_rejected() -> None:
    columns = [TableColumn(name, METADATA_COLUMNS[0].type) for name in METADATA_NAMES]
    with pytest.raises(TableSchemaError, match="column _kafka_offset: string -> bigint"):
        check_table_columns("/tables/t", columns, RowOptions())


# --- processes --------------------------------------------------------------------------------------------------------


def test_row_options_can_be_pickled() -> None:
    options = RowOptions(key_columns="key", declared=DECLARED)
    assert pickle.loads(pickle.dumps(options)) == options


def test_time_zone_of_the_host_has_no_effect_and_pandas_is_not_imported() -> None:
    """Importing pandas would delay the first rows of each of Spark's Python workers."""
    texts = ["2024-01-02T03:04:05", "2024-01-02", "2024-1-2 03:04:05.5", "2024-07-02T03:04:05 Europe/Berlin"]
    code = (
        "from headrace.data.batch import SinkBatch; from headrace.data.json_texts import JsonTexts\n"
        "from headrace_connectors.lakehouse.ddl import parse_ddl\n"
        "from headrace_connectors.lakehouse.values.rows import RowConverter, RowOptions\n"
        f'texts = [b\'{{"at":"%s","day":"%s"}}\' % (text.encode(), text.encode()) for text in {texts!r}]\n'
        "columns = parse_ddl('at timestamp, day date')\n"
        "options = RowOptions(metadata_columns=False, declared=columns)\n"
        "for texts in ([text] for text in texts):\n"
        "    batch = SinkBatch('t', JsonTexts(texts), partition=0, offsets=[0])\n"
        "    rows = RowConverter(columns, options, 't').convert(batch).rows\n"
        "    print(rows['at'].cast('int64')[0], rows['day'].cast('int32')[0])\n"
        "import sys; print('pandas' in sys.modules, rows.to_pandas().shape)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TZ": "Asia/Tokyo"}, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [
        "1704164645000000 19724",
        "1704153600000000 19724",
        "1704164645500000 19724",
        "1719882245000000 19906",
        "False (1, 2)",
    ]


def test_rows_of_an_existing_table_have_the_types_of_the_table() -> None:
    """A table does not know that its int column contains times, and its columns may be NOT NULL."""
    columns = tuple(TableColumn(column.name, column.type, optional=False) for column in METADATA_COLUMNS)
    table = (*columns, *parse_ddl(DDL))
    records = batch([ROW], EVERY_TYPE)
    assert plain_rows(convert(records, RowOptions(), table))[0][4:] == STORED
    clash = convert(batch([(1,)], struct([("_KAFKA_OFFSET", INT32_SCHEMA)])), RowOptions(), table)
    assert "the same name as a metadata column" in clash.bad[0].reason


def test_envelope_of_json_converter_becomes_rows() -> None:
    converter = JsonConverter()
    converter.configure(JsonConverterConfig.parse({"converter.type": "value"}))
    unscaled = base64.b64encode((110).to_bytes(1, "big")).decode()
    schema = struct([("id", INT64_SCHEMA), ("d", decimal_schema(2)), ("at", TIMESTAMP_SCHEMA)])
    data = converter.from_connect_batch("t", schema, [(1, Decimal("1.10"), Timestamp(5))])[0]
    assert data is not None
    assert unscaled.encode() in data
    numeric = data.replace(f'"{unscaled}"'.encode(), b"1.105")  # decimal.format=NUMERIC, and one digit too many
    (run,) = converter.to_connect_batch("t", [data, numeric])
    assert plain_rows(convert(batch(run.values, run.schema))) == [
        [1, Decimal("1.10"), 5000],
        [1, Decimal("1.11"), 5000],
    ]
