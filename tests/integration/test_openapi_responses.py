"""Checks requests to a real worker, and its responses, against the schemas in the worker's OpenAPI document."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from jsonschema import Draft202012Validator

from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

CLASS = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker(tmp_path_factory.mktemp("worker")) as running:
        yield running


class DocumentedClient:
    """Sends requests. Checks status, media type, headers and body of each response against the OpenAPI document."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.document = worker.request("GET", "/openapi.json")
        self.succeeded: set[str] = set()
        """The ids of the operations that have returned a documented response other than an error."""

    def __call__(self, method: str, template: str, body: Any = None, query: str = "", **path: str) -> Any:
        """Send a request to the path `template` of the OpenAPI document, with the path parameters `path`.

        Return the JSON value of the response.
        """
        operation = self.document["paths"][template][method.lower()]
        if body is not None:
            self._check(operation["requestBody"]["content"]["application/json"]["schema"], body)
        status, headers, content = self._send(method, template.format(**path) + query, body)
        documented = operation["responses"].get(str(status))
        assert documented is not None, f"{method} {template}: status {status} is not in the document: {content!r}"
        for name, header in documented.get("headers", {}).items():
            assert headers[name] is not None or not header.get("required")
        if status < 400:
            self.succeeded.add(operation["operationId"])
        if "content" not in documented:
            assert content == b""
            return None
        [(media_type, description)] = documented["content"].items()
        assert headers.get_content_type() == media_type
        value = json.loads(content) if media_type == "application/json" else content.decode()
        self._check(description["schema"], value)
        return value

    def _check(self, schema: dict[str, Any], value: Any) -> None:
        Draft202012Validator({**schema, "components": self.document["components"]}).validate(value)

    def _send(self, method: str, path: str, body: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
        address = urlsplit(self._worker.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()


def test_responses_of_all_operations_match_the_openapi_document(worker: Worker, tmp_path: Path) -> None:
    """Every operation succeeds at least once, except for those that workers of a group send to each other."""
    (tmp_path / "lines.txt").write_text("a\nb\n")
    request = DocumentedClient(worker)
    config = {"connector.class": CLASS, "file": str(tmp_path / "lines.txt"), "topic": "lines"}
    bad = {**config, "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter", "tasks.max": 1}
    c, task = {"connector": "c"}, {"connector": "c", "task": "0"}
    for path in ("/", "/health", "/metrics", "/openapi.json", "/openapi.yaml", "/admin/loggers"):
        request("GET", path)
    request("GET", "/connector-plugins")
    assert len(request("GET", "/connector-plugins", query="?connectorsOnly=false")) > 20
    for plugin in ("FileStreamSink", CLASS, "HoistField$Value", "JsonConverter", "None"):
        request("GET", "/connector-plugins/{pluginName}/config", pluginName=plugin)
    for plugin, settings in (("FileStreamSource", config), (CLASS, {"connector.class": CLASS, "unknown": True})):
        request("PUT", "/connector-plugins/{pluginName}/config/validate", settings, pluginName=plugin)
    request("PUT", "/connector-plugins/{pluginName}/config/validate", {"connector.class": "None"}, pluginName="None")
    assert request("GET", "/connectors") == []
    for body in (
        {"name": "c", "config": config, "initial_state": "stopped"},
        {"name": "c", "config": config},
        {"name": "d", "config": {}},
        {"name": "bad", "config": bad},
    ):
        request("POST", "/connectors", body)
    request("PUT", "/connectors/{connector}/config", config, **c)
    request("PUT", "/connectors/{connector}/config", config, connector="new")
    request("PATCH", "/connectors/{connector}/config", {"batch.size": 10, "none": None}, **c)
    request("PUT", "/connectors/{connector}/resume", **c)
    worker.wait_for_state("c", "RUNNING")
    worker.wait_for_task_state("bad", 0, "FAILED")
    for query in ("", "?expand=status", "?expand=info", "?expand=status&expand=info", "?expand=none"):
        request("GET", "/connectors", query=query)
    for name in ("c", "bad", "missing"):
        for path in ("", "/config", "/status", "/tasks", "/tasks-config", "/topics", "/offsets"):
            request("GET", "/connectors/{connector}" + path, connector=name)
        request("GET", "/connectors/{connector}/tasks/{task}/status", connector=name, task="0")
    request("GET", "/connectors/{connector}/tasks/{task}/status", connector="c", task="7")
    request("POST", "/connectors/{connector}/tasks/{task}/restart", **task)
    for query in ("", "?includeTasks=true", "?includeTasks=true&onlyFailed=true"):
        request("POST", "/connectors/{connector}/restart", query=query, **c)
    worker.wait_for_state("c", "RUNNING")
    request("PUT", "/connectors/{connector}/pause", **c)
    request("PUT", "/connectors/{connector}/resume", **c)
    wait_for(lambda: len(worker.request("GET", "/connectors/c/offsets")["offsets"]) == 1, "the offset")
    [pair] = request("GET", "/connectors/{connector}/offsets", **c)["offsets"]
    request("DELETE", "/connectors/{connector}/offsets", **c)  # fails: the connector is not stopped
    request("PUT", "/connectors/{connector}/stop", **c)
    for offsets in ([pair], [{**pair, "offset": None}], []):
        request("PATCH", "/connectors/{connector}/offsets", {"offsets": offsets}, **c)
    request("DELETE", "/connectors/{connector}/offsets", **c)
    request("PUT", "/connectors/{connector}/topics/reset", **c)
    request("POST", "/connectors/{connector}/tasks", [{}], **c)
    request("PUT", "/connectors/{connector}/fence", **c)
    logger = {"logger": "headrace.rest.openapi"}
    request("PUT", "/admin/loggers/{logger}", {"level": "DEBUG"}, **logger)
    request("PUT", "/admin/loggers/{logger}", {"level": "DEBUG"}, "?scope=cluster", **logger)
    request("PUT", "/admin/loggers/{logger}", {"level": "LOUD"}, **logger)
    request("GET", "/admin/loggers/{logger}", **logger)
    request("GET", "/admin/loggers/{logger}", logger="missing")
    request("GET", "/admin/loggers")
    for name in ("c", "bad", "new", "missing"):
        request("DELETE", "/connectors/{connector}", connector=name)
    every = {each["operationId"] for methods in request.document["paths"].values() for each in methods.values()}
    assert every - request.succeeded == {"putTaskConfigs", "fenceZombies"}
