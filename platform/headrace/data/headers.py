"""Record headers: an ordered list of (key, schema, value); keys may repeat."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.data.schema import Schema


class Header(NamedTuple):
    """One header."""

    key: str
    schema: Schema | None
    value: Any


class Headers(list[Header]):
    """The headers of one record, in order."""

    __slots__ = ()

    def add(self, key: str, value: Any, schema: Schema | None = None) -> Headers:
        """Append a header; returns self."""
        self.append(Header(key, schema, value))
        return self

    def last(self, key: str) -> Header | None:
        """Return the last header with this key, or None."""
        return next((header for header in reversed(self) if header.key == key), None)

    def all(self, key: str) -> list[Header]:
        """Return all headers with this key."""
        return [header for header in self if header.key == key]

    def without(self, *keys: str) -> Headers:
        """Return a copy without the headers that have any of these keys."""
        return Headers(header for header in self if header.key not in keys)
