"""Requests' bodies in, answers and error bodies out: `{"error_code": …, "message": …}`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.herder.errors import BadRequestError, HerderError, PayloadTooLargeError, RequestTimeoutError
from headrace.metrics import logs

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 90.0
BODY_SIZE_MAX = 16 << 20
Endpoint = Callable[[Request], Awaitable[Response]]


def answer(endpoint: Endpoint) -> Endpoint:
    """An endpoint within the request's time limit, its errors in Connect's shape."""

    async def answered(request: Request) -> Response:
        operation = asyncio.ensure_future(endpoint(request))
        try:  # shielded: what has begun is never left half done
            return await asyncio.wait_for(asyncio.shield(operation), REQUEST_TIMEOUT_S)
        except TimeoutError:
            return failure(RequestTimeoutError.status, "Request timed out. The operation may still complete.")
        except HerderError as error:
            return failure(error.status, str(error))
        except Exception as error:
            log.exception("Uncaught exception in REST call to %s", request.url.path)
            return failure(500, str(error) or type(error).__name__)

    return answered


def failure(status: int, message: str) -> JSONResponse:
    """An error body; secrets are masked."""
    return JSONResponse({"error_code": status, "message": logs.secrets.mask(message)}, status)


async def http_error(_request: Request, error: Exception) -> Response:
    """No such path (404), no such method there (405)."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    reason = {404: "HTTP 404 Not Found", 405: "HTTP 405 Method Not Allowed"}.get(status, str(error))
    return failure(status, reason)


async def body_of(request: Request) -> Any:
    """The JSON body. Raises BadRequestError, PayloadTooLargeError."""
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > BODY_SIZE_MAX:
            raise PayloadTooLargeError(f"The request's body is larger than {BODY_SIZE_MAX} bytes")
    try:
        return msgspec.json.decode(body)  # strict: no NaN, no halves of surrogate pairs
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"The request's body is no JSON: {error}") from None


async def map_of(request: Request) -> dict[str, Any]:
    """A JSON object. Raises BadRequestError."""
    body = await body_of(request)
    if not isinstance(body, dict):
        raise BadRequestError("The request's body must be a JSON object")
    return body


async def config_of(request: Request) -> dict[str, Any]:
    """A configuration: a JSON object of texts (numbers and booleans are taken as such). Raises BadRequestError."""
    return as_config(await map_of(request))


def as_config(body: dict[str, Any]) -> dict[str, Any]:
    """Values as texts, null kept. Raises BadRequestError."""
    for key, value in body.items():
        if isinstance(value, (dict, list)):
            raise BadRequestError(f"The value of {key} must be text")
    return {key: _as_text(value) for key, value in body.items()}


def _as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


class PathsAsSent:
    """Matches routes on the path as it was sent, so that an encoded slash is part of a connector's name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on with its path undecoded; `path_text` decodes the parts."""
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


def path_text(request: Request, part: str) -> str:
    """A part of the path, decoded."""
    return unquote(str(request.path_params[part]))


def flag(request: Request, name: str) -> bool:
    """A boolean query parameter."""
    return request.query_params.get(name, "false").lower() == "true"
