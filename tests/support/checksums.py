"""Compares tables in different systems by the number of rows and a checksum that ignores the order of the rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

_EPOCH = dt.date(1970, 1, 1)
_DAY_MS = 86_400_000


class Contents(NamedTuple):
    """The number of rows, and the sum of their checksums modulo 2**64."""

    rows: int
    checksum: int


def contents(types: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> Contents:
    """Return the contents of a table whose columns have these PostgreSQL types, in this order.

    A date may be a `date`, the days since 1970 (in a record), or the milliseconds since 1970 (in a document).
    """
    converters = [_CONVERTERS[kind] for kind in types.values()]
    count = total = 0
    for row in rows:
        values = [None if value is None else convert(value) for convert, value in zip(converters, row, strict=True)]
        total += int.from_bytes(blake2b(repr(values).encode(), digest_size=8).digest())
        count += 1
    return Contents(count, total % 2**64)


def of_mappings(types: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> Contents:
    """Return the contents of rows that map column names to values. A missing column counts as null.

    `types` are the PostgreSQL types of the columns.
    """
    return contents(types, ([row.get(name) for name in types] for row in rows))


def _days(value: Any) -> int:
    if isinstance(value, dt.date):
        return (value - _EPOCH).days
    return int(value) // _DAY_MS if abs(value) > _DAY_MS // 100 else int(value)


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "integer": int,
    "bigint": int,
    "double precision": float,
    "numeric": float,
    "text": str,
    "date": _days,
}
