"""SimpleHeaderConverter: header values as readable text, whose type is guessed when read back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.converter import NO_VALUE, HeaderConverter, SchemaAndValue
from headrace.data.schema import BYTES_SCHEMA, Schema
from headrace.data.value_text import convert_to_string, parse_string


class SimpleHeaderConverter(HeaderConverter):
    """The default header converter of Connect."""

    java_names = ("org.apache.kafka.connect.storage.SimpleHeaderConverter",)

    def configure(self, props: Mapping[str, str]) -> None:
        """Nothing to set."""

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """The text of the value in UTF-8."""
        return None if value is None else convert_to_string(value).encode("utf-8", "replace")

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """The value that the text looks like; bytes that are no UTF-8 stay bytes."""
        if data is None:
            return NO_VALUE
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return SchemaAndValue(BYTES_SCHEMA, data)
        return SchemaAndValue(*parse_string(text))
