"""A record's value -> the payload text that Spark parses, and which schema it has. Pure; runs inside Spark's workers.

JsonConverter repeats the whole schema in every record. Its records of one topic start with the same bytes, so the
schema is looked at once per topic: a value that starts with the known bytes is its payload between them and the
closing brace. Only a value that starts otherwise is scanned (msgspec cuts the two members out without parsing them).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import msgspec

NO_SCHEMA = 0
"""The schema id of a record without a schema: a null value, a string, plain JSON."""


@dataclass(frozen=True, slots=True)
class Payload:
    """What Spark gets of one record; `schema` is the schema's JSON text when this reader meets it the first time."""

    text: bytes | None = None
    schema_id: int = NO_SCHEMA
    schema: str | None = None
    error: str | None = None


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    schema: msgspec.Raw
    payload: msgspec.Raw


_decoder = msgspec.json.Decoder(_Envelope)
_NULL = Payload()


class Payloads:
    """What Spark gets of the records of one topic, in their order: columns that grow run by run."""

    __slots__ = ("errors", "schema_ids", "schemas", "size_bytes", "texts")

    def __init__(self) -> None:
        self.texts: list[bytes | None] = []
        self.schema_ids: list[int] = []
        self.schemas: list[str | None] = []
        self.errors: list[str | None] = []
        self.size_bytes = 0

    def append(self, payload: Payload) -> None:
        """Add one record's."""
        self.texts.append(payload.text)
        self.schema_ids.append(payload.schema_id)
        self.schemas.append(payload.schema)
        self.errors.append(payload.error)
        self.size_bytes += len(payload.text or b"")

    def extend(self, texts: list[bytes | None], schema_id: int) -> None:
        """Add records that have nothing but a text, all of one schema."""
        count = len(texts)
        self.texts += texts
        self.schema_ids += [schema_id] * count
        nothing: list[None] = [None] * count
        self.schemas += nothing
        self.errors += nothing
        self.size_bytes += sum(map(len, filter(None, texts)))


class PayloadReader(Protocol):
    """Reads the values of one topic."""

    def read(self, value: bytes | None) -> Payload:
        """Cut one value; one that cannot be cut gives a Payload with `error`."""

    def read_run(self, values: list[bytes | None], payloads: Payloads) -> None:
        """Cut many and add them to `payloads`."""


class EnvelopeReader:
    """Reads the values of one topic written by JsonConverter with `schemas.enable=true`."""

    __slots__ = ("_known", "_prefix", "_schema_id")

    def __init__(self) -> None:
        self._prefix = b""
        self._schema_id = NO_SCHEMA
        self._known: set[int] = set()

    def read(self, value: bytes | None) -> Payload:
        """Cut a value into payload and schema id."""
        if value is None:
            return _NULL
        prefix = self._prefix
        if prefix and value.startswith(prefix) and value.endswith(b"}"):
            text = value[len(prefix) : -1]
            return Payload(None if text == b"null" else text, self._schema_id)
        return self._scan(value)

    def read_run(self, values: list[bytes | None], payloads: Payloads) -> None:
        """Cut many values; a run in which all begin alike costs two comparisons and a slice for each."""
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
            return Payload(error=f"not a JSON envelope of schema and payload: {error}")
        schema, payload = bytes(envelope.schema).strip(), bytes(envelope.payload).strip()
        text = None if payload == b"null" else payload
        if schema == b"null":
            return _NULL if text is None else Payload(error="the envelope's schema is null, its payload is not")
        schema_id = schema_id_of(schema)
        first = schema_id not in self._known
        self._known.add(schema_id)
        self._prefix, self._schema_id = _prefix_of(value, payload), schema_id
        return Payload(text, schema_id, schema.decode() if first else None)


class PlainJsonReader:
    """Takes whole values as payloads: JsonConverter with `schemas.enable=false`."""

    def read(self, value: bytes | None) -> Payload:
        """Take one value."""
        return _NULL if value is None or value.strip() == b"null" else Payload(value)

    def read_run(self, values: list[bytes | None], payloads: Payloads) -> None:
        """Take many."""
        payloads.extend([self.read(value).text for value in values], NO_SCHEMA)


class StringReader:
    """Takes values as text, malformed bytes replaced as Java's decoder does: StringConverter."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding

    def read(self, value: bytes | None) -> Payload:
        """Take one value."""
        return _NULL if value is None else Payload(value.decode(self._encoding, errors="replace").encode())

    def read_run(self, values: list[bytes | None], payloads: Payloads) -> None:
        """Take many."""
        payloads.extend([self.read(value).text for value in values], NO_SCHEMA)


def schema_id_of(schema: bytes) -> int:
    """Return a signed 64-bit id of a schema's JSON text, never NO_SCHEMA."""
    digest = hashlib.blake2b(schema, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True) or 1


def _prefix_of(value: bytes, payload: bytes) -> bytes:
    """Return the bytes before the payload when nothing but the closing brace follows it, else nothing."""
    prefix = value[: -len(payload) - 1]
    whole = value.endswith(payload + b"}") and prefix.startswith(b'{"schema":') and prefix.endswith(b'"payload":')
    return prefix if whole else b""
