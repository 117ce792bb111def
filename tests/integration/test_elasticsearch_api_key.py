"""Tests of the Elasticsearch sink's `connection.api.key` with a real Elasticsearch server that requires TLS."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.api.errors import ConnectError
from headrace.data.records import SinkRecord
from headrace.data.schema import INT32_SCHEMA, struct
from headrace.data.struct import Struct
from headrace.testing import run_sink
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support import search_server
from support.certificates import Certificates, create_certificates
from support.credentials_change import check_credentials_change
from support.elasticsearch_task import put_until_error, validation_errors
from support.search_server import SearchServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
    pytest.mark.skipif(shutil.which("javac") is None, reason="javac is not on the path: a JDK 17 is needed"),
]
ROW = struct([("id", INT32_SCHEMA)])


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key: its id, and the encoded text that a client sends."""

    id: str
    encoded: str


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[SearchServer]:
    with search_server.running_elasticsearch_with_security(certificates) as running:
        yield running


def create_key(server: SearchServer, index: str) -> ApiKey:
    """Create an API key with the privileges that the sink needs for one index, and no others."""
    privileges = ["create_index", "write", "view_index_metadata"]
    role = {"indices": [{"names": [index], "privileges": privileges}]}
    created = server.request("POST", "/_security/api_key", {"name": "sink", "role_descriptors": {"sink": role}})
    return ApiKey(created["id"], created["encoded"])


def invalidate(server: SearchServer, key: ApiKey) -> None:
    response = server.request("DELETE", "/_security/api_key", {"ids": [key.id]})
    assert response["invalidated_api_keys"] == [key.id]


def props(server: SearchServer, certificates: Certificates, api_key: str, **more: str) -> dict[str, str]:
    return {
        "connection.url": server.url,
        "connection.api.key": api_key,
        "elastic.security.protocol": "SSL",
        "elastic.https.ssl.truststore.location": str(certificates.authority),
        "key.ignore": "true",
        "read.timeout.ms": "60000",
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def record(topic: str, offset: int) -> SinkRecord:
    value = Struct(ROW, {"id": offset})
    return SinkRecord(topic=topic, partition=0, offset=offset, value=value, value_schema=ROW, timestamp=0)


@pytest.mark.parametrize("schema_ignore", ["true", "false"])
def test_documents_are_stored_with_an_api_key_that_has_privileges_for_one_index_only(
    server: SearchServer, certificates: Certificates, schema_ignore: str
) -> None:
    index = f"items-{schema_ignore}"
    settings = props(server, certificates, create_key(server, index).encoded, schema__ignore=schema_ignore)
    assert validation_errors(settings) == {}
    run = run_sink(ElasticsearchSinkConnector, settings, [record(index, offset) for offset in range(5)])
    assert run.committed == {(index, 0): 5}
    assert server.documents(index) == {f"{index}+0+{offset}": {"id": offset} for offset in range(5)}
    mapping = server.request("GET", f"/{index}/_mapping")[index]["mappings"]
    assert mapping == {"properties": {"id": {"type": "long" if schema_ignore == "true" else "integer"}}}


@pytest.mark.parametrize("kind", ["unknown", "wrong secret", "not encoded", "invalidated"])
def test_task_and_validation_fail_if_the_api_key_is_wrong_or_invalidated(
    server: SearchServer, certificates: Certificates, kind: str
) -> None:
    """The validation error belongs to the configuration key `connection.api.key`. No error contains the API key."""
    key = create_key(server, "wrong")
    if kind == "invalidated":
        invalidate(server, key)
    secrets = {
        "unknown": base64.b64encode(b"no-such-id:no-such-secret").decode(),
        "wrong secret": base64.b64encode(f"{key.id}:wrong".encode()).decode(),
        "not encoded": "no-such-key",
        "invalidated": key.encoded,
    }
    settings = props(server, certificates, secrets[kind])
    found = validation_errors(settings)
    assert list(found) == ["connection.api.key"]
    [error] = found["connection.api.key"]
    assert f"Elasticsearch at {server.url}: GET / failed with status 401" in error
    assert "connection.api.key" in error
    assert secrets[kind] not in error
    with pytest.raises(ConnectError, match=r"failed with status 401.*connection\.api\.key") as raised:
        put_until_error(settings, [record("wrong", 0)])
    assert secrets[kind] not in str(raised.value)


def test_task_whose_api_key_has_no_privileges_for_the_index_fails_and_the_error_names_connection_api_key(
    server: SearchServer, certificates: Certificates
) -> None:
    settings = props(server, certificates, create_key(server, "allowed").encoded)
    with pytest.raises(ConnectError, match=r"/forbidden failed with status 403.*connection\.api\.key"):
        put_until_error(settings, [record("forbidden", 0)])


def test_invalidated_api_key_fails_the_task_and_all_documents_are_stored_after_a_configuration_change(
    server: SearchServer, certificates: Certificates, tmp_path: Path
) -> None:
    first = create_key(server, "replaced")

    def replace_key() -> dict[str, str]:
        invalidate(server, first)
        return {"connection.api.key": create_key(server, "replaced").encoded}

    settings = props(server, certificates, first.encoded, schema__ignore="true")
    trace = check_credentials_change(tmp_path, server, "replaced", settings, replace_key)
    assert f"Elasticsearch at {server.url}" in trace
    assert "status 401" in trace
    assert "connection.api.key" in trace
    assert first.encoded not in trace
