"""Converters of primitive values: raw bytes, big-endian numbers, and booleans as one byte."""

from __future__ import annotations

import struct as binary
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from headrace.api.config import Config, Importance, key
from headrace.api.converter import Converter, HeaderConverter, SchemaAndValue, SchemaRun
from headrace.api.errors import DataError, RecordErrors
from headrace.data.java import Float32
from headrace.data.logical import is_logical
from headrace.data.schema import (
    OPTIONAL_BOOLEAN_SCHEMA,
    OPTIONAL_BYTES_SCHEMA,
    OPTIONAL_FLOAT32_SCHEMA,
    OPTIONAL_FLOAT64_SCHEMA,
    OPTIONAL_INT16_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_INT64_SCHEMA,
    Schema,
    Type,
)


class PrimitiveConverterConfig(Config):
    """The configuration key that all primitive converters share."""

    converter_type: str = key(
        "converter.type",
        doc="How this converter will be used.",
        one_of=("key", "value", "header"),
        importance=Importance.LOW,
    )


class _PrimitiveConverter(Converter[PrimitiveConverterConfig], HeaderConverter[PrimitiveConverterConfig]):
    """The base class of the converters of primitive values; null is converted to null.

    A subclass defines `_encode` and `_decode` for values other than null. Both methods raise DataError for an invalid
    value. `_encoder` may return another function than `_encode`, which depends on the schema.
    """

    abstract = True
    schema: ClassVar[Schema]

    def _encoder(self, schema: Schema | None) -> Callable[[Any], bytes]:
        """Return the function that encodes values other than null. Raises DataError if even a null is invalid."""
        return self._encode

    def _encode(self, value: Any) -> bytes:
        raise NotImplementedError

    def _decode(self, data: bytes) -> Any:
        raise NotImplementedError

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode one value."""
        encode = self._encoder(schema)
        return None if value is None else encode(value)

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """Encode each value."""
        try:
            encode = self._encoder(schema)
        except DataError as error:
            raise RecordErrors(dict.fromkeys(range(len(values)), error)) from None
        return _convert_each(encode, values)

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """Decode one value."""
        return SchemaAndValue(self.schema, None if data is None else self._decode(data))

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Decode each value."""
        return [SchemaRun(self.schema, _convert_each(self._decode, data))] if data else []

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode a header's value."""
        return self.from_connect(topic, schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """Decode a header's value."""
        return self.to_connect(topic, data)


def _convert_each(convert: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    results = []
    errors: dict[int, Exception] = {}
    for index, item in enumerate(items):
        try:
            results.append(None if item is None else convert(item))
        except DataError as error:
            errors[index] = error
    if errors:
        raise RecordErrors(errors)
    return results


class ByteArrayConverter(_PrimitiveConverter):
    """Passes bytes through unchanged."""

    java_names = ("org.apache.kafka.connect.converters.ByteArrayConverter",)
    schema = OPTIONAL_BYTES_SCHEMA

    def _encoder(self, schema: Schema | None) -> Callable[[Any], bytes]:
        if schema is not None and schema.type is not Type.BYTES:
            raise DataError(f"Invalid schema type for ByteArrayConverter: {schema.type.name}")
        return self._encode

    def _encode(self, value: Any) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise DataError(f"ByteArrayConverter is not compatible with objects of type {type(value).__name__}")

    def _decode(self, data: bytes) -> Any:
        return data

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Return the bytes unchanged."""
        return [SchemaRun(self.schema, list(data))] if data else []


class BooleanConverter(_PrimitiveConverter):
    """Converts booleans to and from one byte, 0 or 1."""

    java_names = ("org.apache.kafka.connect.converters.BooleanConverter",)
    schema = OPTIONAL_BOOLEAN_SCHEMA

    def _encoder(self, schema: Schema | None) -> Callable[[Any], bytes]:
        if schema is not None and schema.type is not Type.BOOLEAN:
            raise DataError(f"Invalid schema type for BooleanConverter: {schema.type.name}")
        return self._encode

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, bool):
            raise DataError(f"BooleanConverter is not compatible with objects of type {type(value).__name__}")
        return b"\x01" if value else b"\x00"

    def _decode(self, data: bytes) -> Any:
        if data not in (b"\x00", b"\x01"):
            raise DataError("Failed to deserialize boolean: the data must be a single byte, 0x00 or 0x01")
        return data == b"\x01"


class _NumberConverter(_PrimitiveConverter):
    """Converts a number to and from big-endian bytes."""

    abstract = True
    layout: ClassVar[binary.Struct]
    python_types: ClassVar[tuple[type, ...]]
    """The types of values without a schema: Python has a single type of integers."""

    def _encoder(self, schema: Schema | None) -> Callable[[Any], bytes]:
        if schema is None:
            return self._encode_without_schema
        if schema.type is self.schema.type and not is_logical(schema):
            return self._encode
        return lambda value: self._reject(schema.type.name)

    def _encode_without_schema(self, value: Any) -> bytes:
        return self._encode(value) if type(value) in self.python_types else self._reject(type(value).__name__)

    def _reject(self, found: str) -> bytes:
        raise DataError(f"Failed to serialize to {self._name()} (was {found})")

    def _encode(self, value: Any) -> bytes:
        try:
            return self.layout.pack(value)
        except (binary.error, OverflowError) as error:
            raise DataError(f"Failed to serialize to {self._name()}: {value} is out of range") from error

    def _decode(self, data: bytes) -> Any:
        if len(data) != self.layout.size:
            raise DataError(
                f"Failed to deserialize {self._name()}: "
                f"Size of data received by {type(self).__name__} is not {self.layout.size}, but {len(data)}"
            )
        return self.layout.unpack(data)[0]

    def _name(self) -> str:
        return type(self).__name__.removesuffix("Converter").lower()


class ShortConverter(_NumberConverter):
    """Converts INT16 to and from two bytes."""

    java_names = ("org.apache.kafka.connect.converters.ShortConverter",)
    schema = OPTIONAL_INT16_SCHEMA
    layout = binary.Struct(">h")
    python_types = (int,)


class IntegerConverter(_NumberConverter):
    """Converts INT32 to and from four bytes."""

    java_names = ("org.apache.kafka.connect.converters.IntegerConverter",)
    schema = OPTIONAL_INT32_SCHEMA
    layout = binary.Struct(">i")
    python_types = (int,)


class LongConverter(_NumberConverter):
    """Converts INT64 to and from eight bytes."""

    java_names = ("org.apache.kafka.connect.converters.LongConverter",)
    schema = OPTIONAL_INT64_SCHEMA
    layout = binary.Struct(">q")
    python_types = (int,)


class FloatConverter(_NumberConverter):
    """Converts FLOAT32 to and from four bytes."""

    java_names = ("org.apache.kafka.connect.converters.FloatConverter",)
    schema = OPTIONAL_FLOAT32_SCHEMA
    layout = binary.Struct(">f")
    python_types = (Float32,)


class DoubleConverter(_NumberConverter):
    """Converts FLOAT64 to and from eight bytes."""

    java_names = ("org.apache.kafka.connect.converters.DoubleConverter",)
    schema = OPTIONAL_FLOAT64_SCHEMA
    layout = binary.Struct(">d")
    python_types = (float,)
