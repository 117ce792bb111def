"""Types of table columns.

A `ColumnType` is a tree of types. `str(column_type)` is Spark's DDL for error messages. Every table column is nullable.
This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

PRECISION_MAX = 38

DDL_NAMES = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
    "date": "date",
    "time": "int",
    "timestamp": "timestamp",
}


class SchemaError(ValueError):
    """A schema is malformed, or a table cannot store values with this schema. The message contains the field's name."""


class UndeclaredColumnsError(SchemaError):
    """Records have no schema, and the configuration does not declare the columns of their table."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, or a field of a struct. `default` is JSON in JsonConverter's encoding."""

    name: str
    type: ColumnType
    optional: bool = True
    default: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The type of a column. `kind` is a key of DDL_NAMES, or one of decimal, array, map, struct.

    A column that another tool added to a table may have another kind, for example timestamp_ntz. No record matches it.
    """

    kind: str
    fields: tuple[TableColumn, ...] = ()
    key: ColumnType | None = None
    element: ColumnType | None = None
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "array":
            return f"array<{self.element}>"
        if self.kind == "map":
            return f"map<{self.key},{self.element}>"
        if self.kind == "struct":
            return "struct<" + ",".join(f"{quoted(field.name)}:{field.type}" for field in self.fields) + ">"
        return DDL_NAMES.get(self.kind, self.kind)


STRING = ColumnType("string")


def quoted(name: str) -> str:
    """Return a column name as DDL text, in backquotes unless it is an identifier."""
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


def check_names(names: Iterable[str], path: str) -> None:
    """Raise SchemaError if `names` is empty, a name is empty, or two names differ only in case.

    The message begins with `path`, the struct whose fields have these names.
    """
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise SchemaError(f"{path}: a column name is empty")
        first = seen.setdefault(name.lower(), name)
        if first != name:
            raise SchemaError(
                f"{path}: columns {first!r} and {name!r} differ only in case, which tables do not support"
            )
    if not seen:
        raise SchemaError(f"{path}: a struct without fields cannot be stored, because a table needs a column")


def leaf_types(columns: Iterable[TableColumn], path: str = "") -> dict[str, str]:
    """Return {path: type} of the columns. Instead of a struct, the result contains the fields of the struct.

    Every path begins with `path`. The types do not include nullability.
    """
    leaves = {}
    for column in columns:
        name = path + quoted(column.name)
        if column.type.fields:
            leaves.update(leaf_types(column.type.fields, f"{name}."))
        else:
            leaves[name] = str(column.type)
    return leaves


def describe_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the differences between the leaf types of two tables, such as `column n: int -> string`."""
    found = []
    for name, type_ in before.items():
        if name not in after:
            found.append(f"column {name} removed ({type_})")
        elif after[name] != type_:
            found.append(f"column {name}: {type_} -> {after[name]}")
    return found + [f"column {name} added ({type_})" for name, type_ in after.items() if name not in before]


def widened(columns: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """Return `columns` with int instead of tinyint and smallint, and without defaults, as Iceberg stores them."""
    return tuple(replace(column, type=_widened(column.type), default=None) for column in columns)


def _widened(type_: ColumnType) -> ColumnType:
    if type_.kind in ("int8", "int16"):
        return ColumnType("int32")
    return replace(
        type_,
        fields=widened(type_.fields),
        key=_widened(type_.key) if type_.key is not None else None,
        element=_widened(type_.element) if type_.element is not None else None,
    )
