"""Forwards requests to the worker that can execute them. As in Kafka Connect, a request is forwarded at most twice.

The first worker adds `forward=true` to the query, and the second worker changes it to `forward=false`. A third worker
does not forward the request again. It responds with an error.

For each connector class or connector, a worker forwards only a few requests at the same time. If the code of a class
hangs in the other worker, requests for other classes and connectors can therefore still be forwarded.
"""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlencode
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from headrace.herder import rest_client
from headrace.herder.errors import ConflictError, ForwardError, HerderError
from headrace.runtime.worker_config import WorkerConfig

log = logging.getLogger(__name__)

_NO_LEADER = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
_TOO_MANY_HOPS = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
_STOPPING = b'"Worker is shutting down"'
_SENT_HEADERS = ("authorization", "x-connect-authorization", "x-connect-request-signature-algorithm")
_RETURNED_HEADERS = ("content-type", "location", "warning")

REQUESTS_MAX = rest_client.Kind.FORWARDED.value // 4
"""The maximum number of concurrently forwarded requests for one connector class or one connector."""
_limits: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()


class WorkerGoneError(HerderError):
    """The other worker has stopped. The request can be sent again: it was not executed, or it is idempotent."""


async def forward(request: Request, error: ForwardError, config: WorkerConfig) -> Response:
    """Forward a request to the worker at `error.url`, and return the worker's response.

    Raises WorkerGoneError if the worker has stopped and the request can be sent again. Otherwise, raises another
    HerderError.
    """
    hop = request.query_params.get("forward")
    if hop == "false":
        raise ConflictError(_TOO_MANY_HOPS)
    if error.url is None:
        raise ConflictError(_NO_LEADER)
    query = [(key, value) for key, value in request.query_params.multi_items() if key != "forward"]
    query.append(("forward", "true" if hop is None else "false"))
    url = f"{error.url.rstrip('/')}{request.scope['path']}?{urlencode(query)}"
    headers = {name: request.headers[name] for name in _SENT_HEADERS if name in request.headers}
    log.debug("Forwarding request %s %s", request.method, url)
    body = getattr(request.state, "body", None)
    try:
        async with _limit_of(error.connector_class or request.path_params.get("connector", "")):
            response = await rest_client.send_unless_replaced(
                error.replaced, config, request.method, url, body, headers, kind=rest_client.Kind.FORWARDED
            )
    except OSError as reason:
        text = f"IO Error trying to forward REST request to {error.url}: {reason}"
        # PUT requests are idempotent, so they are repeated even if the worker stopped while it executed the request.
        is_repeatable = request.method == "PUT" and isinstance(reason, ConnectionError)
        if is_repeatable or isinstance(reason, rest_client.NotSentError):
            raise WorkerGoneError(text) from reason
        raise HerderError(text) from reason
    if response is None:
        text = f"The worker at {error.url} was replaced before it responded to the forwarded REST request"
        raise (WorkerGoneError if request.method == "PUT" else HerderError)(text)
    if response.status == 500 and _STOPPING in response.body:
        raise WorkerGoneError(f"The worker at {error.url} is shutting down")
    returned = {name: response.headers[name] for name in _RETURNED_HEADERS if name in response.headers}
    return Response(response.body, response.status, returned)


def _limit_of(name: str) -> asyncio.Semaphore:
    """Return the semaphore that limits the forwarded requests for one connector class or one connector.

    `name` is the connector class whose code the requests call, or the connector if they call no plug-in code.
    """
    limit = _limits.get(name)
    if limit is None:
        limit = _limits[name] = asyncio.Semaphore(REQUESTS_MAX)
    return limit
