"""Formats a whole batch as lines of text, as the file sink writes it.

`java_lines` returns the same text as `java_string` for each value, but faster: it formats structs and maps column by
column, formats shared values once, and joins everything with one call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter
from typing import Any

from headrace.data.columns import Column, Columns, Lines, Shared, Values, listed
from headrace.data.java import hash_map_order
from headrace.data.schema import Schema, Type
from headrace.data.text import formatter


def java_lines(schema: Schema | None, values: Values) -> str:
    """Return the text of each value of one schema (structs as rows), each followed by a line feed."""
    if isinstance(values, Lines):
        return values.text + "\n"
    columns = values if isinstance(values, Columns) else _columns(schema, listed(values))
    text = None if columns is None else _columns_text(schema, columns)
    if text is not None:
        return text
    texts = listed(values)
    if schema is None or schema.type is not Type.STRING or None in texts:
        texts = list(map(formatter(schema), texts))
    return "\n".join([*texts, ""])


def _columns(schema: Schema | None, values: list[Any]) -> Columns | None:
    """Rows, or maps of the same string keys, by column; None for others."""
    if len(values) < 2:
        return None
    if schema is None:
        return _map_columns(values)
    if schema.type is not Type.STRUCT or set(map(type, values)) != {tuple}:
        return None
    names = [field.name for field in schema.fields]
    return Columns(names, list(map(list, zip(*values, strict=True))), len(values), is_maps=False)


def _map_columns(values: list[Any]) -> Columns | None:
    first = values[0]
    names = tuple(first) if first.__class__ is dict else ()
    if set(map(type, values)) != {dict} or set(map(len, values)) != {len(names)}:
        return None
    try:
        columns = [list(map(itemgetter(name), values)) for name in names]
    except KeyError:
        return None
    return Columns(names, columns, len(values), is_maps=True)


def _columns_text(schema: Schema | None, columns: Columns) -> str | None:
    """The lines of columns; None for what has to be looked at value by value."""
    layout = _layout(schema, columns, _trusted_texts)
    if layout is None:
        return None
    try:
        return layout.lines()
    except TypeError:  # a column began with a string and went on with something else
        layout = _layout(schema, columns, _texts)
        return None if layout is None else layout.lines()


def _layout(schema: Schema | None, columns: Columns, texts: _Texts) -> _Layout | None:
    if not columns.names or set(map(type, columns.names)) != {str}:
        return None
    if columns.is_maps:
        return _map_layout(None if schema is None else schema.value_schema, columns, _Layout(columns.count, texts))
    if schema is None or schema.type is not Type.STRUCT:
        return None
    return _struct_layout(schema, columns, _Layout(columns.count, texts))


def _map_layout(schema: Schema | None, columns: Columns, layout: _Layout) -> _Layout:
    """``{a=1, b=null}`` in the order of Java's HashMap."""
    places = {name: place for place, name in enumerate(columns.names)}
    opening = "{"
    for name in hash_map_order(columns.names):
        layout.say(f"{opening}{name}=")
        layout.fill(schema, columns.columns[places[name]])
        opening = ", "
    layout.say("}\n")
    return layout


def _struct_layout(schema: Schema, columns: Columns, layout: _Layout) -> _Layout | None:
    """``Struct{a=1,b=x}``, null fields left out."""
    comma = ""
    layout.say("Struct{")
    for field, column in zip(schema.fields, columns.columns, strict=True):
        label = f"{comma}{field.name}="
        if isinstance(column, Shared) and column.value is None:
            continue
        if isinstance(column, list) and None in column:
            if not comma:  # whether one comes before the next field is each record's own affair
                return None
            text = formatter(field.schema)
            layout.fill_with(["" if item is None else label + text(item) for item in column])
            continue
        layout.say(label)
        layout.fill(field.schema, column)
        comma = ","
    layout.say("}\n")
    return layout


class _Layout:
    """Lines as constant texts with items in between; `say` and `fill` in the order of the line."""

    def __init__(self, count: int, texts: _Texts) -> None:
        self._count = count
        self._texts = texts
        self._constant = ""
        # By turns: what stands before an item (one text for all lines, or one for each), and the items.
        self._pieces: list[str | list[str]] = []

    def say(self, text: str) -> None:
        """The same text in all lines."""
        self._constant += text

    def fill(self, schema: Schema | None, column: Column) -> None:
        """The texts of a column."""
        if isinstance(column, Shared):
            self.say(formatter(schema)(column.value))
        elif isinstance(column, range):
            self._count_up(column)
        else:
            self.fill_with(self._texts(schema, listed(column)))

    def fill_with(self, items: list[str]) -> None:
        """A text for each line."""
        self._pieces += (self._constant, items)
        self._constant = ""

    def _count_up(self, numbers: range) -> None:
        """Numbers in a row: their thousands go with what stands before them."""
        if numbers.step != 1 or numbers.start < 1000:
            self.fill_with(list(map(repr, numbers)))
            return
        leads: list[str] = []
        ends: list[str] = []
        for thousand in range(numbers.start // 1000, (numbers.stop - 1) // 1000 + 1):
            first, stop = max(numbers.start - thousand * 1000, 0), min(numbers.stop - thousand * 1000, 1000)
            leads += [f"{self._constant}{thousand}"] * (stop - first)
            ends += _three_digits()[first:stop]
        self._pieces += (leads, ends)
        self._constant = ""

    def lines(self) -> str:
        """All of it."""
        width = len(self._pieces) + 1
        line = [piece if isinstance(piece, str) else "" for piece in self._pieces]
        texts = [*line, self._constant] * self._count
        for place, piece in enumerate(self._pieces):
            if not isinstance(piece, str):
                texts[place::width] = piece
        return "".join(texts)


_Texts = Callable[[Schema | None, list[Any]], list[str]]


def _trusted_texts(schema: Schema | None, items: list[Any]) -> list[str]:
    """`_texts` for columns that hold nothing but strings when the first item is one: joining them will tell."""
    return items if items and type(items[0]) is str else _texts(schema, items)


def _texts(schema: Schema | None, items: list[Any]) -> list[str]:
    """The texts of a column's items."""
    classes = set(map(type, items))
    if classes == {str}:
        return items
    if classes == {int} and (schema is None or schema.type is not Type.FLOAT32):
        return list(map(repr, items))
    return list(map(formatter(schema), items))


@lru_cache(maxsize=1)
def _three_digits() -> list[str]:
    return [f"{number:03}" for number in range(1000)]
