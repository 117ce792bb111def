"""Tests of request bodies: their syntax and media type, and limits of their size and number."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from headrace.herder.errors import BadRequestError, PayloadTooLargeError, UnsupportedMediaTypeError
from headrace.rest import request_bodies, responses
from headrace.runtime.worker_config import WorkerConfig

pytestmark = pytest.mark.anyio

CONFIG = WorkerConfig.standalone({"key.converter": "K", "value.converter": "V", "offset.storage.file.filename": "f"})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_large_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the memory of large request bodies from zero in each test.

    A body's memory is released when its request completes, but some tests parse a body and complete no request.
    """
    monkeypatch.setattr(request_bodies, "_large_bodies", request_bodies._LargeBodies())


def request(body: bytes, content_type: str | None = None) -> Request:
    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    return request_of([{"type": "http.request", "body": body, "more_body": False}], headers)


def request_of(messages: Iterable[dict[str, Any]], headers: list[tuple[bytes, bytes]]) -> Request:
    received = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(received)

    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}, receive)


def part(size: int) -> dict[str, Any]:
    return {"type": "http.request", "body": b" " * size, "more_body": True}


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b'{"a": "\\ud800 "}', b"NaN"])
async def test_request_body_with_invalid_json_is_rejected(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="body is not valid JSON"):
        await request_bodies.json_body(request(body))


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/xml"])
async def test_request_body_with_a_media_type_other_than_json_is_rejected_with_status_415(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaTypeError, match=r"415 Unsupported Media Type.*application/json") as caught:
        await request_bodies.json_body(request(b"{}", content_type))
    assert caught.value.status == 415


@pytest.mark.parametrize("content_type", [None, "application/json", "Application/JSON; charset=utf-8"])
async def test_json_request_body_is_accepted_with_and_without_content_type(content_type: str | None) -> None:
    assert await request_bodies.json_body(request(b"{}", content_type)) == {}


async def test_request_body_that_is_too_large_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_bodies, "BODY_SIZE_MAX", 10)
    with pytest.raises(PayloadTooLargeError, match="larger than 10 bytes"):
        await request_bodies.json_body(request(b'"0123456789"'))


async def test_configuration_that_does_not_fit_into_a_record_of_the_config_topic_is_rejected() -> None:
    body = json.dumps({"name": "x" * request_bodies.CONFIG_SIZE_MAX}).encode()
    with pytest.raises(PayloadTooLargeError, match="larger than 2097152 bytes"):
        await request_bodies.config_body(request(body))
    assert await request_bodies.json_body(request(body))  # for example many offsets


async def test_configuration_with_too_many_keys_is_rejected() -> None:
    body = json.dumps({f"k{number}": "" for number in range(10_001)}).encode()
    with pytest.raises(BadRequestError, match="has 10001 keys, but at most 10000 are allowed"):
        await request_bodies.config_body(request(body))


async def test_large_bodies_are_parsed_outside_the_event_loop_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsing: list[int] = []

    def parse(body: bytes) -> Any:
        parsing.append(threading.get_ident())
        return len(body)

    monkeypatch.setattr(request_bodies, "_parse", parse)
    bodies = [request(b" " * size) for size in (10, 100_000, 100_000)]
    assert await asyncio.gather(*map(request_bodies.json_body, bodies)) == [10, 100_000, 100_000]
    assert parsing[0] == threading.get_ident()
    assert parsing[1] == parsing[2] != parsing[0]


async def test_large_request_bodies_share_a_memory_limit_that_does_not_count_small_bodies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_bodies, "SMALL_BODY_SIZE", 100)
    monkeypatch.setattr(request_bodies, "LARGE_BODIES_SIZE_MAX", 1000)
    release = asyncio.Event()

    async def endpoint(received: Request) -> Response:
        await request_bodies.raw_body(received)
        await release.wait()
        return Response()

    async def status(size: int) -> int:
        return (await responses.with_error_handling(endpoint, CONFIG)(request(b" " * size))).status_code

    waiting = [asyncio.ensure_future(status(600)) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert await status(600) == 503
    small = asyncio.ensure_future(status(100))
    await asyncio.sleep(0.01)
    release.set()
    assert await asyncio.gather(small, *waiting) == [200] * 3
    assert await status(1000) == 200


async def test_memory_of_a_body_is_released_if_the_client_disconnects() -> None:
    async def endpoint(received: Request) -> Response:
        await request_bodies.raw_body(received)
        raise AssertionError

    received = request_of([part(1 << 20), part(1 << 20), {"type": "http.disconnect"}], [])
    response = await responses.with_error_handling(endpoint, CONFIG)(received)
    assert response.status_code == 400
    assert request_bodies._large_bodies.used == 0


async def test_objects_of_a_failed_request_are_released_without_a_garbage_collection() -> None:
    class Parsed:
        """An object that the endpoint creates while it handles the request."""

    references = []

    async def endpoint(_received: Request) -> Response:
        parsed = Parsed()
        references.append(weakref.ref(parsed))
        raise BadRequestError("invalid")

    gc.disable()
    try:
        assert (await responses.with_error_handling(endpoint, CONFIG)(request(b""))).status_code == 400
        assert references[0]() is None
    finally:
        gc.enable()
