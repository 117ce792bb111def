"""An HTTP proxy in front of a search server that closes connections in the middle of bulk requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_BULK = "/_bulk?"


class BulkProxy(ThreadingHTTPServer):
    """Forwards each request to a search server. Each bulk request removes the first item of `cuts` and applies it.

    A cut is the fraction of the request's body that the proxy forwards before it closes both connections. If the
    fraction is 1, the proxy forwards the whole request, waits for the response, and closes both connections without
    forwarding the response. If the cut is None, the proxy forwards request and response.
    """

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        parts = urlsplit(target)
        self.target = str(parts.hostname), int(parts.port or 0)
        self.cuts: list[float | None] = []
        self.server_timeout_ms: int | None = None
        """How long the server waits until the primary shard is active (the parameter `timeout` of bulk requests)."""


class _Handler(BaseHTTPRequestHandler):
    server: BulkProxy
    protocol_version = "HTTP/1.1"

    def _forward(self) -> None:
        cut = None
        target, length = self.path, int(self.headers.get("content-length", 0))
        if target.startswith(_BULK):
            if self.server.server_timeout_ms is not None:
                target = f"{_BULK}timeout={self.server.server_timeout_ms}ms&{target.removeprefix(_BULK)}"
            cut = self.server.cuts.pop(0) if self.server.cuts else None
        if cut is not None and cut < 1:
            self._send_part(int(length * cut))
            self.close_connection = True
            return
        connection = HTTPConnection(*self.server.target)
        try:
            connection.request(self.command, target, self.rfile.read(length) or None, dict(self.headers.items()))
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        if cut is not None:
            self.close_connection = True
            return
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _send_part(self, count: int) -> None:
        """Send the headers and the first `count` bytes of the request's body, and close the connection."""
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        with socket.create_connection(self.server.target) as connection:
            connection.sendall(f"{self.requestline}\r\n{headers}\r\n".encode() + self.rfile.read(count))

    do_GET = do_PUT = do_POST = do_HEAD = _forward

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


@contextmanager
def running_bulk_proxy(target: str) -> Iterator[BulkProxy]:
    """Run a proxy in front of the server with the URL `target`."""
    with BulkProxy(target) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()
