"""Encodes and decodes the coordinators' records: a key starts with its type, a value with its version, both int16.

`__consumer_offsets` and `__transaction_state` consist of such records; a record without a value deletes its key.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeVar

from headrace_broker.protocol.codec import DecodeError, decode, encode_joined
from headrace_broker.protocol.notation import Buffer, Message

_PREFIX = struct.Struct(">h")


class RecordKey(Message):
    """The key of a coordinator's record; its `__api_key__` is its type."""

    __slots__ = ()


class RecordValue(Message):
    """The value of a coordinator's record; its `__api_key__` is the type of its key."""

    __slots__ = ()


ValueT = TypeVar("ValueT", bound=RecordValue)


def encode_key(key: RecordKey) -> bytes:
    """Return the encoded key. Raises EncodeError."""
    return _PREFIX.pack(key.__api_key__) + encode_joined(key, 0)


def key_type(key: Buffer) -> int:
    """Return the type of an encoded key. Raises DecodeError."""
    return _prefix(key, "record key")


def decode_key(classes: Mapping[int, type[RecordKey]], key: Buffer) -> RecordKey:
    """Decode a key as the class in `classes` of the key's type. Raises DecodeError, also for an unknown type."""
    number = key_type(key)
    if number not in classes:
        raise DecodeError("record key", number, "", 0, f"unknown type {number}")
    return decode(classes[number], 0, key, _PREFIX.size)


def encode_value(value: RecordValue, version: int) -> bytes:
    """Return the value encoded in this version. Raises EncodeError."""
    return _PREFIX.pack(version) + encode_joined(value, version)


def decode_value(message: type[ValueT], value: Buffer) -> ValueT:
    """Return the decoded value of this class. Raises DecodeError, also for an unknown version."""
    return decode(message, _prefix(value, message.__name__), value, _PREFIX.size)


def _prefix(buffer: Buffer, what: str) -> int:
    if len(buffer) < _PREFIX.size:
        raise DecodeError(what, 0, "", 0, f"expected at least {_PREFIX.size} bytes, only {len(buffer)} available")
    return int(_PREFIX.unpack_from(buffer)[0])
