"""Listeners, response headers and TLS keys: Apache's texts in, and a reason for what is none."""

from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.runtime.rest_config import HeaderAction, HeaderRule, Listener, Tls, header_rules
from headrace.runtime.worker_config import WorkerConfig

MINIMUM = {"key.converter": "K", "value.converter": "V"}
PEM = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/k.pem"}


@pytest.mark.parametrize(
    ("text", "scheme", "host", "port"),
    [
        ("http://:8083", "http", "", 8083),
        ("HTTPS://connect.example.org:443", "https", "connect.example.org", 443),
        ("http://[::1]:80", "http", "::1", 80),
    ],
)
def test_listeners(text: str, scheme: str, host: str, port: int) -> None:
    assert Listener.parse(text) == Listener(text, scheme, host, port)


@pytest.mark.parametrize("text", ["8083", "ftp://h:1", "http://h", "http://h:x", ""])
def test_what_is_no_listener(text: str) -> None:
    with pytest.raises(ValueError, match="is no listener; write http://HOST:PORT"):
        Listener.parse(text)


def test_header_rules_as_apaches_documentation_writes_them() -> None:
    text = '"add Cache-Control: no-cache, no-store, must-revalidate",add X-XSS-Protection: 1; mode=block'
    text += ", setDate Expires: 0"
    assert header_rules(text) == (
        HeaderRule(HeaderAction.ADD, "Cache-Control", "no-cache, no-store, must-revalidate"),
        HeaderRule(HeaderAction.ADD, "X-XSS-Protection", "1; mode=block"),
        HeaderRule(HeaderAction.SET_DATE, "Expires", "0"),
    )
    assert header_rules("") == ()


@pytest.mark.parametrize(
    "text", ["put A: b", "add A", "add : b", "add A B: c", "setDate A: soon", "set A: b\rc", "set A", "set Ä: b"]
)
def test_what_is_no_header_rule(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid header config"):
        header_rules(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("setDate Expires: 99999999999999999", "a thousand years from now"),
        ("addDate Date: -99999999999999", "a thousand years from now"),
        ("set Content-Length: 5", "where an answer ends"),
        ("add transfer-encoding: chunked", "where an answer ends"),
    ],
)
def test_headers_with_which_no_answer_could_be_sent(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        header_rules(text)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("listeners", "", "one listener at least"),
        ("listeners", "https://:8443", "ssl.keystore.type=JKS: https listeners take PEM only"),
        ("admin.listeners", "https://:8443", "ssl.keystore.type=JKS"),
        ("admin.listeners", "8083", "is no listener"),
        ("response.http.headers.config", "put A: b", "Expected one of set, add, setDate, addDate"),
        ("rest.extension.classes", "org.example.BasicAuth", "would be open to anybody"),
    ],
)
def test_the_key_at_fault_is_named(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        WorkerConfig.standalone({**MINIMUM, key: value})
    [error] = caught.value.errors
    assert error.key == key
    assert reason in str(error)


def test_listeners_of_every_kind_are_taken() -> None:
    config = WorkerConfig.standalone(
        {**MINIMUM, **PEM, "listeners": "http://:1,https://:2", "admin.listeners": "", "ssl.client.auth": "none"}
    )
    assert config["listeners"] == ["http://:1", "https://:2"]
    assert config["admin.listeners"] == []
    assert config.warnings == ()


def test_tls_keys_with_a_prefix_are_taken_alone() -> None:
    own = {"listeners.https.ssl.keystore.type": "PEM", "listeners.https.ssl.keystore.location": "/own.pem"}
    given = {**PEM, **own, "ssl.client.auth": "required"}
    assert Tls.of(given, admin=False) == Tls("/own.pem", None, None, None, None, None, "none")
    with pytest.raises(ValueError, match=r"ssl\.client\.auth=required needs ssl\.truststore\.location"):
        Tls.of(given, admin=True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"ssl.keystore.type": "PEM"}, "ssl.keystore.location is missing"),
        ({**PEM, "ssl.client.auth": "maybe"}, "ssl.client.auth=maybe: must be one of none, requested, required"),
        ({**PEM, "ssl.truststore.location": "/t.jks"}, "ssl.truststore.type=JKS: https listeners take PEM only"),
    ],
)
def test_what_https_lacks(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Tls.of(given, admin=False)
