"""The leaf columns of Parquet files, and their encodings. This module does no I/O.

Strings and binary values have dictionaries. Numbers have none: for them, a dictionary costs twice the time of writing,
and zstd compresses the plain values at least as well. The encodings that later versions of Parquet added are smaller
still, but Iceberg's reader in Spark supports them only since 1.9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

Leaf = tuple[tuple[str, ...], pa.DataType, bool]
"""The path of a leaf column, its type, and whether it is in a list or map."""


def dictionary_columns(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of the columns that have dictionaries."""
    return [".".join(path) for path, type_, _ in leaves(schema) if _is_text(type_)]


def leaves(fields: Iterable[pa.Field]) -> Iterator[Leaf]:
    """Yield the leaf columns in the order in which a Parquet file contains them."""
    for field in fields:
        yield from _leaves((field.name,), field.type, False)


def _leaves(path: tuple[str, ...], type_: pa.DataType, is_repeated: bool) -> Iterator[Leaf]:
    if pa.types.is_struct(type_):
        for field in type_:
            yield from _leaves((*path, field.name), field.type, is_repeated)
    elif pa.types.is_map(type_):
        yield from _leaves((*path, "key_value", "key"), type_.key_type, True)
        yield from _leaves((*path, "key_value", "value"), type_.item_type, True)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        yield from _leaves((*path, "list", "element"), type_.value_type, True)
    else:
        yield path, type_, is_repeated


def _is_text(type_: pa.DataType) -> bool:
    return any(
        matches(type_)
        for matches in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )
