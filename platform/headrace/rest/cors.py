"""Cross-origin resource sharing (CORS), with the headers of Kafka Connect 4 (Jetty's `CrossOriginHandler`).

`access.control.allow.origin` contains regular expressions that match whole origins, or `*`. If the origin of a request
matches none of them, the request is executed, but its response has no CORS headers. The browser then withholds the
response from the page.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.runtime.rest_config import OriginPatterns

DEFAULT_METHODS = ("GET", "POST", "HEAD")
_MAX_AGE_S = "60"
_ALLOWED_HEADERS = "Content-Type"


class CrossOrigin:
    """Middleware that adds CORS headers to responses. It passes preflight requests to the application, too."""

    def __init__(self, app: ASGIApp, origins: OriginPatterns, methods: Sequence[str]) -> None:
        self._app = app
        self._origins = origins
        self._methods = ",".join(methods or DEFAULT_METHODS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, and add the CORS headers to the response."""
        request = Headers(scope=scope)
        origin = request.get("origin")
        is_preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in request

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("Origin")
                if origin is not None and self._origins.match(origin):
                    self._add(headers, origin, is_preflight=is_preflight)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _add(self, headers: MutableHeaders, origin: str, *, is_preflight: bool) -> None:
        headers["Access-Control-Allow-Origin"] = origin
        if is_preflight:
            headers["Access-Control-Allow-Methods"] = self._methods
            headers["Access-Control-Allow-Headers"] = _ALLOWED_HEADERS
            headers["Access-Control-Max-Age"] = _MAX_AGE_S
