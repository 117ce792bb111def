"""Tests of the example configs/plugins/paged_api.py with a real HTTP server on a loopback port."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import httpx
import pytest

from headrace.api import ConnectError
from headrace.testing import RestartSource, run_source
from headrace.testing.conformance import SourceConformance

EXAMPLE = Path(__file__).parents[3] / "configs" / "plugins" / "paged_api.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("paged_api_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


paged_api = load_example().paged_api


class ItemServer:
    """An HTTP server that sends each of `responses` once, and then serves pages of `items`."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.responses: list[tuple[int, bytes]] = []
        self.requests: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                status, body = server.responses.pop(0) if server.responses else (200, server.page(self.path))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/items"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def page(self, path: str) -> bytes:
        query = parse_qs(urlparse(path).query)
        after = int(query.get("after", ["-1"])[0])
        return json.dumps([item for item in self.items if item["id"] > after][: int(query["limit"][0])]).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ItemServer]:
    # The source creates a client for each call, and a client that verifies certificates loads all CA certificates.
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, verify=False))
    server = ItemServer()
    yield server
    server.close()


def items(count: int) -> list[dict[str, int]]:
    return [{"id": number, "square": number**2} for number in range(count)]


def test_paged_api_source_reads_all_pages_once_and_later_reads_new_items(server: ItemServer) -> None:
    server.items = items(7)
    props = {"url": server.url, "topic": "items", "page.size": "3"}
    run = run_source(paged_api, props, records=100)
    assert [(record.key, record.value) for record in run.records] == [(item["id"], item) for item in items(7)]
    assert server.requests[:4] == ["/items?limit=3", *(f"/items?limit=3&after={last}" for last in (2, 5, 6))]
    server.items = items(9)
    later = run_source(paged_api, props, records=100, offsets=run.offsets)
    assert [record.key for record in later.records] == [7, 8]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_paged_api_source_repeats_a_request_that_an_overloaded_server_rejects(server: ItemServer, status: int) -> None:
    server.items, server.responses = items(2), [(status, b"later"), (status, b"later")]
    run = run_source(paged_api, {"url": server.url, "topic": "items"}, records=2)
    assert [record.key for record in run.records] == [0, 1]


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ((404, b"no such list"), "404 Not Found: no such list"),
        ((200, b"<html>"), "the response is not JSON: <html>"),
        ((200, b'{"error": 1}'), "expected a list of objects with the field id"),
        ((200, b'[{"name": 1}]'), "expected a list of objects with the field id"),
    ],
)
def test_response_with_an_error_status_or_invalid_content_fails_the_task(
    server: ItemServer, response: tuple[int, bytes], message: str
) -> None:
    server.responses = [response]
    with pytest.raises(ConnectError, match=message):
        run_source(paged_api, {"url": server.url, "topic": "items"}, records=1)


def test_restart_in_the_middle_of_a_page_loses_no_items(server: ItemServer) -> None:
    server.items = items(5)
    run = run_source(
        paged_api, {"url": server.url, "topic": "items", "page.size": "2"}, records=100, faults=[RestartSource(5)]
    )
    assert {record.key for record in run.records} == set(range(5))


class TestPagedApi(SourceConformance):
    plugin = paged_api

    @pytest.fixture(autouse=True)
    def _start_server(self, server: ItemServer) -> None:
        self.server = server

    def config(self) -> dict[str, str]:
        return {"url": self.server.url, "topic": "items", "page.size": "3"}

    def produce(self, count: int) -> None:
        self.server.items = items(len(self.server.items) + count)

    def invalid_configs(self) -> Sequence[dict[str, str]]:
        return [{}, {"url": "", "topic": "t"}, {"url": "http://h/", "topic": "t", "page.size": "0"}]
