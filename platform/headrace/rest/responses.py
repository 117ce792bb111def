"""Executes requests and creates responses, including error bodies: `{"error_code": …, "message": …}`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.herder.errors import (
    ConflictError,
    ForwardError,
    HerderError,
    WorkerStoppingError,
)
from headrace.herder.stages import StageTracker, stage, track
from headrace.metrics import logs
from headrace.metrics.elapsed import ms_since
from headrace.rest.request_bodies import raw_body, release_body
from headrace.runtime.worker_config import WorkerConfig

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 90.0
FORWARD_RETRY_S = 0.25
DISCONNECT_DELAY_S = 0.01
"""How long the event loop may need to detect that a connection was closed before this worker read the request."""
Endpoint = Callable[[Request], Awaitable[Response]]


def with_error_handling(endpoint: Endpoint, config: WorkerConfig) -> Endpoint:
    """Wrap an endpoint: apply the request timeout, forward requests, and convert exceptions to error responses."""

    async def forward_if_needed(request: Request) -> Response:
        await _check_sender(request)
        try:
            return await endpoint(request)
        except ForwardError as error:
            return await forward_until_reachable(request, error)

    async def forward_until_reachable(request: Request, error: ForwardError) -> Response:
        """Forward a request to the worker at `error.url`.

        If that worker has stopped, wait for the rebalance. Then execute the request here, or forward it again.
        """
        from headrace.rest import forwarding  # a late import, because a standalone worker never forwards

        loop = asyncio.get_running_loop()
        deadline = loop.time() + REQUEST_TIMEOUT_S
        while True:
            await _check_sender(request)
            try:
                with stage(f"forwarding the request to the worker at {error.url}"):
                    return await forwarding.forward(request, error, config)
            except forwarding.WorkerGoneError:
                if loop.time() >= deadline:
                    raise
            with stage(f"waiting until the group replaces the worker at {error.url}, which cannot be reached"):
                await asyncio.sleep(FORWARD_RETRY_S)
            try:
                return await endpoint(request)
            except ForwardError as new_error:
                error = new_error

    async def handle(request: Request) -> Response:
        started = time.monotonic()
        response = await respond(request)
        log.debug(
            "Request %s %s: status %d after %d ms",
            request.method,
            request.url.path,  # without the query, which may contain anything
            response.status_code,
            ms_since(started),
        )
        return response

    async def respond(request: Request) -> Response:
        tracker = track()
        operation = asyncio.ensure_future(forward_if_needed(request))
        operation.add_done_callback(lambda _: release_body(request))
        # After a timeout, a change still runs to completion instead of stopping halfway.
        try:
            await asyncio.wait([operation], timeout=REQUEST_TIMEOUT_S)
        except asyncio.CancelledError:  # `RestServer.stop` has waited long enough
            operation.cancel()
            return _aborted_response(request.method)
        if not operation.done():
            operation.add_done_callback(_log_late_result)
            if request.method == "GET":
                operation.cancel()
            return error_response(500, _timeout_message(tracker))
        try:
            return operation.result()
        except HerderError as error:
            return error_response(error.status, str(error))
        except Exception as error:
            log.exception("Uncaught exception in REST call to %s", request.url.path)
            return error_response(500, str(error) or type(error).__name__)
        finally:
            del operation  # its exception refers to this frame: without the cycle, all memory is released at once

    return handle


async def _check_sender(request: Request) -> None:
    """Check that the worker that has forwarded the request still waits for the response. Raises ConflictError.

    While this worker was suspended, the forwarding worker may have closed the connection and sent the request to the
    next leader. Users may have changed the connector since. Executing or forwarding the request now would undo their
    changes.
    """
    if "forward" not in request.query_params:
        return
    await raw_body(request)  # `is_disconnected` would discard a body that was not read
    await asyncio.sleep(DISCONNECT_DELAY_S)
    if await request.is_disconnected():
        raise ConflictError("The worker that forwarded the request has closed the connection")


def _aborted_response(method: str) -> Response:
    """Return the response to a request that the worker's shutdown has interrupted.

    Another worker may have forwarded the request. If the response has the text of WorkerStoppingError, that worker
    sends the request again. The response to a GET request has this text, because a GET request may be executed twice.
    The response to any other request has a different text, because that request may already have been executed.
    """
    stopping = str(WorkerStoppingError())
    return error_response(500, stopping if method == "GET" else f"{stopping}; the request may have been executed")


def _timeout_message(tracker: StageTracker) -> str:
    return "Request timed out" if tracker.last is None else f"Request timed out. {tracker.last.summarize()}"


def _log_late_result(operation: asyncio.Future[Response]) -> None:
    if not operation.cancelled() and (error := operation.exception()) is not None:
        log.warning("REST request failed after the timeout response had been sent: %s", error)


def error_response(status: int, message: str) -> JSONResponse:
    """Return an error response. Secrets in the message are masked."""
    return JSONResponse({"error_code": status, "message": logs.secrets.mask(message)}, status)


async def http_error_response(_request: Request, error: Exception) -> Response:
    """Return the response for an unknown path (404) or an unsupported method (405)."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    reason = {404: "HTTP 404 Not Found", 405: "HTTP 405 Method Not Allowed"}.get(status, str(error))
    return error_response(status, reason)


class RawPathMiddleware:
    """Matches routes against the undecoded path, so that a connector name can contain an encoded slash.

    As in Kafka Connect, a path may end with a slash.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application with its undecoded path. `path_param` decodes path parameters."""
        if scope["type"] == "http":
            path = scope["raw_path"].decode("ascii", "replace")
            scope = {**scope, "path": path.removesuffix("/") or "/"}
        await self._app(scope, receive, send)


def path_param(request: Request, part: str) -> str:
    """Return the decoded path parameter with the name `part`."""
    return unquote(str(request.path_params[part]))


def boolean_param(request: Request, name: str) -> bool:
    """Return a boolean query parameter. A missing parameter is false."""
    return request.query_params.get(name, "false").lower() == "true"
