"""Parses partition specifications and sort orders, and checks layouts against a table's columns.

    lakehouse.partition.by=day(ts), bucket(16, id), region
    lakehouse.sort.by=ts desc, id asc nulls last

The syntax is that of Iceberg's DDL in Spark: transforms have parentheses, a column alone is an identity field, and
backquotes enclose a name that is not an identifier. Without `nulls first` or `nulls last`, nulls are first in ascending
order and last in descending order, as in Iceberg. This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from headrace_connectors.lakehouse.column_types import ColumnType, TableColumn
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField, SortField

_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>[^\s,()`]+)|(?P<mark>[,()]))")
_TRANSFORMS = {
    "identity": "identity",
    "year": "year",
    "years": "year",
    "month": "month",
    "months": "month",
    "day": "day",
    "days": "day",
    "date": "day",
    "hour": "hour",
    "hours": "hour",
    "bucket": "bucket",
    "truncate": "truncate",
}
_WITH_ARGUMENT = ("bucket", "truncate")
_TIME_TRANSFORMS = ("year", "month", "day", "hour")
_ARGUMENT_MAX = 2**31 - 1

_INTEGERS = ("int8", "int16", "int32", "int64", "time")
_SOURCES: dict[str, tuple[str, ...]] = {
    "identity": (*_INTEGERS, "boolean", "string", "date", "timestamp", "decimal"),
    "year": ("date", "timestamp"),
    "month": ("date", "timestamp"),
    "day": ("date", "timestamp"),
    "hour": ("timestamp",),
    "bucket": (*_INTEGERS, "string", "bytes", "date", "timestamp", "decimal"),
    "truncate": (*_INTEGERS, "string", "bytes", "decimal"),
}
"""The kinds of columns for each transform. Iceberg permits identity also for binary and floating-point columns; Delta's
partition values cannot represent them in a way that all readers understand."""
_NESTED = ("struct", "array", "map")


class LayoutError(ValueError):
    """The text of a partition specification or sort order is malformed."""


def parse_partition_spec(text: str) -> tuple[PartitionField, ...]:
    """Return the fields of a partition specification, such as `day(ts), bucket(16, id), region`. Raises LayoutError."""
    return tuple(_partition_field(item) for item in _items(text))


def parse_sort_order(text: str) -> tuple[SortField, ...]:
    """Return the fields of a sort order, such as `ts desc nulls last, id`. Raises LayoutError."""
    return tuple(_sort_field(item) for item in _items(text))


def layout_problems(layout: FileLayout, columns: Sequence[TableColumn]) -> list[str]:
    """Return what makes the layout impossible for a table with these columns. Each text names the column."""
    types = {column.name: column.type for column in columns}
    errors = [
        *(error for field in layout.partition_fields for error in _partition_errors(field, types)),
        *(error for field in layout.sort_fields for error in _sort_errors(field, types)),
        *_combination_errors(layout, types),
    ]
    return list(dict.fromkeys(errors))


# --- parsing --------------------------------------------------------------------------------------------------------


class _Word(str):
    """A name or number. `is_quoted` is true if it was in backquotes."""

    is_quoted = False


class _Mark(str):
    """A comma or a parenthesis."""


def _items(text: str) -> list[list[_Word | _Mark]]:
    """Return the tokens of each comma-separated item. Commas in parentheses do not separate items."""
    items: list[list[_Word | _Mark]] = [[]]
    depth = 0
    for token in _tokens(text):
        if isinstance(token, _Mark):
            depth += {"(": 1, ")": -1}.get(token, 0)
            if depth not in (0, 1):
                raise LayoutError(f"the parentheses do not match in {text!r}")
            if token == "," and depth == 0:
                items.append([])
                continue
        items[-1].append(token)
    if depth:
        raise LayoutError(f"the parentheses do not match in {text!r}")
    if any(not item for item in items) and text.strip():
        raise LayoutError(f"a field is empty in {text!r}")
    return items if text.strip() else []


def _tokens(text: str) -> Iterator[_Word | _Mark]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise LayoutError(f"unexpected {text[position:].strip()!r}: a backquote is not closed, or a name is empty")
        position = match.end()
        if match["mark"]:
            yield _Mark(match["mark"])
        elif match["word"]:
            yield _Word(match["word"])
        else:
            word = _Word(match["quoted"][1:-1].replace("``", "`"))
            word.is_quoted = True
            yield word


def _partition_field(item: list[_Word | _Mark]) -> PartitionField:
    shown = " ".join(item)
    if len(item) == 1 and isinstance(item[0], _Word):
        return PartitionField(str(item[0]))
    if len(item) < 4 or item[1] != "(" or item[-1] != ")" or isinstance(item[0], _Mark):
        raise LayoutError(f"{shown!r} is not a partition field; write a column, or a transform such as day(column)")
    transform = _TRANSFORMS.get(item[0].lower())
    if transform is None:
        names = ", ".join(dict.fromkeys(_TRANSFORMS.values()))
        raise LayoutError(f"unknown transform {str(item[0])!r} in {shown!r}; the transforms are {names}")
    arguments, separators = item[2:-1:2], item[3:-1:2]
    words = [argument for argument in arguments if isinstance(argument, _Word)]
    if len(words) != len(arguments) or any(separator != "," for separator in separators):
        raise LayoutError(f"{shown!r} is malformed; {_usage(transform)}")
    if transform not in _WITH_ARGUMENT:
        if len(words) != 1:
            raise LayoutError(f"{shown!r} must have one argument; {_usage(transform)}")
        return PartitionField(str(words[0]), transform)
    return _field_with_argument(transform, words, shown)


def _field_with_argument(transform: str, words: list[_Word], shown: str) -> PartitionField:
    """Return a bucket or truncate field. Iceberg's tools write the number first, others write it last."""
    numbers = [word for word in words if not word.is_quoted and re.fullmatch(r"\d+", word)]
    names = [word for word in words if word not in numbers or word.is_quoted]
    if len(words) != 2 or len(numbers) != 1:
        raise LayoutError(f"{shown!r} must have a number and a column; {_usage(transform)}")
    if not 1 <= int(numbers[0]) <= _ARGUMENT_MAX:
        raise LayoutError(f"{shown!r}: the number must be 1 to {_ARGUMENT_MAX}")
    return PartitionField(str(names[0]), transform, int(numbers[0]))


def _usage(transform: str) -> str:
    return f"write {transform}(16, column)" if transform in _WITH_ARGUMENT else f"write {transform}(column)"


def _sort_field(item: list[_Word | _Mark]) -> SortField:
    column, *rest = item
    words = " ".join(rest).lower()
    match = re.fullmatch(r"(asc|desc)?( ?nulls (first|last))?", words)
    if isinstance(column, _Mark) or match is None:
        shown = " ".join(item)
        raise LayoutError(f"{shown!r} is not a sort field; write column [asc|desc] [nulls first|nulls last]")
    descending = match[1] == "desc"
    return SortField(str(column), descending, match[3] == "first" if match[3] else not descending)


# --- checks ---------------------------------------------------------------------------------------------------------


def _partition_errors(field: PartitionField, types: dict[str, ColumnType]) -> Iterator[str]:
    type_ = types.get(field.column)
    if type_ is None:
        yield _unknown_column("partition", field.column, types)
    elif type_.kind not in _SOURCES[field.transform]:
        permitted = ", ".join(dict.fromkeys("int" if kind == "time" else kind for kind in _SOURCES[field.transform]))
        yield (
            f"cannot partition by {field}: column {field.column} has the type {type_}, and {field.transform}"
            f" needs one of {permitted}"
        )


def _sort_errors(field: SortField, types: dict[str, ColumnType]) -> Iterator[str]:
    type_ = types.get(field.column)
    if type_ is None:
        yield _unknown_column("sort", field.column, types)
    elif type_.kind in _NESTED:
        yield f"cannot sort by column {field.column}, because it has the type {type_}"


def _unknown_column(purpose: str, name: str, types: dict[str, ColumnType]) -> str:
    similar = next((known for known in types if known.lower() == name.lower()), None)
    hint = f"did you mean {similar}?" if similar else f"the columns are {', '.join(types)}"
    return f"cannot {purpose} by column {name}, because the table has no such column; {hint}"


def _combination_errors(layout: FileLayout, types: dict[str, ColumnType]) -> Iterator[str]:
    fields = layout.partition_fields
    sources = [_source(field) for field in fields]
    for field, source in zip(fields, sources, strict=True):
        if sources.count(source) > 1:
            yield f"the partition fields of column {field.column} repeat each other; keep one of them"
        if field.transform != "identity" and field.name.lower() in {name.lower() for name in types}:
            yield f"cannot partition by {field}: the table already has a column {field.name}"
    if types and {field.column for field in fields if field.transform == "identity"} >= types.keys():
        yield "cannot partition by all columns of the table; at least one column must not be a partition column"
    names = [field.column for field in layout.sort_fields]
    yield from (f"column {name} is twice in the sort order" for name in names if names.count(name) > 1)


def _source(field: PartitionField) -> tuple[str, str]:
    """Return the column and transform of a field. Only one of the transforms of times can be used for a column."""
    return field.column, "time" if field.transform in _TIME_TRANSFORMS else field.transform
