"""Reads and parses request bodies. Large bodies neither block the event loop nor use much memory.

A thread parses the large bodies, one after the other. All requests together may use `LARGE_BODIES_SIZE_MAX` bytes for
their large bodies until their responses are sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from headrace.herder.errors import BadRequestError, OverloadedError, PayloadTooLargeError, UnsupportedMediaTypeError

T = TypeVar("T")

BODY_SIZE_MAX = 16 << 20
CONFIG_SIZE_MAX = 2 << 20
"""A larger configuration does not fit into a record of the config topic (max.request.size is 1 MiB by default)."""
CONFIG_KEYS_MAX = 10_000
"""Validation describes each key, so that a response about more keys would be very large."""
SMALL_BODY_SIZE = 64 << 10
LARGE_BODIES_SIZE_MAX = 32 << 20


class _LargeBodies:
    """Limits the memory that large request bodies use in total, over all requests in progress."""

    def __init__(self) -> None:
        self.used = 0

    def reserve(self, request: Request, size: int) -> None:
        """Reserve memory for a body of this size. Raises OverloadedError."""
        reserved: int = getattr(request.state, "reserved", 0)
        added = max(0, size - SMALL_BODY_SIZE) - reserved
        if added > 0 and self.used + added > LARGE_BODIES_SIZE_MAX:
            raise OverloadedError("All memory for large request bodies is in use by other requests; retry later")
        self.used += added
        request.state.reserved = reserved + added

    def release(self, request: Request) -> None:
        """Release the memory of a request's body."""
        self.used -= getattr(request.state, "reserved", 0)
        request.state.reserved = 0


_large_bodies = _LargeBodies()


async def raw_body(request: Request, size_max: int = BODY_SIZE_MAX) -> bytes:
    """Return the request body, and keep it for later calls and for `forward`, until the call of `release_body`.

    Raises PayloadTooLargeError, OverloadedError, BadRequestError.
    """
    known: bytes | None = getattr(request.state, "body", None)
    if known is None:
        known = request.state.body = await _receive(request, size_max)
    _check_size(known, size_max)
    return known


async def _receive(request: Request, size_max: int) -> bytes:
    body = bytearray()
    try:
        async for block in request.stream():
            body += block
            _check_size(body, size_max)
            _large_bodies.reserve(request, len(body))
        return bytes(body)
    except ClientDisconnect:
        raise BadRequestError("The connection was closed before the request's body was complete") from None
    finally:
        body.clear()  # the traceback of an exception keeps it alive


def _check_size(body: bytes | bytearray, size_max: int) -> None:
    if len(body) > size_max:
        raise PayloadTooLargeError(f"The request's body is larger than {size_max} bytes")


def release_body(request: Request) -> None:
    """Release the memory of the request body, because the request is complete."""
    _large_bodies.release(request)
    request.state.body = b""


async def json_body(request: Request) -> Any:
    """Parse the request body as JSON.

    Raises UnsupportedMediaTypeError, BadRequestError, PayloadTooLargeError, OverloadedError.
    """
    return await _parsed(request, _parse, BODY_SIZE_MAX)


async def json_object_body(request: Request, *, numbers_as_text: bool = False) -> dict[str, Any]:
    """Parse the request body as a JSON object.

    With `numbers_as_text`, a number becomes a string with the same characters, for example `1e3`, as in Kafka
    Connect's configurations. Raises UnsupportedMediaTypeError, BadRequestError, PayloadTooLargeError, OverloadedError.
    """
    return await _parsed(request, _parse_object_of_texts if numbers_as_text else _parse_object, CONFIG_SIZE_MAX)


async def config_body(request: Request) -> dict[str, Any]:
    """Parse the request body as a configuration: a JSON object of strings, numbers, booleans and nulls.

    Raises UnsupportedMediaTypeError, BadRequestError, PayloadTooLargeError, OverloadedError.
    """
    return to_config(await json_object_body(request, numbers_as_text=True))


async def task_configs_body(request: Request) -> list[dict[str, Any]]:
    """Parse the request body as a list of task configurations.

    Raises UnsupportedMediaTypeError, BadRequestError, PayloadTooLargeError, OverloadedError.
    """
    return await _parsed(request, _parse_task_configs, BODY_SIZE_MAX)


def to_config(body: dict[str, Any]) -> dict[str, Any]:
    """Convert all values to strings, except null. Raises BadRequestError for an object or array, or too many keys."""
    if len(body) > CONFIG_KEYS_MAX:
        raise BadRequestError(f"The configuration has {len(body)} keys, but at most {CONFIG_KEYS_MAX} are allowed")
    for key, value in body.items():
        if isinstance(value, (dict, list)):
            raise BadRequestError(f"The value of {key} must be a string, number, boolean or null")
    return {key: _as_text(value) for key, value in body.items()}


def _as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


async def _parsed(request: Request, parse: Callable[[bytes], T], size_max: int) -> T:
    _check_media_type(request)
    body = await raw_body(request, size_max)
    if len(body) <= SMALL_BODY_SIZE:
        return parse(body)
    return await asyncio.get_running_loop().run_in_executor(_parser_thread(), parse, body)


@cache
def _parser_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="rest-parser")


def _check_media_type(request: Request) -> None:
    """Reject a body with a Content-Type other than JSON. A body without a Content-Type is parsed as JSON."""
    declared = request.headers.get("content-type")
    if declared is not None and declared.partition(";")[0].strip().lower() != "application/json":
        raise UnsupportedMediaTypeError(
            f"HTTP 415 Unsupported Media Type: the request's body is {declared}; send JSON, with the header "
            "Content-Type: application/json"
        )


def _parse(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)  # msgspec rejects NaN and unpaired surrogates
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The request's body is not valid JSON: {error}") from None


def _parse_object(body: bytes) -> dict[str, Any]:
    parsed = _parse(body)
    if not isinstance(parsed, dict):
        raise BadRequestError("The request's body must be a JSON object")
    return parsed


def _parse_object_of_texts(body: bytes) -> dict[str, Any]:
    _parse_object(body)
    return json.loads(body, parse_float=str, parse_int=str)  # type: ignore[no-any-return]


def _parse_task_configs(body: bytes) -> list[dict[str, Any]]:
    configs = _parse(body)
    if not isinstance(configs, list) or not all(isinstance(config, dict) for config in configs):
        raise BadRequestError("The request's body must be a list of task configurations")
    return [to_config(config) for config in configs]
