"""SimpleHeaderConverter: writes header values as readable text, and infers their type when reading."""

from __future__ import annotations

from typing import Any

from headrace.api.converter import NO_VALUE, HeaderConverter, SchemaAndValue
from headrace.data.schema import BYTES_SCHEMA, Schema
from headrace.data.value_text import convert_to_string, parse_string


class SimpleHeaderConverter(HeaderConverter):
    """Connect's default header converter."""

    java_names = ("org.apache.kafka.connect.storage.SimpleHeaderConverter",)

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Encode the value as UTF-8 text."""
        return None if value is None else convert_to_string(value, schema).encode("utf-8", "replace")

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """Infer the value from the text; bytes that are not valid UTF-8 stay bytes."""
        if data is None:
            return NO_VALUE
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return SchemaAndValue(BYTES_SCHEMA, data)
        return SchemaAndValue(*parse_string(text))
