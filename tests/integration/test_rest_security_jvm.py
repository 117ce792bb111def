"""Compares responses of a worker of Apache Kafka and of headrace: basic authentication, CORS, OPTIONS, signatures."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.rest.basic_auth import LOGIN_MODULE
from support import apache
from support.apache_worker import ApacheWorker
from support.broker import running_broker
from support.distributed import DistributedWorker

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]

EXTENSION = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
COMPARED = (
    "Content-Type", "Vary", "X-Test", "WWW-Authenticate", "Access-Control-Allow-Origin", "Access-Control-Allow-Methods",
    "Access-Control-Allow-Headers", "Access-Control-Allow-Credentials", "Access-Control-Max-Age",
)  # fmt: skip
ALICE = {"Authorization": "Basic " + base64.b64encode(b"alice:secret").decode()}
BOB = {"Authorization": "Basic " + base64.b64encode(b"bob:p:w").decode()}
WRONG = {"Authorization": "Basic " + base64.b64encode(b"bob:p").decode()}
PERMITTED, OTHER = {"Origin": "http://example.com"}, {"Origin": "http://evil.com"}
PATTERN = {"Origin": "https://x.trusted.org"}
PREFLIGHT = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type"}
JSON = {"Content-Type": "application/json"}
SIGNED = {**JSON, "X-Connect-Authorization": "aaaa", "X-Connect-Request-Signature-Algorithm": "HmacSHA256"}

REQUESTS: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "/connectors", {}),
    ("HEAD", "/connectors", {}),
    ("GET", "/health", {}),
    ("GET", "/connectors", ALICE),
    ("GET", "/connectors", BOB),
    ("GET", "/connectors", WRONG),
    ("GET", "/connectors", {"Authorization": "Bearer abc"}),
    ("GET", "/connectors/", ALICE),
    ("GET", "/connectors/c/", ALICE),
    ("GET", "/admin/loggers/none", ALICE),
    ("POST", "/connectors/c/tasks", JSON),
    ("POST", "/connectors/c/tasks/", JSON),
    ("PUT", "/connectors/c/fence", {}),
    ("POST", "/connectors/c/tasks", {**SIGNED, "X-Connect-Request-Signature-Algorithm": "Foo"}),
    ("POST", "/connectors/c/tasks", {**SIGNED, "X-Connect-Request-Signature-Algorithm": "HmacSHA1"}),
    ("POST", "/connectors/c/tasks", SIGNED),
    ("PUT", "/connectors/c/fence", SIGNED),
    ("OPTIONS", "/connectors", {}),
    ("OPTIONS", "/connectors", ALICE),
    ("OPTIONS", "/connectors/c/config", ALICE),
    ("GET", "/connectors", {**ALICE, **PERMITTED}),
    ("GET", "/connectors", {**ALICE, **PATTERN}),
    ("GET", "/connectors", {**ALICE, **OTHER}),
    ("GET", "/connectors", PERMITTED),
    ("GET", "/connectors/c", {**ALICE, **PERMITTED}),
    ("OPTIONS", "/connectors/c/config", {**PERMITTED, **PREFLIGHT}),
    ("OPTIONS", "/connectors/c/config", {**ALICE, **PERMITTED, **PREFLIGHT}),
    ("OPTIONS", "/connectors/c/config", {**ALICE, **OTHER, **PREFLIGHT}),
]
# Apache Kafka sends these responses without a Content-Type.
ERRORS: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "/nothing", {}),
    ("OPTIONS", "/nothing", ALICE),
    ("DELETE", "/connectors", {}),
    ("DELETE", "/connectors", PERMITTED),
]


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApacheWorker, DistributedWorker]]:
    """A worker of Apache Kafka and one of headrace with the same settings, each in its own group."""
    directory = tmp_path_factory.mktemp("workers")
    (directory / "users").write_text("alice=secret\nbob=p:w\n")
    jaas = directory / "jaas.conf"
    jaas.write_text(f'KafkaConnect {{ {LOGIN_MODULE} required file="{directory}/users"; }};')

    def settings(name: str) -> dict[str, str]:
        topics = {f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")}
        return {
            "group.id": name,
            **topics,
            "rest.extension.classes": EXTENSION,
            "access.control.allow.origin": "http://example.com,https://.*\\\\.trusted\\\\.org",
            "access.control.allow.methods": "PUT",
            "response.http.headers.config": "add X-Test: one",
        }

    with pytest.MonkeyPatch.context() as environment, running_broker(directory) as broker:
        environment.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
        theirs = ApacheWorker(directory / "apache", broker.address, settings("apache"))
        ours = DistributedWorker(directory / "headrace", broker.address, settings("headrace"))
        theirs.user = ours.user = "alice:secret"
        with theirs, ours:
            yield theirs, ours


def response(worker: DistributedWorker, method: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
    """Send a request; return what must be equal in the responses of both workers."""
    address = urlsplit(worker.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    try:
        connection.request(method, path, b"[]" if method == "POST" else None, headers)
        received = connection.getresponse()
        body: Any = received.read().decode()
        if method == "OPTIONS" and received.status == 200:  # the order of the methods differs
            body = sorted(body.split(", "))
        allow = sorted((received.headers["Allow"] or "").split(","))
        found = {name: received.headers[name] for name in COMPARED}
        return {"status": received.status, "body": body, "allow": allow, **found}
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path", "headers"), REQUESTS)
def test_response_equals_that_of_apache_kafka(
    workers: tuple[ApacheWorker, DistributedWorker], method: str, path: str, headers: dict[str, str]
) -> None:
    theirs, ours = workers
    assert response(ours, method, path, headers) == response(theirs, method, path, headers)


@pytest.mark.parametrize(("method", "path", "headers"), ERRORS)
def test_error_response_equals_that_of_apache_kafka_except_for_its_content_type(
    workers: tuple[ApacheWorker, DistributedWorker], method: str, path: str, headers: dict[str, str]
) -> None:
    theirs, ours = workers
    found = response(ours, method, path, headers)
    assert found.pop("Content-Type") == "application/json"
    expected = response(theirs, method, path, headers)
    del expected["Content-Type"]
    assert found == expected
