"""Formats a whole batch as lines of text, as the file sink writes it.

`java_lines` formats each value as `java_string` does, but faster: it formats structs and maps column by column, formats
a value that is the same for all records only once, and joins all texts with one call.
"""

from __future__ import annotations

from typing import Any

from headrace.data.columns import Column, Columns, Lines, Shared, Values, listed, maps_to_columns
from headrace.data.java import hash_map_order
from headrace.data.schema import Schema, Type
from headrace.data.text import formatter

_THREE_DIGITS = [f"{number:03}" for number in range(1000)]


def java_lines(schema: Schema | None, values: Values) -> str:
    """Return the texts of values with this schema (structs as rows), each text followed by a line feed."""
    if isinstance(values, Lines):
        return values.text + "\n"
    columns = values if isinstance(values, Columns) else _to_columns(schema, listed(values))
    text = None if columns is None else _format_columns(schema, columns)
    if text is not None:
        return text
    texts = listed(values)
    if schema is None or schema.type is not Type.STRING or None in texts:
        texts = list(map(formatter(schema), texts))
    return "\n".join([*texts, ""])


def _to_columns(schema: Schema | None, values: list[Any]) -> Columns | None:
    """Convert rows, or maps with the same string keys, to columns. Returns None for all other values."""
    if len(values) < 2:
        return None
    if schema is None:
        return maps_to_columns(values)
    if schema.type is not Type.STRUCT or set(map(type, values)) != {tuple}:
        return None
    names = [field.name for field in schema.fields]
    return Columns(names, list(map(list, zip(*values, strict=True))), len(values), is_maps=False)


def _format_columns(schema: Schema | None, columns: Columns) -> str | None:
    """Return the lines of these values as one string, or None if the values must be formatted one by one."""
    if not columns.names or set(map(type, columns.names)) != {str}:
        return None
    if not columns.is_maps and (schema is None or schema.type is not Type.STRUCT):
        return None
    try:
        return _render(schema, columns, _LineTemplate(columns.count, checks_types=False))
    except TypeError:  # a column starts with a string and contains other types
        return _render(schema, columns, _LineTemplate(columns.count, checks_types=True))


def _render(schema: Schema | None, columns: Columns, template: _LineTemplate) -> str | None:
    if columns.is_maps:
        _add_maps(None if schema is None else schema.value_schema, columns, template)
        return template.render()
    assert schema is not None
    return template.render() if _add_structs(schema, columns, template) else None


def _add_maps(schema: Schema | None, columns: Columns, template: _LineTemplate) -> None:
    """Add the text of maps to the template: ``{a=1, b=null}``, with the keys in the order of Java's HashMap."""
    indexes = {name: index for index, name in enumerate(columns.names)}
    separator = "{"
    for name in hash_map_order(columns.names):
        template.add_text(f"{separator}{name}=")
        template.add_column(schema, columns.columns[indexes[name]])
        separator = ", "
    template.add_text("}\n")


def _add_structs(schema: Schema, columns: Columns, template: _LineTemplate) -> bool:
    """Add the text of structs to the template: ``Struct{a=1,b=x}``, without null fields.

    Returns False if the first field is null in some records, but not in all of them. Without the first field, no comma
    precedes the second field, so the records have no common template.
    """
    comma = ""
    template.add_text("Struct{")
    for field, column in zip(schema.fields, columns.columns, strict=True):
        label = f"{comma}{field.name}="
        if isinstance(column, Shared) and column.value is None:
            continue
        if isinstance(column, list) and None in column:
            if not comma:
                return False
            text = formatter(field.schema)
            template.add_items(["" if item is None else label + text(item) for item in column])
            continue
        template.add_text(label)
        template.add_column(field.schema, column)
        comma = ","
    template.add_text("}\n")
    return True


class _LineTemplate:
    """The template of all lines: texts that are the same in all lines, and items that differ between lines.

    Without `checks_types`, a column that starts with a string is assumed to contain only strings, which saves a tenth
    of the time. `render` raises TypeError if the column contains other types.
    """

    def __init__(self, count: int, *, checks_types: bool) -> None:
        self._count = count
        self._checks_types = checks_types
        self._columns: list[tuple[str, list[str]]] = []  # the text before the items, and the items
        self._text = ""  # the text after the last items

    def add_text(self, text: str) -> None:
        """Add the same text to all lines."""
        self._text += text

    def add_items(self, items: list[str]) -> None:
        """Add one item to each line."""
        self._columns.append((self._text, items))
        self._text = ""

    def add_column(self, schema: Schema | None, column: Column) -> None:
        """Add the text of each value of a column."""
        if isinstance(column, Shared):
            self.add_text(formatter(schema)(column.value))
        elif isinstance(column, range):
            self._add_range(column)
        else:
            self.add_items(self._texts(schema, listed(column)))

    def render(self) -> str:
        """Return all lines as one string."""
        line = [piece for text, _ in self._columns for piece in (text, "")]
        line.append(self._text)
        pieces = line * self._count
        for index, (_, items) in enumerate(self._columns):
            pieces[2 * index + 1 :: len(line)] = items
        return "".join(pieces)

    def _add_range(self, numbers: range) -> None:
        """Add consecutive integers as two items per line: the thousands, and the last three digits.

        Up to 1000 consecutive integers have the same thousands, so the text of the thousands is created only once for
        them. This takes a fifth of the time of formatting each integer separately. If a transform adds the offset to
        each record, the file sink is therefore a tenth faster.
        """
        if numbers.step != 1 or numbers.start < 1000:
            self.add_items(list(map(repr, numbers)))
            return
        thousands: list[str] = []
        digits: list[str] = []
        for thousand in range(numbers.start // 1000, (numbers.stop - 1) // 1000 + 1):
            first, stop = max(numbers.start - thousand * 1000, 0), min(numbers.stop - thousand * 1000, 1000)
            thousands += [f"{self._text}{thousand}"] * (stop - first)
            digits += _THREE_DIGITS[first:stop]
        self._text = ""
        self.add_items(thousands)
        self.add_items(digits)

    def _texts(self, schema: Schema | None, items: list[Any]) -> list[str]:
        if items and not self._checks_types and type(items[0]) is str:
            return items
        classes = set(map(type, items))
        if classes == {str}:
            return items
        if classes == {int} and (schema is None or schema.type is not Type.FLOAT32):
            return list(map(repr, items))
        return list(map(formatter(schema), items))
