"""Splits a record's value into its schema and its payload, which Spark parses later.

JsonConverter writes the whole schema into every record, so most records of a topic start with the
same bytes. The reader remembers the bytes before the last value's payload. If the next value starts
with the same bytes, its payload is the remaining bytes without the closing brace. Otherwise msgspec
splits the value into schema and payload without parsing them. This module runs in Spark's Python
workers. This module does no I/O.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import msgspec

NO_SCHEMA = 0
"""The schema id of a record without a schema: a null value, a string, or JSON without an envelope."""


@dataclass(frozen=True, slots=True)
class Payload:
    """The payload of one record. `schema` contains the schema's JSON if this is the first record with the schema."""

    text: bytes | None = None
    schema_id: int = NO_SCHEMA
    schema: str | None = None
    error: str | None = None


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    schema: msgspec.Raw
    payload: msgspec.Raw


_decoder = msgspec.json.Decoder(_Envelope)
_NULL = Payload()


class PayloadColumns:
    """The payloads of a topic's records in offset order, as one list per column."""

    __slots__ = ("errors", "schema_ids", "schemas", "size_bytes", "texts")

    def __init__(self) -> None:
        self.texts: list[bytes | None] = []
        self.schema_ids: list[int] = []
        self.schemas: list[str | None] = []
        self.errors: list[str | None] = []
        self.size_bytes = 0

    def append(self, payload: Payload) -> None:
        """Add the payload of one record."""
        self.texts.append(payload.text)
        self.schema_ids.append(payload.schema_id)
        self.schemas.append(payload.schema)
        self.errors.append(payload.error)
        self.size_bytes += len(payload.text or b"")

    def extend(self, texts: list[bytes | None], schema_id: int) -> None:
        """Add payloads that have the same known schema and no errors."""
        count = len(texts)
        self.texts += texts
        self.schema_ids += [schema_id] * count
        nulls: list[None] = [None] * count
        self.schemas += nulls
        self.errors += nulls
        self.size_bytes += sum(map(len, filter(None, texts)))


class PayloadReader(Protocol):
    """Extracts the payloads from the values of one topic."""

    def read(self, value: bytes | None) -> Payload:
        """Return the payload of a value. If the value is malformed, the returned Payload has an `error`."""

    def read_many(self, values: list[bytes | None], payloads: PayloadColumns) -> None:
        """Add the payloads of many values to `payloads`."""


class EnvelopeReader:
    """Reads values that JsonConverter has written with `schemas.enable=true`."""

    __slots__ = ("_known", "_prefix", "_schema_id")

    def __init__(self) -> None:
        self._prefix = b""
        self._schema_id = NO_SCHEMA
        self._known: set[int] = set()

    def read(self, value: bytes | None) -> Payload:
        """Split `value` into the payload and the schema id."""
        if value is None:
            return _NULL
        prefix = self._prefix
        if prefix and value.startswith(prefix) and value.endswith(b"}"):
            text = value[len(prefix) : -1]
            return Payload(None if text == b"null" else text, self._schema_id)
        return self._scan(value)

    def read_many(self, values: list[bytes | None], payloads: PayloadColumns) -> None:
        """Add the payloads of `values` to `payloads`.

        Most values begin with the same schema as the previous value. Splitting such a value takes only two comparisons
        and a slice.
        """
        prefix, start = self._prefix, len(self._prefix)
        if prefix and all(value and value.startswith(prefix) and value.endswith(b"}") for value in values):
            texts = [value[start:-1] for value in values if value]
            if b"null" not in texts:
                payloads.extend(list(texts), self._schema_id)
                return
        for value in values:
            payloads.append(self.read(value))

    def _scan(self, value: bytes) -> Payload:
        try:
            envelope = _decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Payload(error=f"the value is not a JSON object with schema and payload: {error}")
        schema, payload = bytes(envelope.schema).strip(), bytes(envelope.payload).strip()
        text = None if payload == b"null" else payload
        if schema == b"null":
            return _NULL if text is None else Payload(error="the schema is null, but the payload is not")
        schema_id = schema_id_of(schema)
        first = schema_id not in self._known
        self._known.add(schema_id)
        self._prefix, self._schema_id = _prefix_of(value, payload), schema_id
        return Payload(text, schema_id, schema.decode() if first else None)


class PlainJsonReader:
    """Reads values that JsonConverter has written with `schemas.enable=false`. The whole value is the payload."""

    def read(self, value: bytes | None) -> Payload:
        """Return the value as a payload."""
        return _NULL if value is None or value.strip() == b"null" else Payload(value)

    def read_many(self, values: list[bytes | None], payloads: PayloadColumns) -> None:
        """Add many values as payloads."""
        payloads.extend([self.read(value).text for value in values], NO_SCHEMA)


class StringReader:
    """Reads values that StringConverter has written. Like Java's decoder, it replaces malformed bytes."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding

    def read(self, value: bytes | None) -> Payload:
        """Return the string as a payload."""
        return _NULL if value is None else Payload(value.decode(self._encoding, errors="replace").encode())

    def read_many(self, values: list[bytes | None], payloads: PayloadColumns) -> None:
        """Add many strings as payloads."""
        payloads.extend([self.read(value).text for value in values], NO_SCHEMA)


def schema_id_of(schema: bytes) -> int:
    """Return a schema's id, a signed 64-bit hash of the schema's JSON text. The id is never NO_SCHEMA."""
    digest = hashlib.blake2b(schema, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True) or 1


def _prefix_of(value: bytes, payload: bytes) -> bytes:
    """Return the bytes before `payload` if only the closing brace follows `payload`, otherwise an empty string."""
    prefix = value[: -len(payload) - 1]
    is_last = value.endswith(payload + b"}") and prefix.startswith(b'{"schema":') and prefix.endswith(b'"payload":')
    return prefix if is_last else b""
