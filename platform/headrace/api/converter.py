"""Converters convert between Connect data and the bytes in topics.

Authors implement `from_connect` and `to_connect`; built-in converters also override the batch methods for speed. The
platform may call a converter again for the same value after an error. The batch methods represent structs as rows (see
`headrace.data.struct`). The other methods represent structs as `Struct`. Null bytes correspond to a null value without
a schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from headrace.api.errors import RecordErrors
from headrace.api.plugin import C, Plugin
from headrace.data.columns import ColumnarValues, Values
from headrace.data.schema import Schema
from headrace.data.struct import from_rows, to_rows


class SchemaAndValue(NamedTuple):
    """One value with its schema."""

    schema: Schema | None
    value: Any


class SchemaRun(NamedTuple):
    """Consecutive values that share a schema."""

    schema: Schema | None
    values: Values


class FramedValues(NamedTuple):
    """Byte strings with a common prefix (`before`) and suffix (`after`); `values` contains the bytes between them."""

    before: bytes
    values: list[bytes]
    after: bytes

    def whole(self) -> list[bytes]:
        """Return the complete byte strings, with prefix and suffix."""
        before, after = self.before, self.after
        return [before + value + after for value in self.values]


RawHeaders = list[tuple[str, bytes | None]]
"""The headers of one record as names and bytes, in order."""

NO_VALUE = SchemaAndValue(None, None)


class Converter(Plugin[C]):
    """The base class of key and value converters."""

    abstract = True

    uses_headers: ClassVar[bool] = False
    """If true, the platform calls the two methods with headers for each record, instead of the batch methods."""

    is_key: bool = False
    """Whether the converter converts keys. The platform sets it before it calls `configure`."""

    def configure(self, config: C) -> None:
        """Prepare the converter; the keys of `config` have no prefix. Raises ConfigErrors."""

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode one value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define from_connect")

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """Decode one value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define to_connect")

    def from_connect_with_headers(
        self, topic: str, headers: RawHeaders, schema: Schema | None, value: Any
    ) -> bytes | None:
        """Encode one value (KIP-440). `headers` are the record's headers as bytes, and the method may modify them."""
        return self.from_connect(topic, schema, value)

    def to_connect_with_headers(self, topic: str, headers: RawHeaders, data: bytes | None) -> SchemaAndValue:
        """Decode one value (KIP-440). `headers` are the record's headers as bytes."""
        return self.to_connect(topic, data)

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """Encode each value. Raises RecordErrors with an error for each value that cannot be converted."""
        encoded: list[bytes | None] = []
        errors: dict[int, Exception] = {}
        for index, value in enumerate(from_rows(schema, values)):
            try:
                encoded.append(self.from_connect(topic, schema, value))
            except Exception as error:  # noqa: BLE001 - whatever a plug-in raises concerns this record alone
                errors[index] = error
        if errors:
            raise RecordErrors(errors)
        return encoded

    def from_connect_framed(
        self, topic: str, schema: Schema | None, values: list[Any]
    ) -> list[bytes | None] | FramedValues:
        """Encode values with the same results as `from_connect_batch`. Override only for speed.

        The platform calls this method for the values of records. If all values share a prefix, the prefix is then not
        copied to each value.
        """
        return self.from_connect_batch(topic, schema, values)

    def from_connect_columnar(
        self, topic: str, schema: Schema | None, values: ColumnarValues
    ) -> list[bytes | None] | FramedValues:
        """Encode columnar values with the same results as `from_connect_batch`. Override only for speed."""
        return self.from_connect_batch(topic, schema, values.items())

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Decode each value; consecutive values with equal schemas form a run.

        Raises RecordErrors with an error for each value that cannot be converted.
        """
        decoded: list[SchemaAndValue] = []
        errors: dict[int, Exception] = {}
        for index, item in enumerate(data):
            try:
                decoded.append(SchemaAndValue(*self.to_connect(topic, item)))
            except Exception as error:  # noqa: BLE001 - whatever a plug-in raises concerns this record alone
                errors[index] = error
        if errors:
            raise RecordErrors(errors)
        return to_runs(decoded)

    def to_connect_texts(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Decode as `to_connect_batch` does. Schemaless JSON objects may stay text (see `headrace.data.json_texts`).

        Override only for speed. The platform calls this method for sink tasks whose `accepts_json_texts` is true.
        """
        return self.to_connect_batch(topic, data)

    def close(self) -> None:
        """Release the resources that `configure` acquired."""


class HeaderConverter(Plugin[C]):
    """The base class of header converters."""

    abstract = True

    def configure(self, config: C) -> None:
        """Prepare the converter; the keys of `config` have no prefix. Raises ConfigErrors."""

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode a header's value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define from_connect_header")

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """Decode a header's value. Raises DataError."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define to_connect_header")

    def close(self) -> None:
        """Release the resources that `configure` acquired."""


def to_runs(items: Sequence[SchemaAndValue]) -> list[SchemaRun]:
    """Group consecutive values with equal schemas, and convert structs to rows."""
    runs: list[tuple[Schema | None, list[Any]]] = []
    for schema, value in items:
        if runs and (runs[-1][0] is schema or runs[-1][0] == schema):
            runs[-1][1].append(value)
        else:
            runs.append((schema, [value]))
    return [SchemaRun(schema, to_rows(schema, values)) for schema, values in runs]
