"""Converts the values of array columns. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace_connectors.lakehouse.column_types import ColumnType
from headrace_connectors.lakehouse.values.mismatch import MismatchError


def array_converter(
    type_: ColumnType, classes: tuple[type[Sequence[Any]], ...], element: Callable[[Any], Any]
) -> Callable[[Any], list[Any]]:
    """Return the function that converts one array, whose class is in `classes`. `element` converts its elements."""

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, classes):
            raise MismatchError(type_, value)
        items: list[Any] = []
        try:
            for item in value:
                items.append(element(item))  # noqa: PERF401 - counts the converted items
        except MismatchError as error:
            raise error.inside(f"[{len(items)}]") from None
        return items

    return convert
