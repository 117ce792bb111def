"""An HTTP proxy for an S3 server. The proxy injects faults: error responses, lost connections, and delays."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from support.s3 import S3Server

Matches = Callable[[str, str], bool]
"""Decides by the method and the path with the query whether a fault applies to a request."""


@dataclass
class S3Fault:
    """A fault that applies to the next `times` requests for which `matches` returns True."""

    matches: Matches
    times: int
    status: int = 0
    """The status of an error response with `code`; 0 for none."""
    code: str = ""
    delay_s: float = 0.0
    cuts_request: bool = False
    """Close the connection when the request is received, without a response."""
    applies_request: bool = False
    """Let the server process the request before the error response or before the connection is closed."""
    cuts_response_at: int = -1
    """Close the connection after that many bytes of the response's body."""


@dataclass
class FaultyS3:
    """The proxy: its server address, its faults, and the requests that it received."""

    server: S3Server
    faults: list[S3Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    applied: int = 0
    rewrite: Callable[[str, str, bytes], bytes] | None = None
    """Returns the body of a response instead of the server's, by method, path and the server's body."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: S3Fault) -> None:
        """Add a fault."""
        with self._lock:
            self.faults.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self.faults.clear()

    def take(self, method: str, path: str) -> S3Fault | None:
        """Record a request. Return the first fault that applies to it, or None, and decrement the fault's `times`."""
        with self._lock:
            self.requests.append((method, path))
            found = next((each for each in self.faults if each.times > 0 and each.matches(method, path)), None)
            if found is not None:
                found.times -= 1
                self.applied += 1
            return found


@contextmanager
def faulty(target: S3Server) -> Iterator[FaultyS3]:
    """Run a proxy in front of a server."""
    address = urlsplit(target.url)
    proxy: FaultyS3

    def forward(request: BaseHTTPRequestHandler, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(str(address.hostname), address.port or 80, timeout=60)
        connection.request(request.command, request.path, body or None, dict(request.headers))
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response, data

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            pass  # the test reads `requests`

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fault = proxy.take(self.command, self.path)
            if fault is not None:
                time.sleep(fault.delay_s)
                if fault.applies_request:
                    forward(self, body)
                if fault.cuts_request:
                    self.close_connection = True
                    return
                if fault.status:
                    self._respond_with_error(fault)
                    return
            self._forward(body, -1 if fault is None else fault.cuts_response_at)

        def _respond_with_error(self, fault: S3Fault) -> None:
            text = f"<Error><Code>{fault.code}</Code><Message>fault of the test</Message></Error>".encode()
            self.send_response(fault.status)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def _forward(self, body: bytes, cut: int) -> None:
            response, data = forward(self, body)
            if proxy.rewrite is not None:
                data = proxy.rewrite(self.command, self.path, data)
            self.send_response_only(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            length = response.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data if cut < 0 else data[:cut])
            if cut >= 0:
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    listener = Server(("127.0.0.1", 0), Handler)
    proxy = FaultyS3(S3Server(f"http://127.0.0.1:{listener.server_port}", target.access_key, target.secret))
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
