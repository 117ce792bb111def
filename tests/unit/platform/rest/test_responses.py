"""Tests of operations that exceed the request timeout, and of requests to unreachable workers."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from headrace.herder import rest_client
from headrace.herder.errors import ForwardError
from headrace.herder.stages import stage
from headrace.rest import request_bodies, responses
from headrace.runtime.worker_config import WorkerConfig
from support.ports import free_port

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
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}, receive)


async def test_operation_of_a_request_continues_after_the_request_has_timed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses, "REQUEST_TIMEOUT_S", 0.01)
    proceed, done = asyncio.Event(), asyncio.Event()

    async def endpoint(_request: Request) -> Response:
        await proceed.wait()
        done.set()
        return Response()

    assert (await responses.with_error_handling(endpoint, CONFIG)(request(b""))).status_code == 500
    proceed.set()
    await asyncio.wait_for(done.wait(), 30)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("GET", "Worker is shutting down"),
        ("POST", "Worker is shutting down; the request may have been executed"),
    ],
)
async def test_response_to_an_interrupted_request_says_whether_the_request_may_have_been_executed(
    method: str, message: str
) -> None:
    entered = asyncio.Event()

    async def endpoint(_request: Request) -> Response:
        entered.set()
        await asyncio.Event().wait()
        return Response()

    received = request(b"")
    received.scope["method"] = method
    handling = asyncio.ensure_future(responses.with_error_handling(endpoint, CONFIG)(received))
    await entered.wait()
    handling.cancel()
    response = await handling
    assert (response.status_code, json.loads(bytes(response.body))["message"]) == (500, message)


INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z"


async def timeout_message(operation: Any) -> str:
    """Return the error message in the response to a request whose operation exceeds the request timeout."""

    async def endpoint(_request: Request) -> Response:
        await operation()
        await asyncio.Event().wait()
        return Response()

    response = await responses.with_error_handling(endpoint, CONFIG)(request(b""))
    assert response.status_code == 500
    return str(json.loads(bytes(response.body))["message"])


async def test_response_to_a_timed_out_request_describes_the_current_or_last_stage_of_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses, "REQUEST_TIMEOUT_S", 0.01)

    async def wait_in_a_stage() -> None:
        with stage("ensuring membership in the cluster"):
            await asyncio.Event().wait()

    async def complete_stages() -> None:
        with stage("modifying offsets for connector c"), stage("reading"):
            pass

    async def wait_in_the_outer_stage() -> None:
        with stage("modifying offsets for connector c"):
            with stage("reading"):
                pass
            await asyncio.Event().wait()

    async def have_no_stage() -> None:
        pass

    current = rf"Request timed out\. The worker is currently (.*), which began at {INSTANT}\."
    last = (
        rf"Request timed out\. The last operation the worker completed was (.*), which began at {INSTANT} and "
        rf"completed at {INSTANT}\."
    )
    for operation, pattern, description in (
        (wait_in_a_stage, current, "ensuring membership in the cluster"),
        (wait_in_the_outer_stage, current, "modifying offsets for connector c"),
        (complete_stages, last, "modifying offsets for connector c"),
    ):
        found = re.fullmatch(pattern, await timeout_message(operation))
        assert found is not None
        assert found[1] == description
    assert await timeout_message(have_no_stage) == "Request timed out"


async def test_request_for_an_unreachable_leader_is_executed_when_this_worker_becomes_the_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses, "FORWARD_RETRY_S", 0.001)
    gone, calls = f"http://127.0.0.1:{free_port()}/", 0

    async def endpoint(received: Request) -> Response:
        nonlocal calls
        calls += 1
        assert await request_bodies.json_body(received) == {"a": 1}  # the body can be read again
        if calls < 3:
            raise ForwardError("another worker leads", gone)
        return Response(status_code=204)

    received = request(b'{"a": 1}')
    received.scope.update(raw_path=b"/")
    assert (await responses.with_error_handling(endpoint, CONFIG)(received)).status_code == 204
    assert calls == 3


@pytest.mark.parametrize(("method", "status", "calls_expected"), [("PUT", 204, 2), ("POST", 500, 1)])
async def test_put_request_to_a_suspended_leader_is_retried_after_a_rebalance(
    monkeypatch: pytest.MonkeyPatch, method: str, status: int, calls_expected: int
) -> None:
    """This worker forwards a request to a suspended leader. A rebalance then elects another leader.

    A PUT request is retried. Other requests fail, because the suspended worker may still execute them.
    """
    monkeypatch.setattr(responses, "FORWARD_RETRY_S", 0.001)
    monkeypatch.setattr(rest_client, "REPLACED_GRACE_S", 0.1)
    calls = 0
    with socket.create_server(("127.0.0.1", 0)) as suspended:  # it accepts connections and never responds
        url = f"http://127.0.0.1:{suspended.getsockname()[1]}/"

        async def replaced() -> None:
            await asyncio.sleep(0.2)

        async def endpoint(_request: Request) -> Response:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ForwardError("another worker leads", url, replaced)
            return Response(status_code=204)

        received = request(b"{}")
        received.scope.update(raw_path=b"/", method=method)
        response = await asyncio.wait_for(responses.with_error_handling(endpoint, CONFIG)(received), 30)
    assert (response.status_code, calls) == (status, calls_expected)


async def test_request_for_a_leader_that_stays_unreachable_fails_with_status_500(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses, "FORWARD_RETRY_S", 0.001)
    monkeypatch.setattr(responses, "REQUEST_TIMEOUT_S", 0.1)
    gone = f"http://127.0.0.1:{free_port()}/"

    async def endpoint(_request: Request) -> Response:
        raise ForwardError("another worker leads", gone)

    received = request(b"")
    received.scope.update(raw_path=b"/")
    response = await responses.with_error_handling(endpoint, CONFIG)(received)
    assert response.status_code == 500
    message = json.loads(bytes(response.body))["message"]
    assert re.match(f"Request timed out|IO Error trying to forward REST request to {gone}", message)
    assert gone in message


async def test_forwarded_requests_for_a_hung_connector_class_do_not_delay_other_forwarded_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent, hung = list[str](), asyncio.Event()

    async def send(_config: Any, _method: str, url: str, *_: Any, **__: Any) -> rest_client.RestResponse:
        sent.append(url)
        if "hung" in url:
            await hung.wait()
        return rest_client.RestResponse(204, {}, b"")

    def forward(path: str, connector: str, connector_class: str | None) -> asyncio.Future[Response]:
        async def endpoint(_request: Request) -> Response:
            raise ForwardError("another worker leads", "http://leader/", None, connector_class)

        received = request(b"{}")
        received.scope.update(query_string=b"", path=path, path_params={"connector": connector})
        return asyncio.ensure_future(responses.with_error_handling(endpoint, CONFIG)(received))

    monkeypatch.setattr(rest_client, "send", send)
    forwarded = [forward(f"/connectors/hung{n}/config", f"hung{n}", "Hung") for n in range(70)]
    forwarded += [forward("/connectors/hung/pause", "hung", None) for _ in range(70)]
    sound = [forward("/connectors/a/config", "a", "Sound"), forward("/connectors/a/pause", "a", None)]
    assert [(await asyncio.wait_for(each, 30)).status_code for each in sound] == [204, 204]
    assert len(sent) < rest_client.Kind.FORWARDED.value
    hung.set()
    assert {(await each).status_code for each in forwarded} == {204}
