"""Compares the responses of Apache Kafka's and headrace's workers: basic authentication, CORS, OPTIONS, signatures.

Workers of both kinds also share a group in which all requests between workers use https and client certificates.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.rest.basic_auth import LOGIN_MODULE
from support import apache
from support.apache_worker import ApacheWorker
from support.broker import running_broker
from support.certificates import PASSWORD, create_certificates
from support.distributed import DistributedWorker, is_running, owners
from support.ports import free_port
from support.worker import wait_for

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
    """Run a worker of Apache Kafka and a worker of headrace with the same settings, each in its own group."""
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
    """Send a request. Return the parts of the response that the tests compare: status, body and some headers."""
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
def test_rest_response_equals_the_response_of_apache_kafka(
    workers: tuple[ApacheWorker, DistributedWorker], method: str, path: str, headers: dict[str, str]
) -> None:
    theirs, ours = workers
    assert response(ours, method, path, headers) == response(theirs, method, path, headers)


@pytest.mark.parametrize(("method", "path", "headers"), ERRORS)
def test_rest_error_response_equals_the_response_of_apache_kafka_except_for_its_content_type(
    workers: tuple[ApacheWorker, DistributedWorker], method: str, path: str, headers: dict[str, str]
) -> None:
    theirs, ours = workers
    found = response(ours, method, path, headers)
    assert found.pop("Content-Type") == "application/json"
    expected = response(theirs, method, path, headers)
    del expected["Content-Type"]
    assert found == expected


def test_error_for_an_unknown_logger_begins_with_the_message_of_apache_kafka(
    workers: tuple[ApacheWorker, DistributedWorker],
) -> None:
    theirs, ours = (response(each, "GET", "/admin/loggers/none", ALICE) for each in workers)
    expected, found = (json.loads(each.pop("body")) for each in (theirs, ours))
    assert ours == theirs
    assert found["message"].startswith(expected.pop("message"))
    assert found["error_code"] == expected["error_code"]


@pytest.mark.parametrize("leader", ["apache", "headrace"])
def test_headrace_and_kafka_workers_forward_requests_over_https_with_client_certificates_and_credentials(
    leader: str, tmp_path: Path
) -> None:
    """`leader` is the kind of the first worker, which leads the group.

    Both workers use the same key store. Because no trust store is configured, the workers trust the certificate in the
    key store.
    """
    certificates = create_certificates(tmp_path)
    (tmp_path / "users").write_text("alice=secret\n")
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(f'KafkaConnect {{ {LOGIN_MODULE} required file="{tmp_path}/users"; }};')
    (tmp_path / "lines.txt").write_text("a\n")
    settings = {
        "rest.extension.classes": EXTENSION,
        "listeners.https.ssl.keystore.type": "PKCS12",
        "listeners.https.ssl.keystore.location": str(certificates.key_store),
        "listeners.https.ssl.keystore.password": PASSWORD,
        "listeners.https.ssl.client.auth": "required",
    }
    context = certificates.client_context(identify=True)
    context.load_cert_chain(certificates.server)
    with pytest.MonkeyPatch.context() as environment, running_broker(tmp_path) as broker, ExitStack() as stack:
        environment.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
        workers: list[DistributedWorker] = []
        for name in sorted(("apache", "headrace"), key=lambda each: each != leader):
            kind = ApacheWorker if name == "apache" else DistributedWorker
            listener = {"listeners": f"https://127.0.0.1:{free_port()}"}
            worker = kind(tmp_path / name, broker.address, {**settings, **listener})
            worker.tls, worker.user = context, "alice:secret"
            workers.append(stack.enter_context(worker))
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "file": str(tmp_path / "lines.txt"),
            "topic": "lines",
        }
        names = ("one", "two")
        for worker, name in zip(workers, names, strict=True):
            worker.create(name, config)
        for worker in workers:
            for name in names:
                wait_for(lambda w=worker, n=name: is_running(w, n, 1), f"{name} is running", 60)
        ids = {each.worker_id for each in workers}
        wait_for(lambda: {owners(workers[0], name)[None][1] for name in names} == ids, "each has a connector", 60)
        for worker in workers:
            for name in names:
                worker.request("POST", f"/connectors/{name}/restart")
        for worker, name in zip(workers, names, strict=True):
            worker.request("DELETE", f"/connectors/{name}")
