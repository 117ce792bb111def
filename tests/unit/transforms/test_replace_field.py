from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import failures, make, one, source

ROW = struct([("dont", STRING_SCHEMA), ("abc", INT32_SCHEMA), ("foo", INT32_SCHEMA), ("etc", STRING_SCHEMA)], name="n")
VALUE = {"dont": "whatever", "abc": 42, "foo": 7, "etc": "etc"}


def test_with_schema() -> None:
    replace = make("ReplaceField$Value", exclude="dont", renames="abc:xyz,foo:bar")
    schema, value = one(replace, Struct(ROW, VALUE), ROW)
    assert schema == struct([("xyz", INT32_SCHEMA), ("bar", INT32_SCHEMA), ("etc", STRING_SCHEMA)], name="n")
    assert value.values == [42, 7, "etc"]


def test_without_schema() -> None:
    replace = make("ReplaceField$Value", exclude="dont", renames="abc:xyz,foo:bar")
    assert one(replace, VALUE) == (None, {"xyz": 42, "bar": 7, "etc": "etc"})


@pytest.mark.parametrize(
    ("props", "kept"),
    [
        ({"include": "abc"}, [42]),
        ({"include": "etc,abc"}, [42, "etc"]),
        ({"include": "abc,foo", "exclude": "foo"}, [42]),
        ({"include": "nothing"}, []),
        ({}, ["whatever", 42, 7, "etc"]),
        ({"renames": "abc:foo", "exclude": "foo"}, ["whatever", 42, "etc"]),
    ],
)
def test_include_and_exclude(props: dict[str, str], kept: list[object]) -> None:
    assert one(make("ReplaceField$Value", **props), Struct(ROW, VALUE), ROW)[1].values == kept


def test_nulls() -> None:
    replace = make("ReplaceField$Value", exclude="dont")
    assert one(replace, None, ROW) == (ROW, None)
    schema = struct([("n", OPTIONAL_INT32_SCHEMA.replace(default=7)), ("m", INT32_SCHEMA)])
    assert one(make("ReplaceField$Value", exclude="m"), Struct(schema), schema)[1].values == [7]
    keep = make("ReplaceField$Value", exclude="m", replace__null__with__default="false")
    assert one(keep, Struct(schema), schema)[1].values == [None]


def test_two_fields_of_one_name() -> None:
    errors = failures(make("ReplaceField$Value", renames="abc:foo"), source([Struct(ROW, VALUE)], ROW))
    assert "duplication" in str(errors[0])


def test_settings() -> None:
    with pytest.raises(ConfigErrors) as caught:
        make("ReplaceField$Value", include="a,a", exclude="b,,c", renames="a:b:c")
    assert len(caught.value.errors) == 3
