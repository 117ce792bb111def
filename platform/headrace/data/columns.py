"""Columnar forms of a batch's values, in which data that many records have in common is stored once.

`Columns` contains structs or maps as one column per field. `Lines` contains strings as one joined string.
`CheckedRows` contains rows that converters need not check.
`Batch.compact` returns the columnar form. `Batch.values` converts it to a list of rows, maps or strings on first use,
and keeps the list. No value in a columnar form is null. Columnar forms are immutable, like everything in a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any


class ColumnarValues:
    """The base class of columnar forms; `len` is the number of records."""

    __slots__ = ("_items", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._items: list[Any] | None = None

    def __len__(self) -> int:
        return self.count

    def items(self) -> list[Any]:
        """Return the values as a list, as `Batch.values` does. Every call returns the same list."""
        if self._items is None:
            self._items = self._make_items()
        return self._items

    def take(self, indexes: Sequence[int]) -> Values:
        """Return the values at these indexes."""
        items = self.items()
        return [items[index] for index in indexes]

    def _make_items(self) -> list[Any]:
        raise NotImplementedError


class Lines(ColumnarValues):
    """Strings without line feeds, stored as one string with line feeds between them."""

    __slots__ = ("_encoded", "text")

    def __init__(self, text: str, count: int, encoded: list[bytes] | None = None) -> None:
        """`text` consists of `count` lines, separated by `count - 1` line feeds; `count` is at least 1.

        `encoded` contains the lines in UTF-8, if the caller has them.
        """
        super().__init__(count)
        self.text = text
        self._encoded = encoded

    def encoded(self) -> list[Any]:
        """Return the lines in UTF-8. Callers must not change the list. Raises UnicodeEncodeError."""
        if self._encoded is None:
            self._encoded = self.text.encode().split(b"\n")
        return self._encoded

    def _make_items(self) -> list[Any]:
        return self.text.split("\n")


class CheckedRows(ColumnarValues):
    """Rows whose values are known to match the batch's schema, so that a converter need not check them."""

    __slots__ = ()

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(len(rows))
        self._items = rows


@dataclass(frozen=True, slots=True)
class Shared:
    """A column with the same value for all records."""

    value: Any


Column = list[Any] | range | Lines | Shared
"""The values of one field: a value for each record (consecutive integers may be a range), or one value for all."""


class Columns(ColumnarValues):
    """Structs (rows) or maps, stored as one column for each field name or key.

    All maps have the same keys; a map's value for a key may be null. Column values have the same form as in rows:
    nested structs are rows.
    """

    __slots__ = ("columns", "is_maps", "names")

    def __init__(self, names: Sequence[str], columns: Sequence[Column], count: int, *, is_maps: bool) -> None:
        super().__init__(count)
        self.names = tuple(names)
        self.columns = tuple(columns)
        self.is_maps = is_maps

    def __repr__(self) -> str:
        return f"Columns({self.count} {'maps' if self.is_maps else 'rows'} of {', '.join(self.names)})"

    def column(self, name: str) -> Column | None:
        """Return the column with that name, or None."""
        return self.columns[self.names.index(name)] if name in self.names else None

    def put(self, name: str, column: Column) -> Columns:
        """Return a copy with one more column. In maps, the column replaces an existing column with the same name."""
        if self.is_maps and name in self.names:
            return self.replace(self.names.index(name), column)
        return Columns((*self.names, name), (*self.columns, column), self.count, is_maps=self.is_maps)

    def replace(self, index: int, column: Column) -> Columns:
        """Return a copy in which this column replaces the column at `index`."""
        columns = (*self.columns[:index], column, *self.columns[index + 1 :])
        return Columns(self.names, columns, self.count, is_maps=self.is_maps)

    def take(self, indexes: Sequence[int]) -> Columns:
        """Return the records at these indexes."""
        columns: list[Column] = []
        for column in self.columns:
            if not isinstance(column, Shared):
                items = column.items() if isinstance(column, Lines) else column
                column = [items[index] for index in indexes]
            columns.append(column)
        return Columns(self.names, columns, len(indexes), is_maps=self.is_maps)

    def _make_items(self) -> list[Any]:
        if not self.names:
            return [{} if self.is_maps else () for _ in range(self.count)]
        rows = zip(
            *(
                repeat(column.value, self.count) if isinstance(column, Shared) else column_items(column, self.count)
                for column in self.columns
            ),
            strict=True,
        )
        return _map_maker(self.names)(rows) if self.is_maps else list(rows)


Values = list[Any] | ColumnarValues
"""The values of a batch: a list, or a columnar form."""


def listed(values: Values) -> list[Any]:
    """Return the values as a list."""
    return values.items() if isinstance(values, ColumnarValues) else values


def column_items(column: Column, count: int) -> list[Any]:
    """Return the values of a column as a list of `count` items."""
    if isinstance(column, Shared):
        return [column.value] * count
    return list(column) if isinstance(column, range) else listed(column)


def maps_to_columns(values: list[Any]) -> Columns | None:
    """Convert a list of values to columns if all of them are maps with the same keys. Otherwise, return None."""
    first = values[0]
    names = tuple(first) if first.__class__ is dict else ()
    if set(map(type, values)) != {dict} or set(map(len, values)) != {len(names)}:
        return None
    try:
        columns = [list(map(itemgetter(name), values)) for name in names]
    except KeyError:
        return None
    return Columns(names, columns, len(values), is_maps=True)


@lru_cache(maxsize=1024)
def _map_maker(names: tuple[str, ...]) -> Callable[[Any], list[dict[str, Any]]]:
    """Return the function that converts rows to maps with these keys."""
    arguments = [f"v{index}" for index in range(len(names))]
    items = ", ".join(f"{name!r}: {argument}" for name, argument in zip(names, arguments, strict=True))
    make_maps: Callable[[Any], list[dict[str, Any]]] = eval(
        f"lambda rows: [{{{items}}} for {', '.join(arguments)}, in rows]"
    )
    return make_maps
