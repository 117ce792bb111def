"""Tests of the connection properties of PostgreSQL's JDBC driver."""

from __future__ import annotations

import pytest

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.postgresql_properties import libpq_options


def test_jdbc_driver_properties_are_converted_to_libpq_options(caplog: pytest.LogCaptureFixture) -> None:
    given = {"ApplicationName": "a", "currentSchema": "s", "ssl": "true", "loginTimeout": "3", "tcpKeepAlive": "true"}
    assert libpq_options({**given, "sslrootcert": "/ca", "prepareThreshold": "0"}) == {
        "application_name": "a",
        "options": "-csearch_path=s",
        "sslmode": "verify-full",
        "connect_timeout": "3",
        "keepalives": "1",
        "sslrootcert": "/ca",
    }
    assert "Connection property prepareThreshold is ignored, because libpq has no such option\n" in caplog.text


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("passwrd", "connection.password"),
        ("attemps", "connection.attempts"),
        ("aplication_name", "application_name"),
        ("connectTimout", "connectTimeout"),
    ],
)
def test_warning_about_an_unknown_postgresql_property_contains_the_most_similar_name(
    caplog: pytest.LogCaptureFixture, name: str, known: str
) -> None:
    libpq_options({name: "1"})
    assert f"{name} is ignored, because libpq has no such option; did you mean {known}?" in caplog.text


@pytest.mark.parametrize(
    ("properties", "options"),
    [
        ({"currentSchema": "s1, s2"}, r"-csearch_path=s1,\ s2"),
        ({"currentSchema": r"a\b"}, r"-csearch_path=a\\b"),
        ({"options": "-c statement_timeout=5s", "currentSchema": "s"}, "-c statement_timeout=5s -csearch_path=s"),
        ({"currentSchema": "s", "options": "-c statement_timeout=5s"}, "-c statement_timeout=5s -csearch_path=s"),
    ],
)
def test_property_current_schema_is_appended_to_the_options_of_the_postgresql_connection(
    properties: dict[str, str], options: str
) -> None:
    assert libpq_options(properties) == {"options": options}


@pytest.mark.parametrize(
    ("properties", "mode"),
    [
        ({"ssl": "true"}, "verify-full"),
        ({"ssl": ""}, "verify-full"),
        ({"ssl": "false"}, "prefer"),
        ({"ssl": "true", "sslfactory": "org.postgresql.ssl.NonValidatingFactory"}, "require"),
        ({"sslfactory": "org.postgresql.ssl.NonValidatingFactory", "ssl": "true"}, "require"),
        ({"sslmode": "disable", "sslfactory": "org.postgresql.ssl.NonValidatingFactory"}, "disable"),
        ({"ssl": "true", "sslfactory": "org.postgresql.ssl.LibPQFactory"}, "verify-full"),
        ({"ssl": "true", "sslmode": "require"}, "require"),
    ],
)
def test_ssl_mode_is_derived_from_the_properties_as_in_the_postgresql_jdbc_driver(
    properties: dict[str, str], mode: str
) -> None:
    assert libpq_options(properties) == {"sslmode": mode}


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        (
            {"sslfactory": "org.postgresql.ssl.DefaultJavaSSLFactory"},
            "DefaultJavaSSLFactory is not supported: set sslmode",
        ),
        ({"sslhostnameverifier": "x.Y"}, "sslhostnameverifier is not supported"),
        ({"targetServerType": "nearest"}, "targetServerType=nearest is not supported"),
    ],
)
def test_postgresql_connection_property_that_is_not_supported_is_rejected(
    properties: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        libpq_options(properties)


def test_postgresql_connection_properties_for_several_hosts_are_converted_to_libpq_options() -> None:
    assert libpq_options({"targetServerType": "preferSecondary", "loadBalanceHosts": "true"}) == {
        "target_session_attrs": "prefer-standby",
        "load_balance_hosts": "random",
    }
