"""Converts the UUIDs of topics, clusters and directories between 16 bytes and Kafka's string format."""

from __future__ import annotations

import base64


def encode_uuid(value: bytes) -> str:
    """Return a 16-byte UUID as a string: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """Return the 16 bytes of a UUID string. Raises ValueError if `text` is not a UUID string."""
    value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(value) != 16:
        raise ValueError(f"'{text}' is not a UUID: expected 16 bytes in URL-safe base64")
    return value
