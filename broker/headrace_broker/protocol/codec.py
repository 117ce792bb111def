"""Encodes and decodes messages with functions that are compiled at first use for each class and version.

Malformed bytes cause a `DecodeError`, and invalid values cause an `EncodeError`. No other exception is raised. Both
errors name the message, the version and the field. A decoder ignores bytes after the message. To detect such bytes, a
caller compares the end position that the decoder returns with the size of the frame.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.notation import VERSION_MAX, Buffer, Message
from headrace_broker.protocol.primitives import MalformedError
from headrace_broker.protocol.source import Source

MessageT = TypeVar("MessageT", bound=Message)


class DecodeError(ProtocolError):
    """The bytes are not a valid message of the expected class and version."""

    def __init__(self, message: str, version: int, field: str, position: int, reason: str) -> None:
        self.message, self.version, self.field, self.position, self.reason = message, version, field, position, reason
        at = f", field {field}" if field else ""
        super().__init__(f"cannot decode {message} version {version}{at}, at byte {position}: {reason}")


class EncodeError(ValueError):
    """A message has a value that the requested version cannot encode, or the version is not supported."""

    def __init__(self, message: str, version: int, field: str, reason: str) -> None:
        self.message, self.version, self.field, self.reason = message, version, field, reason
        at = f", field {field}" if field else ""
        super().__init__(f"cannot encode {message} version {version}{at}: {reason}")


def encode(message: Message, version: int) -> list[Buffer]:
    """Return the encoded message as buffers for `writelines`.

    Small fields are joined into one buffer. Large bytes fields and record batches are passed by reference.
    """
    return encoder(type(message), version)(message)


def encode_joined(message: Message, version: int) -> bytes:
    """Return the encoded message as one bytes object. Raises EncodeError."""
    return b"".join(encoder(type(message), version)(message))


def decode(message: type[MessageT], version: int, buffer: Buffer, offset: int = 0) -> MessageT:
    """Decode the message of class `message` that begins at `offset` in `buffer`. Raises DecodeError."""
    return decoder(message, version)(buffer, offset)[0]


def encoder(message: type[Message], version: int) -> Callable[[Any], list[Buffer]]:
    """Return the compiled function that encodes a message of this class into buffers.

    Raises EncodeError if the version is not supported.
    """
    compiled = _encoders.get((message, version))
    if compiled is None:
        compiled = _encoders[message, version] = _compile_encoder(message, version)
    return compiled


def decoder(message: type[MessageT], version: int) -> Callable[[Buffer, int], tuple[MessageT, int]]:
    """Return the compiled function that maps (buffer, position) to (message, position after the message).

    Raises DecodeError if the version is not supported.
    """
    compiled = _decoders.get((message, version))
    if compiled is None:
        compiled = _decoders[message, version] = _compile_decoder(message, version)
    return compiled


_encoders: dict[tuple[type[Message], int], Callable[[Any], list[Buffer]]] = {}
_decoders: dict[tuple[type[Message], int], Callable[[Buffer, int], tuple[Any, int]]] = {}


def _compile_encoder(message: type[Message], version: int) -> Callable[[Any], list[Buffer]]:
    if not _has_version(message, version):
        raise EncodeError(message.__name__, version, "", f"the supported versions are {_versions(message)}")
    from headrace_broker.protocol.encoding import EncoderSource  # imported here because some processes only decode

    source = EncoderSource(message, version).build()
    source.names["ERRORS"] = (struct.error, AttributeError, TypeError, ValueError, OverflowError)
    source.names["failure"] = partial(_encode_error, source, message.__name__, version)
    return source.compile("encode")


def _compile_decoder(message: type[Message], version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    if not _has_version(message, version):
        raise DecodeError(message.__name__, version, "", 0, f"the supported versions are {_versions(message)}")
    from headrace_broker.protocol.decoding import DecoderSource

    source = DecoderSource(message, version).build()
    source.names["ERRORS"] = (struct.error, IndexError, ValueError, MalformedError)
    source.names["failure"] = partial(_decode_error, source, message.__name__, version)
    return source.compile("decode")


def _has_version(message: type[Message], version: int) -> bool:
    return message.__versions__[0] <= version <= message.__versions__[1]


def _versions(message: type[Message]) -> str:
    first, last = message.__versions__
    return f"{first}+" if last == VERSION_MAX else f"{first} to {last}"


def _encode_error(source: Source, message: str, version: int, error: Exception) -> EncodeError:
    return EncodeError(message, version, source.where(error.__traceback__), str(error))


def _decode_error(source: Source, message: str, version: int, error: Exception, position: int) -> DecodeError:
    reason = "the message ends here" if isinstance(error, (struct.error, IndexError)) else str(error)
    return DecodeError(message, version, source.where(error.__traceback__), position, reason)
