"""Converts the JSON form of default values, which `headrace.data.json_values` writes, to schema defaults."""

from __future__ import annotations

import base64
from typing import Any

from headrace.data.logical import from_base
from headrace.data.schema import Schema, Type


def default_from_json(schema: Schema, tree: Any) -> Any:
    """Return the default value of `schema` from the parsed JSON `tree`.

    Returns None for structs, arrays and maps, so their defaults are lost.
    """
    if tree is None or schema.type in (Type.STRUCT, Type.ARRAY, Type.MAP):
        return None
    value = base64.b64decode(tree) if schema.type is Type.BYTES else tree
    if schema.type in (Type.FLOAT32, Type.FLOAT64):
        value = float(value)
    convert = from_base(schema)
    return value if convert is None else convert(value)
