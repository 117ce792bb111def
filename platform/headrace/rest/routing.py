"""Creates the routes of the REST server from the table of operations, and responds to OPTIONS requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ExceptionHandler, Scope

from headrace.rest.basic_auth import Authenticator, unauthorized_response
from headrace.rest.operations import OPERATIONS
from headrace.rest.responses import Endpoint, http_error_response, with_error_handling
from headrace.runtime.worker_config import WorkerConfig


class _TaskNumber(IntegerConvertor):
    """Matches a task number of at most 18 digits. A path with a longer number is an unknown path."""

    regex = "[0-9]{1,18}"


register_url_convertor("int", _TaskNumber())


def routes(endpoints: Mapping[str, Endpoint], config: WorkerConfig, authenticator: Authenticator | None) -> list[Route]:
    """Return a route for each endpoint in `endpoints`, which maps operation ids to endpoints.

    If there is an authenticator, all routes require a user's credentials, except routes for requests of other workers.
    """
    created = []
    for id_, endpoint in endpoints.items():
        operation, handler = OPERATIONS[id_], with_error_handling(endpoint, config)
        if authenticator is not None and not operation.is_internal:
            handler = authenticator.protect(handler)
        created.append(Route(operation.path, handler, methods=[operation.method], name=id_))
    return created


def method_error_handler(routes: Sequence[BaseRoute], authenticator: Authenticator | None) -> ExceptionHandler:
    """Return the handler of requests with an unknown path or an unsupported method.

    As in Kafka Connect, the response to an OPTIONS request lists the methods of the path.
    """

    async def handle(request: Request, error: Exception) -> Response:
        is_options = request.method == "OPTIONS" and isinstance(error, HTTPException) and error.status_code == 405
        if not is_options:
            return await http_error_response(request, error)
        if authenticator is not None and not authenticator.accepts(request.headers.get("authorization")):
            return unauthorized_response("text/plain")
        methods = [*_methods(routes, request.scope), "OPTIONS"]
        return Response(", ".join(methods), 200, {"Allow": ",".join(methods), "Content-Type": "text/plain"})

    return handle


def _methods(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods that the routes support for the requested path, sorted."""
    return sorted(
        method
        for route in routes
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE
        for method in route.methods or ()
    )
