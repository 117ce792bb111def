"""Forwards a request to the worker that can execute it, at most twice, as Kafka Connect does.

The first worker adds `forward=true` to the query, and the second worker changes it to `forward=false`. A third worker
does not forward the request again: it responds with an error.
"""

from __future__ import annotations

import logging
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from headrace.herder import rest_client
from headrace.herder.errors import ConflictError, ForwardError, HerderError
from headrace.runtime.worker_config import WorkerConfig

log = logging.getLogger(__name__)

_NO_LEADER = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
_TOO_MANY_HOPS = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
_SENT_HEADERS = ("authorization",)
_RETURNED_HEADERS = ("content-type", "location")


async def forward(request: Request, error: ForwardError, config: WorkerConfig) -> Response:
    """Forward a request to the worker that the error names, and return its response. Raises HerderError."""
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
    try:
        response = await rest_client.send(config, request.method, url, getattr(request.state, "body", None), headers)
    except OSError as reason:
        raise HerderError(f"IO Error trying to forward REST request to {error.url}: {reason}") from reason
    returned = {name: response.headers[name] for name in _RETURNED_HEADERS if name in response.headers}
    return Response(response.body, response.status, returned)
