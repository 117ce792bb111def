"""The unique indexes of a table, and the error for an upsert if no unique index is on the key columns.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from headrace.api.errors import ConnectError


class UniqueIndex(NamedTuple):
    """A unique index of a table, or the index of its primary key."""

    columns: frozenset[str | None]
    """The names of the columns. None stands for an expression."""
    is_on_prefix: bool
    """Whether the index contains only the first characters or bytes of a column's values (MySQL)."""

    def is_for(self, key: frozenset[str]) -> bool:
        """Whether rows conflict in this index only if they have the same values in the columns `key`."""
        return self.columns == key and not self.is_on_prefix

    def prevents_duplicates(self, key: frozenset[str]) -> bool:
        """Whether rows with the same values in the columns `key` always conflict in this index."""
        return self.columns <= key


def missing_constraint(table: str, keys: Iterable[str], reason: str = "") -> ConnectError:
    """Return the error for an upsert into a table without a unique constraint for the primary key.

    `table` is the table's quoted name, `keys` has the columns of the primary key, and `reason` is the database's
    message.
    """
    columns = ", ".join(keys)
    details = f": {reason}" if reason else ""
    return ConnectError(
        f"Table {table} has no primary key or unique index on the columns of pk.fields ({columns}), but "
        f"insert.mode=upsert needs one{details}. Create a unique index on these columns, or set pk.fields to the "
        "columns of the table's primary key"
    )
