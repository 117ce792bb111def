"""Tests of the Elasticsearch sink with a real OpenSearch server that requires TLS, client certificates and a user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from headrace.api.errors import ConnectError
from headrace.data.records import SinkRecord
from headrace.testing import run_sink
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support import http_proxy, search_server
from support.certificates import PASSWORD, Certificates, create_certificates, write_jks_files
from support.credentials_change import check_credentials_change
from support.elasticsearch_task import put_until_error, validation_errors
from support.search_server import SearchServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[SearchServer]:
    with search_server.running_opensearch_with_security(certificates) as running:
        yield running


def props(server: SearchServer, certificates: Certificates, **changes: str | None) -> dict[str, str]:
    settings = {
        "connection.url": server.url,
        "connection.username": "admin",
        "connection.password": "admin",
        "elastic.security.protocol": "SSL",
        "elastic.https.ssl.truststore.location": str(certificates.authority),
        "elastic.https.ssl.keystore.location": str(certificates.client),
        "key.ignore": "true",
        "schema.ignore": "true",
        "read.timeout.ms": "60000",
    }
    settings |= {key.replace("__", "."): value for key, value in changes.items()}  # type: ignore[dict-item]
    return {key: value for key, value in settings.items() if value is not None}


def record(offset: int) -> SinkRecord:
    return SinkRecord(topic="items", partition=0, offset=offset, value={"id": offset}, timestamp=0)


def test_documents_are_stored_over_tls_with_a_client_certificate_and_a_user(
    server: SearchServer, certificates: Certificates
) -> None:
    settings = props(server, certificates)
    assert validation_errors(settings) == {}
    run = run_sink(ElasticsearchSinkConnector, settings, [record(offset) for offset in range(5)])
    assert run.committed == {("items", 0): 5}
    assert server.documents("items") == {f"items+0+{offset}": {"id": offset} for offset in range(5)}


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"connection__password": "wrong"}, "connection.username", "failed with status 401"),
        ({"elastic__https__ssl__truststore__location": None}, "connection.url", "certificate verify failed"),
        ({"elastic__https__ssl__keystore__location": None}, "connection.url", "bad certificate"),
    ],
)
def test_validation_errors_and_task_errors_name_the_server_that_denies_access(
    server: SearchServer, certificates: Certificates, changes: dict[str, Any], key: str, message: str
) -> None:
    settings = props(server, certificates, **changes)
    found = validation_errors(settings)
    assert list(found) == [key]
    assert server.url in found[key][0]
    assert message in found[key][0]
    with pytest.raises(ConnectError, match=message):
        put_until_error({**settings, "max.retries": "0"}, [record(0)])


def test_trusted_certificates_may_be_a_value_of_the_configuration(
    server: SearchServer, certificates: Certificates
) -> None:
    """The value of elastic.https.ssl.truststore.certificates may contain escaped line breaks."""
    text = certificates.authority.read_text().replace("\n", "\\n")
    settings = props(server, certificates, elastic__https__ssl__truststore__location=None)
    assert validation_errors({**settings, "elastic.https.ssl.truststore.certificates": text}) == {}


@pytest.mark.parametrize(
    ("keys", "is_accepted"),
    [
        ({"elastic.https.ssl.key.password": PASSWORD}, True),
        ({"elastic.https.ssl.keystore.password": PASSWORD}, True),
        ({"elastic.https.ssl.key.password": PASSWORD, "elastic.https.ssl.keystore.password": "wrong"}, True),
        ({"elastic.https.ssl.key.password": "wrong"}, False),
    ],
)
def test_password_of_the_client_key_is_configured(
    server: SearchServer, certificates: Certificates, tmp_path: Path, keys: dict[str, str], is_accepted: bool
) -> None:
    pem = certificates.client.read_bytes()
    key = load_pem_private_key(pem, None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode()))
    file = tmp_path / "encrypted.pem"
    file.write_bytes(encrypted + pem[pem.index(b"-----BEGIN CERTIFICATE") :])
    errors = validation_errors(props(server, certificates, elastic__https__ssl__keystore__location=str(file)) | keys)
    key = "elastic.https.ssl.key.password"
    assert list(errors) == ([] if is_accepted else [key])
    assert is_accepted or "the password of the private key" in errors[key][0]


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_documents_are_stored_with_the_certificates_and_the_key_of_javas_key_stores(
    server: SearchServer, certificates: Certificates, tmp_path: Path, kind: str
) -> None:
    """The configuration is one for Confluent's connector."""
    settings = props(server, certificates, elastic__https__ssl__truststore__location=None)
    stores = certificates.trust_store, certificates.client_store
    if kind == "JKS":
        stores = write_jks_files(certificates, tmp_path)
    for name, store in zip(("truststore", "keystore"), stores, strict=True):
        prefix = f"elastic.https.ssl.{name}."
        settings |= {f"{prefix}location": str(store), f"{prefix}password": PASSWORD, f"{prefix}type": kind}
    settings["elastic.https.ssl.key.password"] = PASSWORD
    assert validation_errors(settings) == {}
    topic = f"stores-{kind.lower()}"
    run_sink(ElasticsearchSinkConnector, settings, [record(0).replace(topic=topic)])
    assert list(server.documents(topic)) == [f"{topic}+0+0"]
    wrong = validation_errors(settings | {"elastic.https.ssl.truststore.password": "wrong"})
    assert list(wrong) == ["elastic.https.ssl.truststore.location"]
    assert "password is wrong" in wrong["elastic.https.ssl.truststore.location"][0]


@pytest.mark.skipif(http_proxy.unavailable_reason() is not None, reason=str(http_proxy.unavailable_reason()))
def test_requests_with_tls_are_sent_through_a_tunnel_of_a_proxy(
    server: SearchServer, certificates: Certificates, tmp_path: Path
) -> None:
    with http_proxy.running(tmp_path) as proxy:
        settings = props(server, certificates) | proxy.settings()
        assert validation_errors(settings) == {}
        run_sink(ElasticsearchSinkConnector, settings, [record(0).replace(topic="tunnel")])
        assert proxy.requests("CONNECT") >= 2
        localhost = settings | {"connection.url": server.url.replace("127.0.0.1", "localhost")}
        ((_, errors),) = validation_errors(localhost).items()
        unchecked = localhost | {"elastic.https.ssl.endpoint.identification.algorithm": ""}
        assert validation_errors(unchecked) == {}
        ((_, denied),) = validation_errors(props(server, certificates) | proxy.address()).items()
    assert list(server.documents("tunnel")) == ["tunnel+0+0"]
    assert "certificate is not valid for 'localhost'" in errors[0]
    assert "407" in denied[0]


@pytest.mark.parametrize(("algorithm", "is_accepted"), [("https", False), ("", True)])
def test_host_name_of_the_server_is_checked_unless_the_identification_algorithm_is_empty(
    server: SearchServer, certificates: Certificates, algorithm: str, is_accepted: bool
) -> None:
    """The server's certificate is valid for 127.0.0.1, but not for localhost."""
    changes = {"elastic.https.ssl.endpoint.identification.algorithm": algorithm}
    settings = props(server, certificates, connection__url=server.url.replace("127.0.0.1", "localhost")) | changes
    errors = validation_errors(settings)
    assert list(errors) == ([] if is_accepted else ["connection.url"])
    assert is_accepted or "certificate is not valid for 'localhost'" in errors["connection.url"][0]


def test_user_with_privileges_for_a_single_index_passes_validation_and_stores_documents(
    server: SearchServer, certificates: Certificates
) -> None:
    security = "/_plugins/_security/api"
    actions = ["create_index", "write", "indices:admin/get", "indices:admin/mappings/get", "indices:admin/mapping/put"]
    role = {
        "cluster_permissions": ["indices:data/write/bulk"],
        "index_permissions": [{"index_patterns": ["limited"], "allowed_actions": actions}],
    }
    server.request("PUT", f"{security}/roles/writer", role)
    server.request("PUT", f"{security}/internalusers/writer", {"password": "limited-Secret-79"})
    server.request("PUT", f"{security}/rolesmapping/writer", {"users": ["writer"]})
    settings = props(server, certificates, connection__username="writer", connection__password="limited-Secret-79")
    assert validation_errors(settings) == {}
    records = [record(offset).replace(topic="limited") for offset in range(5)]
    assert run_sink(ElasticsearchSinkConnector, settings, records).committed == {("limited", 0): 5}
    assert sorted(server.documents("limited")) == [f"limited+0+{offset}" for offset in range(5)]
    with pytest.raises(ConnectError, match=r"/items failed with status 403.*connection\.username"):
        put_until_error(settings, [record(0)])


def test_password_change_on_the_server_fails_the_task_and_all_documents_are_stored_after_a_configuration_change(
    server: SearchServer, certificates: Certificates, tmp_path: Path
) -> None:
    user = "/_plugins/_security/api/internalusers/loader"
    server.request("PUT", user, {"password": "first-Secret-77", "backend_roles": ["admin"]})
    settings = props(server, certificates, connection__username="loader", connection__password="first-Secret-77")

    def change_password() -> dict[str, str]:
        server.request("PUT", user, {"password": "second-Secret-78", "backend_roles": ["admin"]})
        return {"connection.password": "second-Secret-78"}

    trace = check_credentials_change(tmp_path, server, "rotated", settings, change_password)
    assert f"Elasticsearch at {server.url}" in trace
    assert "status 401" in trace
