"""A fake Elasticsearch server for tests, which rejects requests or documents, is slow, or closes connections."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headrace.data.records import SinkRecord


class ScriptedServer(ThreadingHTTPServer):
    """A fake Elasticsearch server that stores the documents of bulk requests.

    Each bulk request removes the first fault from `faults` and applies it. A fault is one of:
    the HTTP status of the response, "cut" to close the connection, "slow" to respond after 0.3 s, or a dict of statuses
    by document id.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: list[Any] = []
        self.documents: dict[str, Any] = {}
        self.bulks: list[list[str]] = []
        self.status = 200
        self.content_type = "application/json"
        self.authorization: str | None = None
        self.max_documents = 1000000
        self.compressed_count = 0
        """The number of requests with a compressed body."""
        self.barrier: threading.Barrier | None = None
        """Bulk requests wait until as many of them have arrived as the barrier has parties."""

    def apply(self, body: bytes) -> tuple[int, Any] | None:
        """Apply a bulk request and return the status and the body of the response, or None to close the connection."""
        if self.barrier is not None:
            self.barrier.wait(30)
        fault = self.faults.pop(0) if self.faults else {}
        if fault == "slow":
            time.sleep(0.3)
            fault = {}
        texts = [json.loads(line) for line in body.splitlines()]
        items = []
        pairs = list(zip(texts[::2], texts[1::2], strict=True))
        if len(pairs) > self.max_documents:
            return 413, {}
        self.bulks.append([target["_id"] for action, _ in pairs for target in action.values()])
        if isinstance(fault, int):
            return fault, {"error": {"type": "scripted", "reason": "fault"}}
        for action, document in pairs:
            [(name, target)] = action.items()
            id_ = target["_id"]
            if fault != "cut" and id_ in fault:
                type_ = "mapper_parsing_exception" if fault[id_] == 400 else "es_rejected_execution_exception"
                error = {"type": type_, "reason": "full"}
                items.append({name: {"status": fault[id_], "error": error}})
            elif name == "create" and id_ in self.documents:
                reason = f"[{id_}]: version conflict, document already exists (current version [1])"
                error = {"type": "version_conflict_engine_exception", "reason": reason}
                items.append({name: {"status": 409, "error": error}})
            else:
                self.documents[id_] = document
                items.append({name: {"status": 201}})
        return None if fault == "cut" else (200, {"errors": True, "items": items})


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def _respond(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "gzip":
            self.server.compressed_count += 1
            body = gzip.decompress(body)
        self.server.authorization = self.headers.get("authorization")
        result: tuple[int, Any] | None = (self.server.status, {})
        if self.path.startswith("/_bulk"):
            assert self.headers["content-type"] == "application/x-ndjson"
            result = self.server.apply(body)
        if result is None:
            self.close_connection = True
            return
        data = b"" if self.command == "HEAD" else json.dumps(result[1]).encode()
        self.send_response(result[0])
        self.send_header("content-type", self.server.content_type)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        with suppress(BrokenPipeError):  # a test of read.timeout.ms
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_HEAD = _respond

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


@contextmanager
def running_scripted_server() -> Iterator[ScriptedServer]:
    """Run a fake server."""
    with ScriptedServer() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def settings_of(server: ScriptedServer, **props: str) -> dict[str, str]:
    """Return the configuration of a sink that writes to the server. `__` in a name stands for a dot."""
    settings = {"connection.url": server.url, "schema.ignore": "true", "retry.backoff.ms": "1",
                "read.timeout.ms": "60000"}  # fmt: skip
    return settings | {key.replace("__", "."): value for key, value in props.items()}


def four_records() -> list[SinkRecord]:
    """Return records with the keys k0 to k3 and the values {"n": 0} to {"n": 3}."""
    return [
        SinkRecord(topic="t", partition=0, offset=at, key=f"k{at}", value={"n": at}, timestamp=at) for at in range(4)
    ]
