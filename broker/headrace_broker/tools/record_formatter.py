"""Formats records as lines, like Kafka's DefaultMessageFormatter. This module does no I/O.

    CreateTime:1700000000000  Partition:0  Offset:5  Delivery:…  Epoch:…  h1:v1,h2:v2  key  value

The enabled fields are written in this order, separated by key.separator. Each record ends with line.separator. If only
values are enabled, one call of `join` formats a whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_broker.records.columns import RecordColumns, RecordHeaders
from headrace_broker.tools.deserializers import Deserializer, deserializer

_FLAGS = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key", "value")


class RecordFormatter:
    """Formats records according to the formatter's properties."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Parse the formatter's properties. Raises ValueError for a deserializer that is not supported."""
        self._prints = {
            name: _is_true(properties.get(f"print.{name}", "true" if name == "value" else "false")) for name in _FLAGS
        }
        self._separator = properties.get("key.separator", "\t").encode()
        self._line_separator = properties.get("line.separator", "\n").encode()
        self._headers_separator = properties.get("headers.separator", ",").encode()
        self._null = properties.get("null.literal", "null").encode()
        self._key, self._value, self._header = (
            _deserializer(properties.get(f"{part}.deserializer")) for part in ("key", "value", "headers")
        )
        self._is_plain = sum(self._prints.values()) == 1 and self._prints["value"] and self._value is None

    def format(self, partition: int, columns: RecordColumns) -> bytes:
        """Return the output for records of one partition. Raises ValueError for bytes that cannot be deserialized."""
        if not len(columns):
            return b""
        if self._is_plain:
            return self._joined(self._texts(columns.values, None))
        parts = self._parts(partition, columns)
        return self._joined([self._separator.join(row) for row in zip(*parts, strict=True)]) if parts else b""

    def _joined(self, lines: list[bytes]) -> bytes:
        lines.append(b"")  # the last line also ends with the separator
        return self._line_separator.join(lines)

    def _parts(self, partition: int, columns: RecordColumns) -> list[list[bytes]]:
        prints = self._prints
        count = len(columns)
        parts = []
        if prints["timestamp"]:
            label = "LogAppendTime" if columns.timestamp_type else "CreateTime"
            parts.append([f"{label}:{timestamp}".encode() for timestamp in columns.timestamp_list()])
        if prints["partition"]:
            parts.append([f"Partition:{partition}".encode()] * count)
        if prints["offset"]:
            parts.append([f"Offset:{offset}".encode() for offset in columns.offsets or [-1] * count])
        # Print NOT_PRESENT: only share groups have a delivery count, and Kafka's console consumer never has an epoch.
        absent = [name for name in ("delivery", "epoch") if prints[name]]
        parts += [[f"{name.capitalize()}:NOT_PRESENT".encode()] * count for name in absent]
        if prints["headers"]:
            parts.append([self._headers(item) for item in columns.headers or [[]] * count])
        if prints["key"]:
            parts.append(self._texts(columns.keys or [None] * count, self._key))
        if prints["value"]:
            parts.append(self._texts(columns.values, self._value))
        return parts

    def _texts(self, column: Sequence[bytes | None], convert: Deserializer | None) -> list[bytes]:
        null = self._null
        if convert is None:
            return [null if data is None else data for data in column]
        return [null if data is None else convert(data) for data in column]

    def _headers(self, headers: RecordHeaders) -> bytes:
        if not headers:
            return b"NO_HEADERS"
        values = self._texts([value for _, value in headers], self._header)
        pairs = (b"%b:%b" % (name.encode(), value) for (name, _), value in zip(headers, values, strict=True))
        return self._headers_separator.join(pairs)


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _deserializer(name: str | None) -> Deserializer | None:
    return deserializer(name) if name else None
