"""Tests of the configuration keys for REST listeners, response headers and TLS, with valid and invalid values."""

from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.runtime.rest_config import (
    HeaderAction,
    HeaderRule,
    Listener,
    OriginPatterns,
    advertised_listener,
    header_rules,
    tls_settings,
)
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
def test_rest_listener_is_parsed_to_scheme_host_and_port(text: str, scheme: str, host: str, port: int) -> None:
    assert Listener.parse(text) == Listener(text, scheme, host, port)


@pytest.mark.parametrize("text", ["8083", "ftp://h:1", "http://h", "http://h:x", ""])
def test_invalid_rest_listener_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a listener; use http://HOST:PORT"):
        Listener.parse(text)


def test_response_header_rules_from_kafkas_documentation_are_parsed() -> None:
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
def test_invalid_response_header_rule_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="Invalid header config"):
        header_rules(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("setDate Expires: 99999999999999999", "a thousand years from now"),
        ("addDate Date: -99999999999999", "a thousand years from now"),
        ("set Content-Length: 5", "is set by the server and cannot be configured"),
        ("add transfer-encoding: chunked", "is set by the server and cannot be configured"),
    ],
)
def test_response_header_rule_that_would_break_responses_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        header_rules(text)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("listeners", "", "At least one listener is required"),
        ("listeners", "https://:8443", "ssl.keystore.location: is missing"),
        ("admin.listeners", "https://:8443", "ssl.keystore.location: is missing"),
        ("admin.listeners", "8083", "is not a listener"),
        ("response.http.headers.config", "put A: b", "Expected one of set, add, setDate, addDate"),
        (
            "rest.extension.classes",
            "org.example.BasicAuth",
            "org.example.BasicAuth is unknown: the only REST extension",
        ),
        ("rest.basic.auth.users.file", "/users", "has no effect without rest.extension.classes"),
        ("rest.advertised.listener", "ftp", "must be one of: http, https"),
        ("access.control.allow.origin", "*.example.org", "regular expressions such as"),
    ],
)
def test_error_for_an_invalid_rest_configuration_contains_the_key_and_the_reason(
    key: str, value: str, reason: str
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        WorkerConfig.standalone({**MINIMUM, key: value})
    [error] = caught.value.errors
    assert error.key == key
    assert reason in str(error)


def test_worker_accepts_http_and_https_listeners_and_an_empty_list_of_admin_listeners() -> None:
    config = WorkerConfig.standalone(
        {**MINIMUM, **PEM, "listeners": "http://:1,https://:2", "admin.listeners": "", "ssl.client.auth": "none"}
    )
    assert config["listeners"] == ["http://:1", "https://:2"]
    assert config["admin.listeners"] == []
    assert config.warnings == ()


def test_tls_settings_with_the_listener_prefix_replace_all_tls_settings_without_the_prefix() -> None:
    own = {"listeners.https.ssl.keystore.type": "PKCS12", "listeners.https.ssl.keystore.location": "/own.p12"}
    given = {**PEM, **own, "ssl.client.auth": "required", "ssl.endpoint.identification.algorithm": ""}
    tls = tls_settings(given, admin=False)
    assert (tls.keystore_location.value, tls.client_auth, tls.checks_host_name) == ("/own.p12", "none", True)
    tls = tls_settings(given, admin=True)
    assert (tls.keystore_location.value, tls.client_auth, tls.checks_host_name) == ("/k.pem", "required", False)


def test_tls_key_password_defaults_to_the_key_store_password() -> None:
    given = {**PEM, "ssl.keystore.password": "store", "ssl.truststore.password": "trust"}
    assert tls_settings(given, admin=False).key_password.value == "store"
    assert tls_settings({**given, "ssl.key.password": "key"}, admin=False).key_password.value == "key"


def test_certificates_of_the_key_store_are_trusted_unless_a_trust_store_is_set() -> None:
    tls = tls_settings({**PEM, "ssl.keystore.password": "store"}, admin=False)
    assert (tls.truststore_location.value, tls.truststore_password.value) == ("/k.pem", "store")
    tls = tls_settings({"ssl.keystore.key": "KEY", "ssl.keystore.certificate.chain": "CHAIN"}, admin=False)
    assert (tls.truststore_location.value, tls.truststore_certificates.value) == (None, "CHAIN")
    tls = tls_settings({**PEM, "ssl.truststore.location": "/t.pem"}, admin=False)
    assert (tls.truststore_location.value, tls.truststore_password.value) == ("/t.pem", None)
    assert not tls_settings({}, admin=False, is_client=True).has_trusted_certificates


def test_tls_client_configuration_without_a_key_store_is_accepted() -> None:
    assert not tls_settings({}, admin=False, is_client=True).has_key


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"ssl.keystore.type": "PEM"}, "ssl.keystore.location: is missing"),
        ({**PEM, "ssl.client.auth": "maybe"}, "ssl.client.auth: must be one of none, requested, required, not maybe"),
        ({**PEM, "ssl.truststore.type": "BKS"}, "ssl.truststore.type: must be one of JKS, PKCS12, PEM, not BKS"),
        ({**PEM, "ssl.enabled.protocols": "TLSv1.3,SSLv3"}, "ssl.enabled.protocols: SSLv3 is not supported"),
    ],
)
def test_missing_or_invalid_tls_settings_are_reported(given: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tls_settings(given, admin=False)


@pytest.mark.parametrize(
    ("listeners", "choice", "scheme", "text"),
    [
        (["https://:1", "http://:2", "http://:3"], None, "http", "http://:2"),
        (["https://:1", "http://:2"], "HTTPS", "https", "https://:1"),
        (["https://:1"], None, "https", "https://:1"),
        (["http://:1", "http://:2"], "https", "https", "http://:1"),
    ],
)
def test_advertised_listener_is_the_first_listener_with_the_configured_or_default_scheme(
    listeners: list[str], choice: str | None, scheme: str, text: str
) -> None:
    found, listener = advertised_listener(listeners, choice)
    assert (found, listener.text) == (scheme, text)


@pytest.mark.parametrize(
    ("text", "origin", "is_permitted"),
    [
        ("*", "http://any", True),
        ("http://a, *", "null", True),
        ("http://a.example.org", "http://a.example.org", True),
        ("http://a.example.org", "http://a.example.org.evil", False),
        (r"http://a,https://.*\.example\.org", "https://b.example.org", True),
        (r"http://a,https://.*\.example\.org", "http://b http://a", True),
        (r"http://a,https://.*\.example\.org", "https://example.org", False),
    ],
)
def test_allowed_origin_pattern_must_match_the_whole_origin(text: str, origin: str, is_permitted: bool) -> None:
    assert OriginPatterns.parse(text).match(origin) is is_permitted
