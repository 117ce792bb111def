from __future__ import annotations

import pytest

from headrace.api.errors import ConfigError
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import apply_to_value, apply_to_values, make_plugin, source_batch, transform_errors

INNER = struct([("x.y", OPTIONAL_INT32_SCHEMA)], optional=True)
ROW = struct([("magic", INT32_SCHEMA), ("in", INNER), ("d", OPTIONAL_INT32_SCHEMA.replace(default=5))])


def test_extract_field_returns_the_field_of_a_struct() -> None:
    assert apply_to_value(make_plugin("ExtractField$Value", field="magic"), Struct(ROW, {"magic": 42}), ROW) == (
        INT32_SCHEMA,
        42,
    )
    extract = make_plugin("ExtractField$Value", field="magic")
    assert apply_to_values(extract, [Struct(ROW, {"magic": 1}), None], ROW) == [1, None]


def test_extract_field_returns_the_field_of_a_map() -> None:
    extract = make_plugin("ExtractField$Value", field="magic")
    assert apply_to_values(extract, [{"magic": 42}, {}, None]) == [42, None, None]
    assert list(transform_errors(extract, source_batch([{}, 5]))) == [1]


def test_extract_field_of_a_nested_struct_returns_the_struct_with_its_schema() -> None:
    extract = make_plugin("ExtractField$Value", field="in")
    inner = Struct(INNER, {"x.y": 1})
    assert apply_to_value(extract, Struct(ROW, {"in": inner}), ROW) == (INNER, inner)


def test_extract_field_with_v2_path_returns_a_nested_field() -> None:
    nested = make_plugin("ExtractField$Value", field="in.`x.y`", field__syntax__version="V2")
    row = Struct(ROW, {"in": Struct(INNER, {"x.y": 1})})
    assert apply_to_values(nested, [row, Struct(ROW)], ROW) == [1, None]
    assert apply_to_values(nested, [{"in": {"x.y": 2}}, {"in": None}, {}]) == [2, None, None]
    assert list(transform_errors(nested, source_batch([{"in": 1}]))) == [0]
    with pytest.raises(ConfigError, match="Incomplete backtick pair"):
        make_plugin("ExtractField$Value", field="in.`x", field__syntax__version="V2")


def test_extract_field_returns_the_schema_default_for_a_null_field_and_rejects_unknown_fields() -> None:
    assert apply_to_value(make_plugin("ExtractField$Value", field="d"), Struct(ROW), ROW)[1] == 5
    keep = make_plugin("ExtractField$Value", field="d", replace__null__with__default="false")
    assert apply_to_value(keep, Struct(ROW), ROW)[1] is None
    assert "Unknown field: nope" in str(
        transform_errors(make_plugin("ExtractField$Value", field="nope"), source_batch([Struct(ROW)], ROW))[0]
    )
    assert list(transform_errors(make_plugin("ExtractField$Value", field="f"), source_batch(["a"], STRING_SCHEMA))) == [
        0
    ]


def test_extract_field_key_replaces_the_record_key_with_a_field_of_the_key() -> None:
    batch = make_plugin("ExtractField$Key", field="magic").apply_batch(
        source_batch(["v"], STRING_SCHEMA, keys=[(42, None, None)], key_schema=ROW)
    )
    assert (batch.key_schema, batch.keys) == (INT32_SCHEMA, [42])
