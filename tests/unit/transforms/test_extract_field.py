from __future__ import annotations

import pytest

from headrace.api.errors import ConfigError
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import failures, make, one, source, values

INNER = struct([("x.y", OPTIONAL_INT32_SCHEMA)], optional=True)
ROW = struct([("magic", INT32_SCHEMA), ("in", INNER), ("d", OPTIONAL_INT32_SCHEMA.replace(default=5))])


def test_with_schema() -> None:
    assert one(make("ExtractField$Value", field="magic"), Struct(ROW, {"magic": 42}), ROW) == (INT32_SCHEMA, 42)
    extract = make("ExtractField$Value", field="magic")
    assert values(extract, [Struct(ROW, {"magic": 1}), None], ROW) == [1, None]


def test_without_schema() -> None:
    extract = make("ExtractField$Value", field="magic")
    assert values(extract, [{"magic": 42}, {}, None]) == [42, None, None]
    assert list(failures(extract, source([{}, 5]))) == [1]


def test_a_struct_comes_out_as_one() -> None:
    extract = make("ExtractField$Value", field="in")
    inner = Struct(INNER, {"x.y": 1})
    assert one(extract, Struct(ROW, {"in": inner}), ROW) == (INNER, inner)


def test_paths() -> None:
    nested = make("ExtractField$Value", field="in.`x.y`", field__syntax__version="V2")
    row = Struct(ROW, {"in": Struct(INNER, {"x.y": 1})})
    assert values(nested, [row, Struct(ROW)], ROW) == [1, None]
    assert values(nested, [{"in": {"x.y": 2}}, {"in": None}, {}]) == [2, None, None]
    assert list(failures(nested, source([{"in": 1}]))) == [0]
    with pytest.raises(ConfigError, match="Incomplete backtick pair"):
        make("ExtractField$Value", field="in.`x", field__syntax__version="V2")


def test_defaults_and_unknown_fields() -> None:
    assert one(make("ExtractField$Value", field="d"), Struct(ROW), ROW)[1] == 5
    keep = make("ExtractField$Value", field="d", replace__null__with__default="false")
    assert one(keep, Struct(ROW), ROW)[1] is None
    assert "Unknown field: nope" in str(
        failures(make("ExtractField$Value", field="nope"), source([Struct(ROW)], ROW))[0]
    )
    assert list(failures(make("ExtractField$Value", field="f"), source(["a"], STRING_SCHEMA))) == [0]


def test_key() -> None:
    batch = make("ExtractField$Key", field="magic").apply_batch(
        source(["v"], STRING_SCHEMA, keys=[(42, None, None)], key_schema=ROW)
    )
    assert (batch.key_schema, batch.keys) == (INT32_SCHEMA, [42])
