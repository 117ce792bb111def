"""Ids of topics, clusters and directories: 16 bytes, and the text that Kafka writes them as. Pure."""

from __future__ import annotations

import base64


def encode_uuid(value: bytes) -> str:
    """Return 16 bytes as Kafka writes ids: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """Return the 16 bytes of such an id. Raises ValueError."""
    value = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(value) != 16:
        raise ValueError(f"'{text}' is not an id of 16 bytes")
    return value
