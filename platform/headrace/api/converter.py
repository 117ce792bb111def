"""Converters: between Connect data and the bytes of a topic.

An author writes `from_connect` and `to_connect`; built-in converters override the list-wise forms as well. In the
list-wise forms structs are rows (see `headrace.data.struct`), in the single ones they are `Struct`. Null bytes come
from and go to no schema and no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.api.errors import BatchError
from headrace.api.plugin import Plugin
from headrace.data.columns import Compact, Values
from headrace.data.schema import Schema
from headrace.data.struct import from_rows, to_rows


class SchemaAndValue(NamedTuple):
    """One value with its schema."""

    schema: Schema | None
    value: Any


class Run(NamedTuple):
    """Neighbouring values that share a schema."""

    schema: Schema | None
    values: Values


class Enclosed(NamedTuple):
    """Bytes that all begin and end alike: `values` are what is between."""

    before: bytes
    values: list[bytes]
    after: bytes

    def whole(self) -> list[bytes]:
        """The bytes with what is around them."""
        before, after = self.before, self.after
        return [before + value + after for value in self.values]


NO_VALUE = SchemaAndValue(None, None)


class Converter(Plugin):
    """The base of key and value converters."""

    abstract = True

    def configure(self, props: Mapping[str, str], is_key: bool) -> None:
        """Take the settings (the text of the keys, without prefix). Raises ConfigErrors."""

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """The bytes for a value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define from_connect")

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """The value that the bytes hold. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define to_connect")

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """The bytes for each value. Raises BatchError naming every value that cannot be converted."""
        encoded: list[bytes | None] = []
        errors: dict[int, Exception] = {}
        for index, value in enumerate(from_rows(schema, values)):
            try:
                encoded.append(self.from_connect(topic, schema, value))
            except Exception as error:  # noqa: BLE001 - whatever a plug-in raises concerns this record alone
                errors[index] = error
        if errors:
            raise BatchError(errors)
        return encoded

    def from_connect_compact(self, topic: str, schema: Schema | None, values: Compact) -> list[bytes | None] | Enclosed:
        """The same for values in a compact form; override it only to be faster."""
        return self.from_connect_batch(topic, schema, values.items())

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[Run]:
        """The values in order, cut into runs of one schema. Raises BatchError naming every one that fails."""
        decoded: list[SchemaAndValue] = []
        errors: dict[int, Exception] = {}
        for index, item in enumerate(data):
            try:
                decoded.append(SchemaAndValue(*self.to_connect(topic, item)))
            except Exception as error:  # noqa: BLE001 - whatever a plug-in raises concerns this record alone
                errors[index] = error
        if errors:
            raise BatchError(errors)
        return to_runs(decoded)

    def close(self) -> None:
        """Release what `configure` took."""


class HeaderConverter(Plugin):
    """The base of header converters."""

    abstract = True

    def configure(self, props: Mapping[str, str]) -> None:
        """Take the settings (the text of the keys, without prefix). Raises ConfigErrors."""

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """The bytes for a header's value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define from_connect_header")

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """The value that a header's bytes hold. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define to_connect_header")

    def close(self) -> None:
        """Release what `configure` took."""


def to_runs(items: Sequence[SchemaAndValue]) -> list[Run]:
    """Group neighbouring values of equal schema, and turn structs into rows."""
    runs: list[tuple[Schema | None, list[Any]]] = []
    for schema, value in items:
        if runs and (runs[-1][0] is schema or runs[-1][0] == schema):
            runs[-1][1].append(value)
        else:
            runs.append((schema, [value]))
    return [Run(schema, to_rows(schema, values)) for schema, values in runs]
