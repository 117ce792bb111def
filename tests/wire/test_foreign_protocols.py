"""Tests of clients that use TLS, HTTP or SASL on a PLAINTEXT listener."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest
from headrace_broker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace_broker.protocol.messages.sasl_handshake import SaslHandshakeRequest
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("foreign")) as process:
        yield process


def warnings(broker: BrokerProcess, before: int) -> list[str]:
    return [line for line in broker.log[before:].splitlines() if "Connection from" in line]


def test_tls_client_on_a_plaintext_listener_is_logged_as_a_tls_client(broker: BrokerProcess) -> None:
    before = len(broker.log)
    with socket.create_connection((broker.host, broker.port)) as client, pytest.raises((ssl.SSLError, ConnectionError)):
        ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
    (line,) = warnings(broker, before)
    assert "the client uses TLS, but listener PLAINTEXT is a PLAINTEXT listener" in line


def test_http_client_on_a_plaintext_listener_is_logged_as_an_http_client(broker: BrokerProcess) -> None:
    before = len(broker.log)
    client = http.client.HTTPConnection(broker.host, broker.port)
    client.request("GET", "/")
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        client.getresponse()
    client.close()
    (line,) = warnings(broker, before)
    assert "the client sent an HTTP request, but listener PLAINTEXT serves only Kafka's protocol" in line


def test_sasl_client_on_a_plaintext_listener_fails_with_illegal_sasl_state_and_is_logged(broker: BrokerProcess) -> None:
    before = len(broker.log)
    errors: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": "p",
            "error_cb": lambda error: errors.append(error.str()),
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + 10
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert "Request not valid in current SASL state" in errors[0]
    (line,) = warnings(broker, before)
    assert "the client requested SASL mechanism 'PLAIN', but listener PLAINTEXT is a PLAINTEXT listener" in line


def test_sasl_requests_on_a_plaintext_listener_return_illegal_sasl_state_and_keep_the_connection_open(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address) as client:
        for version in (0, 1):
            response = client.call(SaslHandshakeRequest(mechanism="PLAIN"), version)
            assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
        for version in (0, 2):
            response = client.call(SaslAuthenticateRequest(auth_bytes=b"\0u\0p"), version)
            assert (response.error_code, response.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
        assert client.call(ApiVersionsRequest(), 0).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "software_version"), [("", ""), ("", "1"), ("a", ""), ("a", "b c"), ("-a", "1"), ("a", "1.0-"), (" ", "1")]
)
@pytest.mark.parametrize("version", [3, 4])
def test_api_versions_request_with_an_invalid_software_name_or_version_fails(
    broker: BrokerProcess, name: str, software_version: str, version: int
) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version=software_version)
    with RawClient(broker.address) as client:
        response = client.call(request, version)
        assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])
        valid = ApiVersionsRequest(client_software_name="a.b-1", client_software_version="1")
        assert client.call(valid, version).error_code == ErrorCode.NONE
