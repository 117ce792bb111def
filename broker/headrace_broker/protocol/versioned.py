"""Records of coordinators, as bytes: a key begins with its type, a value with its version, both int16.

`__consumer_offsets` and `__transaction_state` are made of them; a record without a value deletes its key.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TypeVar

from headrace_broker.protocol.codec import DecodeError, decode, encode_joined
from headrace_broker.protocol.notation import Buffer, Message

_PREFIX = struct.Struct(">h")


class RecordKey(Message):
    """The key of a coordinator's record; its API key is its type."""

    __slots__ = ()


class RecordValue(Message):
    """The value of a coordinator's record; its API key is the type of its key."""

    __slots__ = ()


ValueT = TypeVar("ValueT", bound=RecordValue)


def encode_key(key: RecordKey) -> bytes:
    """Return the key as bytes. Raises EncodeError."""
    return _PREFIX.pack(key.__api_key__) + encode_joined(key, 0)


def key_type(key: Buffer) -> int:
    """Return the type that a key's bytes begin with. Raises DecodeError."""
    return _prefix(key, "record key")


def decode_key(classes: Mapping[int, type[RecordKey]], key: Buffer) -> RecordKey:
    """Return the key, of the class that `classes` has for its type. Raises DecodeError, also for an unknown type."""
    number = key_type(key)
    if number not in classes:
        raise DecodeError("record key", number, "", 0, f"unknown type {number}")
    return decode(classes[number], 0, key, _PREFIX.size)


def encode_value(value: RecordValue, version: int) -> bytes:
    """Return the value as bytes, in that version. Raises EncodeError."""
    return _PREFIX.pack(version) + encode_joined(value, version)


def decode_value(message: type[ValueT], value: Buffer) -> ValueT:
    """Return the value of that class. Raises DecodeError, also for a version that is not known."""
    return decode(message, _prefix(value, message.__name__), value, _PREFIX.size)


def _prefix(buffer: Buffer, what: str) -> int:
    if len(buffer) < _PREFIX.size:
        raise DecodeError(what, 0, "", 0, f"{len(buffer)} bytes are too few")
    return int(_PREFIX.unpack_from(buffer)[0])
