"""Tests of the rules in `response.http.headers.config`, which set or add headers of the REST API's responses."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.rest.response_headers import ResponseHeaders
from headrace.runtime.rest_config import header_rules

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def response_headers(rules: str) -> httpx.Headers:
    async def endpoint(_request: Request) -> Response:
        return Response("x", headers={"X-Given": "a"})

    application = Starlette(routes=[Route("/", endpoint)])
    application.add_middleware(ResponseHeaders, rules=header_rules(rules))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://h") as client:
        return (await client.get("/")).headers


async def test_set_rule_replaces_a_response_header_and_add_rule_appends_another_value() -> None:
    headers = await response_headers('set X-Given: b, add X-More: 1, add X-More: 2, "set X-List: a, b"')
    assert headers.get_list("x-given") == ["b"]
    assert headers.get_list("x-more") == ["1", "2"]
    assert headers["x-list"] == "a, b"


async def test_date_rule_sets_a_header_to_the_current_time_plus_the_milliseconds_of_the_rule() -> None:
    headers = await response_headers("setDate Expires: 3600000, addDate X-Now: 0")
    ahead = parsedate_to_datetime(headers["expires"]) - parsedate_to_datetime(headers["x-now"])
    assert 3599 <= ahead.total_seconds() <= 3601
    assert headers["expires"].endswith("GMT")
