"""Requests' bodies: what is no JSON, or too much of it, is refused in words; what has begun goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from headrace.herder.errors import BadRequestError, PayloadTooLargeError
from headrace.rest import answers

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b'{"a": "\\ud800 "}', b"NaN"])
async def test_a_body_that_is_no_json(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="body is no JSON"):
        await answers.body_of(request(body))


async def test_a_body_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BODY_SIZE_MAX", 10)
    with pytest.raises(PayloadTooLargeError, match="larger than 10 bytes"):
        await answers.body_of(request(b'"0123456789"'))


async def test_an_operation_outlives_the_answer_that_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "REQUEST_TIMEOUT_S", 0.01)
    go_on, done = asyncio.Event(), asyncio.Event()

    async def endpoint(_request: Request) -> Response:
        await go_on.wait()
        done.set()
        return Response()

    assert (await answers.answer(endpoint)(request(b""))).status_code == 500
    go_on.set()
    await asyncio.wait_for(done.wait(), 5)
