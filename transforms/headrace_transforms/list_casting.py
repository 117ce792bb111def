"""Casts whole lists of values with the results of `caster`, but faster. This module does no I/O.

If all values have the same class, and a test of the whole list proves that Python's conversions give Java's results,
these conversions are used. Otherwise, `caster` casts the values one by one. It also determines the errors.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Any

from headrace.data.java import Float32, double_text, float_text
from headrace.data.logical import COUNT_RANGES, TEMPORAL_TYPES, is_logical
from headrace.data.schema import INT_RANGES, Schema, Type
from headrace_transforms.casting import EXACT_DOUBLE_MAX, caster
from headrace_transforms.columnar import ListConversion, without_nulls


class _IrregularError(Exception):
    """Only `caster` can cast a value of the list."""


def list_caster(schema: Schema | None, target: Type, place: str) -> ListConversion:
    """Return a function that casts each value of a list. The arguments and the errors are those of `caster`."""
    cast = caster(schema, target, place)
    casts_by_class = _casts_by_class(schema, target)

    def cast_list(items: list[Any]) -> list[Any]:
        classes = set(map(type, items))
        present = classes - {NoneType}
        cast_regular = casts_by_class.get(next(iter(present))) if len(present) == 1 else None
        if cast_regular is not None:
            try:
                return cast_regular(items) if present == classes else without_nulls(cast_regular, items)
            except (_IrregularError, ValueError, OverflowError):
                pass  # cast the values one by one below
        return list(map(cast, items))

    return cast_list


def _casts_by_class(schema: Schema | None, target: Type) -> dict[type, ListConversion]:
    """Return the functions for lists whose values all have the same class, by this class."""
    casts = {class_: cast for (class_, to), cast in _CASTS.items() if to is target}
    if schema is None:
        if target is Type.FLOAT32:
            return {class_: partial(_cast_and_convert, cast, Float32) for class_, cast in casts.items()}
        return casts
    if not schema.type.is_primitive:
        return {}
    if schema.type is Type.FLOAT32 and target is Type.STRING:
        return {float: lambda items: list(map(float_text, items))}
    if not is_logical(schema):
        return casts
    if schema.name not in COUNT_RANGES or target is Type.STRING:
        return {}
    return {class_: lambda items: casts[int](list(map(int, items))) for class_ in TEMPORAL_TYPES}


def _cast_and_convert(cast: ListConversion, convert: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    return list(map(convert, cast(items)))


def _require_characters(texts: list[str], characters: bytes) -> None:
    """Require that the texts contain only these ASCII characters."""
    joined = "".join(texts)
    if not joined.isascii() or joined.encode().translate(None, characters):
        raise _IrregularError


def _require_range(numbers: list[Any], low: int, high: int) -> list[Any]:
    if min(numbers) < low or max(numbers) > high:
        raise _IrregularError
    return numbers


def _texts_to_integers(low: int, high: int, items: list[str]) -> list[int]:
    _require_characters(items, b"0123456789+-")  # without blanks and underscores, which Python also accepts
    return _require_range(list(map(int, items)), low, high)


def _texts_to_doubles(items: list[str]) -> list[float]:
    _require_characters(items, b"0123456789+-.eE")
    return list(map(float, items))


def _doubles_to_integers(low: int, high: int, items: list[float]) -> list[int]:
    return _require_range(list(map(int, items)), low, high)


def _to_floats(items: list[Any]) -> list[float]:
    return array("f", items).tolist()


_INT64_RANGE = INT_RANGES[Type.INT64]
_CASTS: dict[tuple[type, Type], ListConversion] = {
    (str, Type.FLOAT64): _texts_to_doubles,
    (str, Type.BOOLEAN): lambda items: [item.lower() == "true" for item in items],
    (str, Type.STRING): lambda items: items,
    (int, Type.FLOAT32): lambda items: _to_floats(_require_range(items, -EXACT_DOUBLE_MAX, EXACT_DOUBLE_MAX)),
    (int, Type.FLOAT64): lambda items: list(map(float, items)),
    (int, Type.BOOLEAN): lambda items: list(map(bool, _require_range(items, *_INT64_RANGE))),
    (int, Type.STRING): lambda items: list(map(str, items)),
    (bool, Type.FLOAT32): _to_floats,
    (bool, Type.FLOAT64): lambda items: list(map(float, items)),
    (bool, Type.BOOLEAN): lambda items: items,
    (bool, Type.STRING): lambda items: ["true" if item else "false" for item in items],
    (float, Type.FLOAT32): _to_floats,
    (float, Type.FLOAT64): lambda items: items,
    (float, Type.BOOLEAN): lambda items: [item <= -1 or item >= 1 for item in items],
    (float, Type.STRING): lambda items: list(map(double_text, items)),
}
for _type, (_low, _high) in INT_RANGES.items():
    _CASTS[str, _type] = partial(_texts_to_integers, _low, _high)
    _CASTS[int, _type] = partial(_require_range, low=_low, high=_high)
    _CASTS[bool, _type] = lambda items: list(map(int, items))
    _CASTS[float, _type] = partial(_doubles_to_integers, _low, _high)
