"""Record headers: an ordered list of (key, schema, value); keys may repeat.

Records of a batch often have the same headers. These records then share one `Headers` object, and transforms and
converters use `map_headers` to process the object once. Code that changes the headers of a single record must
therefore change a copy of the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from itertools import repeat
from operator import is_
from typing import Any, NamedTuple, TypeVar

from headrace.data.java import Float32
from headrace.data.logical import COUNT_RANGES, TEMPORAL_TYPES, to_count
from headrace.data.schema import INT_RANGES, Schema, Type

_UNCHANGEABLE = frozenset({str, bytes, int, float, Float32, bool, type(None), Decimal, *TEMPORAL_TYPES})
_EXACT_TYPES: Mapping[Type, type] = {Type.STRING: str, Type.BYTES: bytes, **dict.fromkeys(INT_RANGES, int)}
"""The schema types whose equal values are interchangeable, and the Python types of these values."""
_T = TypeVar("_T")
_R = TypeVar("_R")


class Header(NamedTuple):
    """One header of a record: its key, and its value with a schema."""

    key: str
    schema: Schema | None
    value: Any


class Headers(list[Header]):
    """The headers of one record, in order."""

    __slots__ = ()

    @classmethod
    def copy_of(cls, headers: Iterable[Header]) -> Headers:
        """Return a copy that shares no changeable values, such as maps, with `headers`."""
        copied = cls(headers)
        for index, header in enumerate(copied):
            if type(header.value) not in _UNCHANGEABLE:
                copied[index] = header._replace(value=deepcopy(header.value))
        return copied

    def add(self, key: str, value: Any, schema: Schema | None = None) -> Headers:
        """Append a header; returns self."""
        if schema is not None and (name := schema.name or "") in COUNT_RANGES:
            value = to_count(name, value)
        self.append(Header(key, schema, value))
        return self

    def last(self, key: str) -> Header | None:
        """Return the last header with this key, or None."""
        return next((header for header in reversed(self) if header.key == key), None)

    def all(self, key: str) -> list[Header]:
        """Return all headers with this key."""
        return [header for header in self if header.key == key]

    def without(self, *keys: str) -> Headers:
        """Return a copy without the headers that have any of these keys."""
        return Headers(header for header in self if header.key not in keys)


def map_headers(function: Callable[[_T], _R], headers: Sequence[_T]) -> list[_R]:
    """Return the result of `function` for the headers of each record.

    Records that share a headers object share one call of `function` and its result.
    """
    if headers and _are_same(headers):
        return [function(headers[0])] * len(headers)
    results = {number: function(each) for number, each in dict(zip(map(id, headers), headers, strict=True)).items()}
    return list(map(results.__getitem__, map(id, headers)))


def _are_same(headers: Sequence[Any]) -> bool:
    """Return whether all records have the same headers. `map_headers` then calls its function only once."""
    first = headers[0]
    if headers[-1] is not first:
        return False
    if all(map(_has_exact_equality, first)):
        return headers.count(first) == len(headers)  # takes a tenth of the time of comparing identities one by one
    return all(map(is_, headers, repeat(first)))


def _has_exact_equality(header: Sequence[Any]) -> bool:
    """Return whether every valid header that is equal to `header` has a value of the same Python type.

    `header` is a `Header`, or a pair of a key and bytes. Without a schema, the integer 1 is equal to the boolean True.
    """
    if len(header) == 2:
        return True
    _, schema, value = header
    return schema is not None and _EXACT_TYPES.get(schema.type) is type(value)
