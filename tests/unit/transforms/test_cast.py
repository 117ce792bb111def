from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from headrace.api.errors import ConfigErrors
from headrace.converters.json_converter import JsonConverter
from headrace.converters.simple_header_converter import SimpleHeaderConverter
from headrace.converters.string_converter import StringConverter
from headrace.data.lines import java_lines
from headrace.data.logical import DATE_SCHEMA, TIMESTAMP_SCHEMA, Date, Timestamp, decimal_schema
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
    array,
    struct,
)
from headrace.data.struct import Struct
from support.transforms import apply_to_value, make_converter, make_plugin, source_batch, transform_errors

WHOLE: list[tuple[str, Schema, Any, Any]] = [
    ("int8", INT32_SCHEMA, 300, 44),
    ("int16", INT64_SCHEMA, 70000, 4464),
    ("int32", FLOAT64_SCHEMA, 3e9, 2147483647),
    ("int32", FLOAT64_SCHEMA, math.nan, 0),
    ("int64", STRING_SCHEMA, "+12", 12),
    ("int8", BOOLEAN_SCHEMA, True, 1),
    ("float32", FLOAT64_SCHEMA, 0.1, 0.10000000149011612),
    ("float32", STRING_SCHEMA, " 1.5f ", 1.5),
    ("float64", INT32_SCHEMA, 2, 2.0),
    ("float64", STRING_SCHEMA, "-Infinity", -math.inf),
    ("boolean", FLOAT64_SCHEMA, 0.5, False),
    ("boolean", INT32_SCHEMA, -1, True),
    ("boolean", STRING_SCHEMA, "TRUE", True),
    ("boolean", STRING_SCHEMA, "yes", False),
    ("string", FLOAT32_SCHEMA, 0.10000000149011612, "0.1"),
    ("string", FLOAT64_SCHEMA, 1e10, "1.0E10"),
    ("string", BOOLEAN_SCHEMA, True, "true"),
    ("string", BYTES_SCHEMA, b"\x00\xff", "AP8="),
    ("string", decimal_schema(2), Decimal("1.50"), "1.50"),
    ("string", DATE_SCHEMA, Date(18263), "2020-01-02"),
    ("string", TIMESTAMP_SCHEMA, Timestamp(1_577_934_000_000), "2020-01-02T03:00:00.000Z"),
    ("int64", TIMESTAMP_SCHEMA, Timestamp(1000), 1000),
    ("int64", TIMESTAMP_SCHEMA, Timestamp(2**63 - 1), 2**63 - 1),
    ("string", TIMESTAMP_SCHEMA, Timestamp(2**63 - 1), "292278994-08-17T07:12:55.807Z"),
    ("string", DATE_SCHEMA, Date(2**31 - 1), "5881580-07-11"),
    ("int32", DATE_SCHEMA, Date(2), 2),
    ("float64", decimal_schema(2), Decimal("1.50"), 1.5),
    ("int64", decimal_schema(2), Decimal("-1.50"), -1),
    ("int32", decimal_schema(0), Decimal("1e999999999"), 0),
    ("int8", decimal_schema(0), Decimal("300"), 44),
    ("float32", INT64_SCHEMA, 9007199791611905, 9007200328482816.0),
    ("float64", STRING_SCHEMA, "0x1p3", 8.0),
    ("int8", STRING_SCHEMA, "\u0663", 3),
]


@pytest.mark.parametrize(("target", "schema", "value", "expected"), WHOLE)
def test_cast_with_only_a_type_in_its_spec_converts_whole_values(
    target: str, schema: Schema, value: Any, expected: Any
) -> None:
    new_schema, transformed = apply_to_value(make_plugin("Cast$Value", spec=target), value, schema)
    assert new_schema == Schema(Type(target))
    assert transformed == expected
    assert type(transformed) is type(expected)


def test_cast_converts_the_fields_of_schemaless_maps() -> None:
    assert apply_to_value(make_plugin("Cast$Value", spec="int8"), 300) == (None, 44)
    cast = make_plugin("Cast$Value", spec="a:string, b:int32,c:boolean")
    assert apply_to_value(cast, {"a": 1.0, "b": "7", "d": 1}) == (None, {"a": "1.0", "b": 7, "c": None, "d": 1})


def test_cast_converts_struct_fields_and_their_schemas() -> None:
    schema = struct(
        [("a", INT32_SCHEMA), ("b", OPTIONAL_INT32_SCHEMA.replace(default=300, doc="x")), ("c", STRING_SCHEMA)],
        name="n", optional=True,
    )  # fmt: skip
    new_schema, value = apply_to_value(
        make_plugin("Cast$Value", spec="a:string,b:int8"), Struct(schema, {"a": 1, "c": "z"}), schema
    )
    assert new_schema == struct(
        [("a", STRING_SCHEMA), ("b", INT8_SCHEMA.replace(optional=True, default=44)), ("c", STRING_SCHEMA)],
        name="n", optional=True,
    )  # fmt: skip
    assert value.row == ["1", 44, "z"]
    keep = make_plugin("Cast$Value", spec="a:string,b:int8", replace__null__with__default="false")
    assert apply_to_value(keep, Struct(schema, {"a": 1, "c": "z"}), schema)[1].row == ["1", None, "z"]


@pytest.mark.parametrize(
    ("target", "schema", "value"),
    [
        ("int8", STRING_SCHEMA, "128"),
        ("int32", STRING_SCHEMA, "1.5"),
        ("int32", STRING_SCHEMA, " 1"),
        ("int32", STRING_SCHEMA, "1_000"),
        ("float64", STRING_SCHEMA, "abc"),
        ("int32", BYTES_SCHEMA, b"1"),
        ("int32", array(INT32_SCHEMA), [1]),
        ("string", None, [1]),
        ("int32", None, {"a": 1}),
        ("string", None, Date(18_263)),
        ("int64", None, Timestamp(1_577_923_200_000)),
        ("string", None, Decimal("1.5")),
    ],
)
def test_cast_rejects_unsupported_and_invalid_values(target: str, schema: Schema | None, value: Any) -> None:
    good = {"int": 1, "flo": 1.0, "str": "1"}[target[:3]]
    batch = source_batch([value, None, value if schema is not None else good], schema)
    assert list(transform_errors(make_plugin("Cast$Value", spec=target), batch)) == ([0] if schema is None else [0, 2])


@pytest.mark.parametrize("spec", ["", "int128", "a:bytes", "a:b:int8", "int8,int16", "int8,a:int8", "a:array"])
def test_cast_rejects_invalid_specs(spec: str) -> None:
    with pytest.raises(ConfigErrors, match="configuration spec"):
        make_plugin("Cast$Value", spec=spec)


def test_cast_key_converts_the_record_key() -> None:
    batch = make_plugin("Cast$Key", spec="string").apply_batch(source_batch(["v"], keys=[7], key_schema=INT32_SCHEMA))
    assert (batch.key_schema, batch.keys) == (STRING_SCHEMA, ["7"])


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("9.99", "9.99"),
        ("0.1", "0.1"),
        (1e-4, "1.0E-4"),
        (1e20, "1.0E20"),
        (16777217, "1.6777216E7"),
        ("NaN", "NaN"),
        (1e39, "Infinity"),
    ],
)
def test_cast_of_a_schemaless_value_to_float32_has_the_text_of_javas_float(number: Any, text: str) -> None:
    schema, whole = apply_to_value(make_plugin("Cast$Value", spec="float32"), number)
    _, fields = apply_to_value(make_plugin("Cast$Value", spec="n:float32"), {"n": number})
    json = make_converter(JsonConverter, **{"schemas.enable": "false"})
    quoted = f'"{text}"' if text[-1].isalpha() else text
    assert schema is None
    assert json.from_connect("t", None, {"n": [fields["n"]]}) == b'{"n":[%s]}' % quoted.encode()
    assert make_converter(StringConverter).from_connect("t", None, fields) == b"{n=%s}" % text.encode()
    assert java_lines(None, [fields, fields]) == f"{{n={text}}}\n" * 2
    assert SimpleHeaderConverter().from_connect_header("t", "h", None, whole) == text.encode()
    assert apply_to_value(make_plugin("Cast$Value", spec="string"), whole) == (None, text)


def test_schemaless_float32_is_converted_to_other_types_with_its_exact_value() -> None:
    _, value = apply_to_value(make_plugin("Cast$Value", spec="a:float32,b:float32"), {"a": "9.99", "b": 1234567890123})
    _, value = apply_to_value(make_plugin("Cast$Value", spec="a:float64,b:int64"), value)
    assert value == {"a": 9.989999771118164, "b": 1234567954432}
    assert {type(item) for item in value.values()} == {float, int}


def test_mask_field_masks_a_schemaless_float32_with_a_float32() -> None:
    _, value = apply_to_value(make_plugin("Cast$Value", spec="a:float32"), {"a": "9.99"})
    assert repr(apply_to_value(make_plugin("MaskField$Value", fields="a"), value)) == "(None, {'a': 0.0})"
    replaced = apply_to_value(make_plugin("MaskField$Value", fields="a", replacement="1e10"), value)
    assert repr(replaced) == "(None, {'a': 1.0E10})"
