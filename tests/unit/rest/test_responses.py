"""Tests of invalid and too large request bodies, and of operations that exceed the request timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from headrace.herder.errors import BadRequestError, PayloadTooLargeError, UnsupportedMediaTypeError
from headrace.rest import responses
from headrace.runtime.worker_config import WorkerConfig

pytestmark = pytest.mark.anyio

CONFIG = WorkerConfig.distributed({
    "key.converter": "K", "value.converter": "V", "group.id": "g", "config.storage.topic": "c",
    "offset.storage.topic": "o", "status.storage.topic": "s",
})  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def request(body: bytes, content_type: str | None = None) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b'{"a": "\\ud800 "}', b"NaN"])
async def test_request_body_with_invalid_json_is_rejected(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="body is not valid JSON"):
        await responses.json_body(request(body))


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml"])
async def test_request_body_with_another_media_type_than_json_is_rejected(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaTypeError, match=r"415 Unsupported Media Type.*application/json") as caught:
        await responses.json_body(request(b"{}", content_type))
    assert caught.value.status == 415


@pytest.mark.parametrize("content_type", [None, "application/json", "Application/JSON; charset=utf-8"])
async def test_json_body_is_accepted_with_and_without_its_media_type(content_type: str | None) -> None:
    assert await responses.json_body(request(b"{}", content_type)) == {}


async def test_request_body_that_is_too_large_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "BODY_SIZE_MAX", 10)
    with pytest.raises(PayloadTooLargeError, match="larger than 10 bytes"):
        await responses.json_body(request(b'"0123456789"'))


async def test_operation_continues_after_its_request_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "REQUEST_TIMEOUT_S", 0.01)
    proceed, done = asyncio.Event(), asyncio.Event()

    async def endpoint(_request: Request) -> Response:
        await proceed.wait()
        done.set()
        return Response()

    assert (await responses.with_error_handling(endpoint, CONFIG)(request(b""))).status_code == 500
    proceed.set()
    await asyncio.wait_for(done.wait(), 5)
