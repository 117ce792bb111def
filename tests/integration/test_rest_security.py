"""Tests of workers whose REST API is protected: basic authentication, https with client certificates, signatures.

The expected statuses, texts and headers are those of Apache Kafka 4.3.1. test_rest_security_jvm.py checks them against
Apache Kafka.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from headrace.rest.basic_auth import LOGIN_MODULE
from support.broker import BrokerProcess, running_broker
from support.certificates import Certificates, create_certificates
from support.distributed import DistributedWorker, is_running, owners
from support.ports import free_port
from support.topics import read_topic
from support.worker import RestError, Worker, wait_for

pytestmark = pytest.mark.integration

EXTENSION = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
TIMEOUT_S = 60
DENIED = "User cannot access the resource."


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create_certificates(tmp_path_factory.mktemp("certificates"))


def group_settings(name: str) -> dict[str, str]:
    topics = {f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")}
    return {"group.id": name, **topics}


def write_users(directory: Path) -> Path:
    """Write a credentials file, and a JAAS file that names the credentials file. Return the path of the JAAS file."""
    (directory / "users.properties").write_text("alice=secret\nbob=p:w\n")
    file = directory / "jaas.conf"
    file.write_text(f'KafkaConnect {{\n  {LOGIN_MODULE} required\n  file="{directory}/users.properties";\n}};\n')
    return file


@pytest.fixture(scope="module")
def secure_group(
    broker: BrokerProcess, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[DistributedWorker]]:
    """Run two workers with https, required client certificates and basic authentication.

    The first worker is the leader.
    """
    directory = tmp_path_factory.mktemp("secure")
    settings = {
        **group_settings("secure"),
        **certificates.settings(),
        "listeners.https.ssl.client.auth": "required",
        "rest.extension.classes": EXTENSION,
    }
    workers = []
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={write_users(directory)}")
        for number in range(2):
            own = {**settings, "listeners": f"https://127.0.0.1:{free_port()}"}
            worker = DistributedWorker(directory / f"worker-{number}", broker.address, own)
            worker.tls, worker.user = certificates.client_context(identify=True), "alice:secret"
            workers.append(worker)
        with workers[0], workers[1]:
            yield workers


def send(
    worker: Worker,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] = {},
    url: str | None = None,
) -> tuple[int, http.client.HTTPMessage, str]:
    """Send a request to `url`, or to the URL of `worker` if `url` is None, without the worker's credentials.

    Return status, headers and body of the response.
    """
    address = urlsplit(url or worker.url)
    host, port = address.hostname or "", address.port
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=worker.tls)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def basic(user: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}


def file_source(directory: Path, **more: str) -> dict[str, str]:
    (directory / "lines.txt").write_text("a\nb\n")
    config = {"connector.class": "FileStreamSource", "file": str(directory / "lines.txt"), "topic": "lines"}
    return {**config, "value.converter": "StringConverter", **more}


def wait_for_a_connector_on_each(workers: list[DistributedWorker], names: tuple[str, ...]) -> None:
    ids = {worker.worker_id for worker in workers}
    wait_for(
        lambda: {owners(workers[0], name)[None][1] for name in names} == ids, "each worker has a connector", TIMEOUT_S
    )


# Basic authentication


@pytest.mark.parametrize(
    "headers", [{}, basic("alice:wrong"), basic("carol:secret"), {"Authorization": "Bearer x"}, {"Authorization": "x"}]
)
@pytest.mark.parametrize("path", ["/", "/health", "/connectors", "/connectors/none", "/admin/loggers", "/metrics"])
def test_request_without_valid_credentials_returns_401(
    secure_group: list[DistributedWorker], headers: dict[str, str], path: str
) -> None:
    for worker in secure_group:
        status, found, body = send(worker, "GET", path, headers=headers)
        assert (status, body) == (401, DENIED)
        assert found["Content-Type"] == "application/json"
        assert found["WWW-Authenticate"] is None


def test_users_of_the_jaas_file_are_accepted(secure_group: list[DistributedWorker]) -> None:
    for worker in secure_group:
        for user in ("alice:secret", "bob:p:w"):
            assert send(worker, "GET", "/connectors", headers=basic(user))[::2] == (200, "[]")


def test_request_without_credentials_returns_404_for_an_unknown_path_and_405_for_an_unsupported_method(
    secure_group: list[DistributedWorker],
) -> None:
    worker = secure_group[0]
    assert send(worker, "GET", "/nothing")[0] == 404
    assert send(worker, "DELETE", "/connectors")[0] == 405
    status, headers, body = send(worker, "OPTIONS", "/connectors")
    assert (status, headers["Content-Type"], body) == (401, "text/plain", DENIED)
    assert send(worker, "OPTIONS", "/connectors", headers=basic("bob:p:w"))[0] == 200


def test_internal_requests_need_a_signature_instead_of_credentials(secure_group: list[DistributedWorker]) -> None:
    expected = {"error_code": 400, "message": "Internal request missing required signature"}
    for worker in secure_group:
        for method, path in (("POST", "/connectors/c/tasks"), ("PUT", "/connectors/c/fence")):
            for slash in ("", "/"):
                status, _, body = send(worker, method, path + slash, b"[]", {"Content-Type": "application/json"})
                assert (status, json.loads(body)) == (400, expected)
        assert send(worker, "GET", "/connectors/c/tasks")[0] == 401


def test_workers_forward_requests_and_task_configurations_over_https_with_the_users_credentials(
    secure_group: list[DistributedWorker], tmp_path: Path
) -> None:
    """Each worker runs one of the two connectors, so the follower sends its task configurations to the leader."""
    follower = secure_group[1]
    for name in ("one", "two"):
        assert follower.create(name, file_source(tmp_path))["name"] == name
    for name in ("one", "two"):
        wait_for(lambda n=name: is_running(follower, n, 1), f"{name} is running", TIMEOUT_S)
    wait_for_a_connector_on_each(secure_group, ("one", "two"))
    for worker in secure_group:
        for name in ("one", "two"):
            worker.request("POST", f"/connectors/{name}/restart")
    follower.user = "alice:wrong"
    with pytest.raises(RestError) as caught:
        follower.request("DELETE", "/connectors/one")
    assert (caught.value.status, caught.value.body) == (401, DENIED)
    follower.user = "bob:p:w"
    for name in ("one", "two"):
        follower.request("DELETE", f"/connectors/{name}")
    follower.user = "alice:secret"


def test_client_without_certificate_or_with_plain_http_is_rejected(
    secure_group: list[DistributedWorker], certificates: Certificates
) -> None:
    worker = secure_group[0]
    address = urlsplit(worker.url)
    for context in (certificates.client_context(identify=False), ssl.create_default_context()):
        connection = http.client.HTTPSConnection("127.0.0.1", address.port, timeout=TIMEOUT_S, context=context)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _get_status(connection)
        connection.close()
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        send(worker, "GET", "/connectors", url=f"http://127.0.0.1:{address.port}")


def _get_status(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/connectors")
    return connection.getresponse().status  # with TLS 1.3, only this call shows that the server rejects the client


def test_admin_listeners_require_credentials_from_rest_basic_auth_users_file(tmp_path: Path) -> None:
    write_users(tmp_path)
    admin = f"http://127.0.0.1:{free_port()}"
    settings = {
        "rest.extension.classes": EXTENSION,
        "rest.basic.auth.users.file": str(tmp_path / "users.properties"),
        "admin.listeners": admin,
    }
    worker = Worker(tmp_path, settings)
    worker.user = "alice:secret"
    with worker:
        assert send(worker, "GET", "/admin/loggers", url=admin)[::2] == (401, DENIED)
        assert send(worker, "GET", "/admin/loggers", headers=basic("alice:secret"), url=admin)[0] == 200
        document = worker.request("GET", "/openapi.json")
        assert document["components"]["securitySchemes"] == {"basic": {"type": "http", "scheme": "basic"}}
        assert document["paths"]["/connectors"]["get"]["security"] == [{"basic": []}]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"rest.extension.classes": "com.example.Ldap"}, "com.example.Ldap is unknown: the only REST extension is"),
        ({"rest.extension.classes": EXTENSION}, "no users are configured: set rest.basic.auth.users.file"),
        (
            {"rest.extension.classes": EXTENSION, "rest.basic.auth.users.file": "/none/users"},
            "cannot read the users of /none/users: No such file or directory",
        ),
    ],
)
def test_worker_with_an_unusable_authentication_configuration_exits_with_an_error(
    tmp_path: Path, settings: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_OPTS", raising=False)
    worker = Worker(tmp_path, settings)
    result = worker.run()
    assert result.returncode == 2
    assert "rest.extension.classes" in result.stderr
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


# Signatures (KIP-507)


def session_keys(broker: BrokerProcess, topic: str) -> list[dict[str, Any]]:
    messages = read_topic(broker.address, topic)
    return [json.loads(message.value() or b"") for message in messages if message.key() == b"session-key"]


def signed(key: Mapping[str, Any], body: bytes) -> dict[str, str]:
    mac = hmac.new(base64.b64decode(key["key"]), body, hashlib.sha256).digest()
    return {
        "Content-Type": "application/json",
        "X-Connect-Authorization": base64.b64encode(mac).decode(),
        "X-Connect-Request-Signature-Algorithm": "HmacSHA256",
    }


def error_of(worker: Worker, headers: Mapping[str, str]) -> tuple[int, str]:
    status, _, body = send(worker, "POST", "/connectors/none/tasks", b"[]", headers)
    return status, json.loads(body)["message"]


def test_leader_replaces_an_expired_session_key_and_workers_reject_the_old_key(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    settings = {**group_settings("rotation"), "inter.worker.key.ttl.ms": "3000"}
    wrong, valid = (403, "Internal request contained invalid signature."), (404, "Connector none not found")
    workers = [DistributedWorker(tmp_path / name, broker.address, settings) for name in ("leader", "follower")]
    with workers[0] as leader, workers[1] as follower:
        wait_for(lambda: len(session_keys(broker, "rotation-config")) > 1, "a second session key", TIMEOUT_S)
        first, *_ = session_keys(broker, "rotation-config")
        assert first["algorithm"] == "HmacSHA256"
        assert len(base64.b64decode(first["key"])) == 32
        for worker in (leader, follower):
            wait_for(lambda w=worker: error_of(w, signed(first, b"[]")) == wrong, "the first key is invalid", TIMEOUT_S)
            # The key may be replaced between reading it and sending the request.
            wait_for(
                lambda w=worker: error_of(w, signed(session_keys(broker, "rotation-config")[-1], b"[]")) == valid,
                "the last key is valid",
                TIMEOUT_S,
            )
        for name in ("one", "two"):  # one of the connectors runs on the follower, which signs its task configurations
            leader.create(name, file_source(tmp_path))
        for name in ("one", "two"):
            wait_for(lambda n=name: is_running(leader, n, 1), f"{name} is running", TIMEOUT_S)
        wait_for_a_connector_on_each([leader, follower], ("one", "two"))


def test_internal_request_returns_503_until_the_worker_has_read_a_session_key(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """At first, the config topic rejects the session key, because its record exceeds the topic's max.message.bytes."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    config = {"cleanup.policy": "compact", "max.message.bytes": "100"}
    [created] = admin.create_topics([NewTopic("unknown-config", 1, 1, config=config)]).values()
    created.result(TIMEOUT_S)
    with DistributedWorker(tmp_path, broker.address, group_settings("unknown")) as worker:
        any_key = {"key": base64.b64encode(bytes(32)).decode()}
        text = "This worker is still starting up and has not been able to read a session key from the config topic yet"
        assert error_of(worker, signed(any_key, b"[]")) == (503, text)
        assert error_of(worker, {}) == (400, "Internal request missing required signature")
        unavailable = {**signed(any_key, b"[]"), "X-Connect-Request-Signature-Algorithm": "Foo"}
        assert error_of(worker, unavailable) == (400, "Algorithm Foo not available")
        size = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "unknown-config", incremental_configs=[size])
        [altered] = admin.incremental_alter_configs([resource]).values()
        altered.result(TIMEOUT_S)
        wait_for(lambda: error_of(worker, signed(any_key, b"[]"))[0] == 403, "the worker knows a key", TIMEOUT_S)
        [key] = session_keys(broker, "unknown-config")
        assert error_of(worker, signed(key, b"[]")) == (404, "Connector none not found")
