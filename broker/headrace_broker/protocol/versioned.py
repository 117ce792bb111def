"""Encodes and decodes the coordinators' records, which are stored in `__consumer_offsets` and `__transaction_state`.

An encoded key starts with the key type, and an encoded value starts with the value's version. Both are
int16 numbers. A record without a value is a tombstone for the record's key.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeVar

from headrace_broker.protocol.codec import DecodeError, decode, encode_joined
from headrace_broker.protocol.notation import Buffer, Message

_PREFIX = struct.Struct(">h")


class RecordKey(Message):
    """Base class of the keys of coordinator records. `__api_key__` is the key type."""

    __slots__ = ()


class RecordValue(Message):
    """Base class of the values of coordinator records. `__api_key__` is the type of the record's key."""

    __slots__ = ()


ValueT = TypeVar("ValueT", bound=RecordValue)


def encode_key(key: RecordKey) -> bytes:
    """Return the encoded key. Raises EncodeError."""
    return _PREFIX.pack(key.__api_key__) + encode_joined(key, 0)


def key_type(key: Buffer) -> int:
    """Return the type of the encoded key. Raises DecodeError."""
    return _prefix(key, "record key")


def decode_key(classes: Mapping[int, type[RecordKey]], key: Buffer) -> RecordKey:
    """Return the decoded key, an instance of the class that `classes` contains for the key's type.

    Raises DecodeError if the key is malformed or `classes` does not contain its type.
    """
    number = key_type(key)
    if number not in classes:
        raise DecodeError("record key", number, "", 0, f"unknown record key type {number}")
    return decode(classes[number], 0, key, _PREFIX.size)


def encode_value(value: RecordValue, version: int) -> bytes:
    """Return the value encoded in `version`. Raises EncodeError."""
    return _PREFIX.pack(version) + encode_joined(value, version)


def decode_value(message: type[ValueT], value: Buffer) -> ValueT:
    """Return the decoded value, an instance of `message`.

    Raises DecodeError if the value is malformed or its version is unknown.
    """
    return decode(message, _prefix(value, message.__name__), value, _PREFIX.size)


def _prefix(buffer: Buffer, message: str) -> int:
    if len(buffer) < _PREFIX.size:
        raise DecodeError(message, 0, "", 0, f"expected at least {_PREFIX.size} bytes, only {len(buffer)} available")
    return int(_PREFIX.unpack_from(buffer)[0])
