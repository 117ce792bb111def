"""StringConverter: text as bytes, anything else by Java's ``toString``."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.api.config import Config, Importance, Width, key
from headrace.api.converter import Converter, HeaderConverter, Run, SchemaAndValue
from headrace.api.errors import BatchError, ConfigError, ConfigErrors, DataError
from headrace.data.columns import Compact, Lines
from headrace.data.schema import OPTIONAL_STRING_SCHEMA, Schema
from headrace.data.text import formatter


class StringConverterConfig(Config):
    """The keys of StringConverter."""

    converter_type: str = key(
        "converter.type",
        doc="How this converter will be used.",
        one_of=("key", "value", "header"),
        importance=Importance.LOW,
    )
    encoding: str = key(
        "converter.encoding",
        default="UTF-8",
        doc="The character set of the bytes, by a name that Python or Java knows.",
        importance=Importance.HIGH,
        width=Width.MEDIUM,
        display_name="Encoding",
    )


class StringConverter(Converter, HeaderConverter):
    """Keys, values or headers as text. What cannot be decoded becomes U+FFFD, as in Java."""

    config_model = StringConverterConfig
    java_names = ("org.apache.kafka.connect.storage.StringConverter",)

    _encoding = "utf-8"

    def configure(self, props: Mapping[str, str], is_key: bool = False) -> None:
        """Take the settings. Raises ConfigErrors."""
        config = StringConverterConfig.parse({**props, "converter.type": "key" if is_key else "value"})
        try:
            self._encoding = codecs.lookup(config.encoding).name
        except LookupError:
            error = ConfigError("converter.encoding", config.encoding, "No such character set")
            raise ConfigErrors([error]) from None

    def from_connect(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """The text of one value as bytes."""
        return None if value is None else self._encode(formatter(schema)(value))

    def _encode(self, text: str) -> bytes:
        return text.encode(self._encoding, "replace")

    def from_connect_batch(self, topic: str, schema: Schema | None, values: list[Any]) -> list[bytes | None]:
        """The text of each value as bytes."""
        try:
            if self._encoding == "utf-8" and set(map(type, values)) == {str}:
                return list(map(str.encode, values))
        except UnicodeEncodeError:
            pass  # unpaired surrogates become question marks below, as in Java
        text, encode = formatter(schema), self._encode
        encoded: list[bytes | None] = []
        errors: dict[int, Exception] = {}
        for index, value in enumerate(values):
            try:
                encoded.append(None if value is None else encode(text(value)))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                errors[index] = DataError(f"Failed to serialize to a string: {error}")
        if errors:
            raise BatchError(errors)
        return encoded

    def from_connect_compact(self, topic: str, schema: Schema | None, values: Compact) -> list[bytes | None]:
        """The text of each value as bytes."""
        if isinstance(values, Lines) and self._encoding == "utf-8":
            return values.text.encode("utf-8", "replace").split(b"\n")  # type: ignore[return-value]  # no nulls
        return self.from_connect_batch(topic, schema, values.items())

    def to_connect(self, topic: str, data: bytes | None) -> SchemaAndValue:
        """The text in the bytes."""
        return SchemaAndValue(OPTIONAL_STRING_SCHEMA, None if data is None else data.decode(self._encoding, "replace"))

    def to_connect_batch(self, topic: str, data: Sequence[bytes | None]) -> list[Run]:
        """The text in each value's bytes."""
        encoding = self._encoding
        lines = _lines(data) if encoding == "utf-8" else None
        if lines is not None:
            return [Run(OPTIONAL_STRING_SCHEMA, lines)]
        values = [None if item is None else item.decode(encoding, "replace") for item in data]
        return [Run(OPTIONAL_STRING_SCHEMA, values)] if values else []

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """The text of a header's value."""
        return self.from_connect(topic, schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """The text in a header's bytes."""
        return self.to_connect(topic, data)


def _lines(data: Sequence[bytes | None]) -> Lines | None:
    """The texts as one; None when one of them is null or has a line feed, or there is none.

    A line feed ends what cannot be decoded as the end of the data does.
    """
    try:
        joined = b"\n".join(data)  # type: ignore[arg-type]
    except TypeError:
        return None
    return Lines(joined.decode("utf-8", "replace"), len(data)) if joined.count(b"\n") == len(data) - 1 else None
