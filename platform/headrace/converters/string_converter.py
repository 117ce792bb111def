"""StringConverter: converts strings to and from bytes, and other values to text as Java's ``toString`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.api.config import Config, Importance, Width, key
from headrace.api.converter import Converter, HeaderConverter, SchemaAndValue, SchemaRun
from headrace.api.errors import ConfigError, ConfigErrors, DataError, RecordErrors
from headrace.converters.charsets import MALFORMED, find_charset
from headrace.data.columns import ColumnarValues, Lines
from headrace.data.schema import OPTIONAL_STRING_SCHEMA, Schema
from headrace.data.text import formatter


class StringConverterConfig(Config):
    """The configuration of StringConverter."""

    converter_type: str = key(
        "converter.type",
        doc="How this converter will be used.",
        one_of=("key", "value", "header"),
        importance=Importance.LOW,
    )
    encoding: str = key(
        "converter.encoding",
        default="UTF-8",
        doc="The character set of the bytes; names of Python and of Java are accepted.",
        importance=Importance.HIGH,
        width=Width.MEDIUM,
        display_name="Encoding",
    )


class StringConverter(Converter[StringConverterConfig], HeaderConverter[StringConverterConfig]):
    """Converts keys, values or headers to and from text. Invalid bytes are decoded as U+FFFD, as in Java."""

    java_names = ("org.apache.kafka.connect.storage.StringConverter",)

    _charset = find_charset("UTF-8")

    def configure(self, config: StringConverterConfig) -> None:
        """Apply the configuration. Raises ConfigErrors."""
        try:
            self._charset = find_charset(config.encoding)
        except LookupError:
            error = ConfigError("converter.encoding", config.encoding, "Unknown character set")
            raise ConfigErrors([error]) from None

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode one value as text."""
        return None if value is None else self._charset.encode(formatter(schema)(value))

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """Encode each value as text."""
        try:
            if self._charset.codec == "utf-8" and set(map(type, values)) == {str}:
                return list(map(str.encode, values))
        except UnicodeEncodeError:
            pass  # unpaired surrogates become question marks below, as in Java
        text, encode = formatter(schema), self._charset.encode
        encoded: list[bytes | None] = []
        errors: dict[int, Exception] = {}
        for index, value in enumerate(values):
            try:
                encoded.append(None if value is None else encode(text(value)))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                errors[index] = DataError(f"Failed to serialize to a string: {error}")
        if errors:
            raise RecordErrors(errors)
        return encoded

    def from_connect_columnar(self, topic: str, schema: Schema | None, values: ColumnarValues) -> list[bytes | None]:
        """Encode each value as text."""
        if isinstance(values, Lines) and self._charset.codec == "utf-8":
            try:
                return values.encoded()
            except UnicodeEncodeError:
                pass  # `from_connect_batch` replaces unpaired surrogates
        return self.from_connect_batch(topic, schema, values.items())

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """Decode one string."""
        return SchemaAndValue(OPTIONAL_STRING_SCHEMA, None if data is None else self._charset.decode(data))

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[SchemaRun]:
        """Decode each string."""
        lines = _as_lines(data) if self._charset.codec == "utf-8" else None
        if lines is not None:
            return [SchemaRun(OPTIONAL_STRING_SCHEMA, lines)]
        values = [None if item is None else self._charset.decode(item) for item in data]
        return [SchemaRun(OPTIONAL_STRING_SCHEMA, values)] if values else []

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode a header's value as text."""
        return self.from_connect(topic, schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """Decode a header's string."""
        return self.to_connect(topic, data)


def _as_lines(data: Sequence[bytes | None]) -> Lines | None:
    """Decode the items in one call as `Lines`.

    Return None if `data` is empty, or if an item is null or contains a line feed. The items are joined with line feeds.
    A line feed ends an incomplete UTF-8 sequence, as the end of an item does, so the result is the same as if each
    item were decoded separately.
    """
    try:
        if not data or b"\n" in b"".join(data):  # type: ignore[arg-type]  # faster than counting the line feeds
            return None
    except TypeError:
        return None
    return Lines(b"\n".join(data).decode("utf-8", MALFORMED), len(data))  # type: ignore[arg-type]
