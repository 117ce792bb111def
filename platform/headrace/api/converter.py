"""Converters convert between Connect data and the bytes in topics.

Authors implement `from_connect` and `to_connect`; built-in converters also override the batch methods for speed. The
batch methods represent structs as rows (see `headrace.data.struct`), the other methods as `Struct`. Null bytes
correspond to a null value without a schema.
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
    """Consecutive values that share a schema."""

    schema: Schema | None
    values: Values


class Enclosed(NamedTuple):
    """Byte strings with a common prefix (`before`) and suffix (`after`); `values` contains the bytes between them."""

    before: bytes
    values: list[bytes]
    after: bytes

    def whole(self) -> list[bytes]:
        """Return the complete byte strings, with prefix and suffix."""
        before, after = self.before, self.after
        return [before + value + after for value in self.values]


NO_VALUE = SchemaAndValue(None, None)


class Converter(Plugin):
    """The base class of key and value converters."""

    abstract = True

    def configure(self, props: Mapping[str, str], is_key: bool) -> None:
        """Apply the configuration (the converter's keys without prefix, as strings). Raises ConfigErrors."""

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode one value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define from_connect")

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """Decode one value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define to_connect")

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """Encode each value. Raises BatchError naming every value that cannot be converted."""
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
        """Encode columnar values with the same results as `from_connect_batch`. Override only for speed."""
        return self.from_connect_batch(topic, schema, values.items())

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[Run]:
        """Decode each value; consecutive values with equal schemas form a run.

        Raises BatchError naming every value that cannot be converted.
        """
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
        """Release the resources that `configure` acquired."""


class HeaderConverter(Plugin):
    """The base class of header converters."""

    abstract = True

    def configure(self, props: Mapping[str, str]) -> None:
        """Apply the configuration (the converter's keys without prefix, as strings). Raises ConfigErrors."""

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode a header's value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define from_connect_header")

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """Decode a header's value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define to_connect_header")

    def close(self) -> None:
        """Release the resources that `configure` acquired."""


def to_runs(items: Sequence[SchemaAndValue]) -> list[Run]:
    """Group consecutive values with equal schemas, and convert structs to rows."""
    runs: list[tuple[Schema | None, list[Any]]] = []
    for schema, value in items:
        if runs and (runs[-1][0] is schema or runs[-1][0] == schema):
            runs[-1][1].append(value)
        else:
            runs.append((schema, [value]))
    return [Run(schema, to_rows(schema, values)) for schema, values in runs]
