"""The unique indexes of a table. This module has no I/O."""

from __future__ import annotations

from typing import NamedTuple


class UniqueIndex(NamedTuple):
    """A unique index of a table, or the index of its primary key."""

    columns: frozenset[str | None]
    """The names of the columns. None stands for an expression."""
    is_on_prefix: bool
    """Whether the index contains only the first characters or bytes of a column's values (MySQL)."""

    def is_for(self, key: frozenset[str]) -> bool:
        """Whether rows conflict in this index only if they have the same values in the columns `key`."""
        return self.columns == key and not self.is_on_prefix
