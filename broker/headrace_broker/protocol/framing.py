"""Encodes frames and parses their headers. A frame is a four-byte size, a header and a message.

A request header consists of api_key (int16), api_version (int16), correlation_id (int32) and client_id (nullable
string). Flexible versions add tagged fields. The client id has a two-byte length in all versions. A response header is
the correlation id and, in flexible versions, tagged fields; only the header of ApiVersions never has tagged fields. The
parsers expect frames without the size prefix; the encoding functions return frames with the size prefix. This module
does no I/O.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import encoder
from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.notation import Buffer, Message
from headrace_broker.protocol.primitives import MalformedError, skip_tagged_section

SIZE_BYTES = 4

_REQUEST_HEADER = struct.Struct(">hhih")
_SIZED_REQUEST_HEADER = struct.Struct(">ihhih")
_SIZED_RESPONSE_HEADER = struct.Struct(">ii")
_SIZED_FLEXIBLE_RESPONSE_HEADER = struct.Struct(">iix")
_CORRELATION_ID = struct.Struct(">i")
_NEVER = 32768
_FLEXIBLE_FROM = {key: _NEVER if api.flexible_version is None else api.flexible_version for key, api in API.items()}


class RequestHeader(NamedTuple):
    """A request header. The request body starts at `body_offset` in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Return the request header in `frame`.

    Raises ProtocolError if the header is truncated or malformed, or if the API key is unknown.
    """
    try:
        api_key, api_version, correlation_id, size = _REQUEST_HEADER.unpack_from(frame)
        if api_key not in _FLEXIBLE_FROM:
            raise ProtocolError(f"Unknown API key {api_key} in a request header")
        end = 10
        client_id = None
        if size >= 0:
            end += size
            if end > len(frame):
                raise ProtocolError(f"Error reading client id of length {size}, only {len(frame) - 10} bytes available")
            client_id = str(frame[10:end], "utf-8")
        if api_version >= _FLEXIBLE_FROM[api_key]:
            end = skip_tagged_section(frame, end)
    except (struct.error, IndexError, UnicodeDecodeError, MalformedError) as error:
        raise ProtocolError(f"Error parsing request header in a frame of {len(frame)} bytes: {error}") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def encode_request(correlation_id: int, client_id: str | None, message: Message, version: int) -> list[Buffer]:
    """Return the frame of a request, with the size prefix, as buffers for `writelines`. Raises EncodeError."""
    key = message.__api_key__
    buffers = encoder(type(message), version)(message)
    client = b"" if client_id is None else client_id.encode()
    tail = client + b"\0" if version >= _FLEXIBLE_FROM[key] else client
    size = _REQUEST_HEADER.size + len(tail) + sum(map(len, buffers))
    client_size = -1 if client_id is None else len(client)
    head = _SIZED_REQUEST_HEADER.pack(size, key, version, correlation_id, client_size)
    return _with_head(head + tail, buffers)


def parse_response_header(frame: Buffer, api_key: int, version: int) -> tuple[int, int]:
    """Return the correlation id in a response frame and the position of the response body.

    `api_key` and `version` are those of the request. Raises ProtocolError if the header is truncated
    or malformed.
    """
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if version < _FLEXIBLE_FROM[api_key] or api_key == ApiKey.API_VERSIONS:
            return correlation_id, 4
        return correlation_id, skip_tagged_section(frame, 4)
    except (struct.error, IndexError, MalformedError) as error:
        raise ProtocolError(f"Error parsing response header in a frame of {len(frame)} bytes: {error}") from None


def encode_response(correlation_id: int, message: Message, version: int) -> list[Buffer]:
    """Return the frame of a response, with the size prefix, as buffers for `writelines`. Raises EncodeError."""
    buffers = encoder(type(message), version)(message)
    key = message.__api_key__
    size = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
    if version >= _FLEXIBLE_FROM[key] and key != ApiKey.API_VERSIONS:
        return _with_head(_SIZED_FLEXIBLE_RESPONSE_HEADER.pack(size + 5, correlation_id), buffers)
    return _with_head(_SIZED_RESPONSE_HEADER.pack(size + 4, correlation_id), buffers)


def _with_head(head: bytes, buffers: list[Buffer]) -> list[Buffer]:
    first: Any = buffers[0]
    if len(buffers) == 1 or len(first) < 4096:
        return [head + first, *buffers[1:]]
    return [head, *buffers]
