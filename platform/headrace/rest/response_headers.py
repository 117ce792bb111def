"""Adds the headers in `response.http.headers.config` to every response (KIP-577)."""

from __future__ import annotations

import time
from email.utils import formatdate

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.runtime.rest_config import HeaderAction, HeaderRule


class ResponseHeaders:
    """Middleware that sets or adds response headers. It applies the rules in their order."""

    def __init__(self, app: ASGIApp, rules: tuple[HeaderRule, ...]) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to the application, and apply the rules to the headers of the response."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._apply(MutableHeaders(scope=message))
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _apply(self, headers: MutableHeaders) -> None:
        for rule in self._rules:
            value = rule.value
            if rule.action in (HeaderAction.SET_DATE, HeaderAction.ADD_DATE):
                value = formatdate(time.time() + int(value) / 1000, usegmt=True)
            if rule.action in (HeaderAction.SET, HeaderAction.SET_DATE):
                headers[rule.name] = value
            else:
                headers.append(rule.name, value)
