"""Tests of the connection properties of MySQL's and MariaDB's JDBC drivers."""

from __future__ import annotations

import ssl
from typing import Any

import pytest

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.mysql_properties import MysqlProperties, mysql_properties

BASE: dict[str, Any] = {"charset": "utf8mb4", "connect_timeout": 10}


def convert(is_mariadb: bool = False, **properties: str) -> MysqlProperties:
    return mysql_properties(properties, is_mariadb=is_mariadb)


@pytest.mark.parametrize(
    "properties",
    [{}, {"sslMode": "PREFERRED"}, {"useSSL": "true"}, {"useSSL": "true", "requireSSL": "false"}],
)
def test_encryption_of_mysql_connections_is_optional_by_default(properties: dict[str, str]) -> None:
    assert convert(**properties).arguments == BASE


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"connectTimeout": "5000"}, {"connect_timeout": 5}),
        ({"connectTimeout": "0"}, {"connect_timeout": 31_536_000}),
        ({"socketTimeout": "30000"}, {"read_timeout": 30, "write_timeout": 30}),
        ({"socketTimeout": "1"}, {"read_timeout": 1, "write_timeout": 1}),
        ({"socketTimeout": "0"}, {}),
    ],
)
def test_timeouts_are_rounded_to_seconds_and_zero_means_no_timeout(
    properties: dict[str, str], expected: dict[str, int]
) -> None:
    assert convert(**properties).arguments == BASE | expected


@pytest.mark.parametrize("properties", [{"sslMode": "DISABLED"}, {"sslMode": "disable"}, {"useSSL": "false"}])
def test_encryption_of_mysql_connections_can_be_disabled(properties: dict[str, str]) -> None:
    assert convert(**properties).arguments == BASE | {"ssl_disabled": True}


@pytest.mark.parametrize(
    ("properties", "verifies", "checks_name"),
    [
        ({"sslMode": "REQUIRED"}, False, False),
        ({"sslMode": "trust"}, False, False),
        ({"useSSL": "true", "requireSSL": "true"}, False, False),
        ({"useSSL": "true", "requireSSL": "true", "verifyServerCertificate": "true"}, True, False),
        ({"sslMode": "VERIFY_CA"}, True, False),
        ({"sslMode": "verify-ca"}, True, False),
        ({"sslMode": "VERIFY_IDENTITY"}, True, True),
        ({"sslMode": "verify-full"}, True, True),
    ],
)
def test_ssl_mode_of_mysql_determines_whether_certificate_and_host_name_are_verified(
    properties: dict[str, str], verifies: bool, checks_name: bool
) -> None:
    context = convert(**properties).arguments["ssl"]
    assert (context.verify_mode is ssl.CERT_REQUIRED, context.check_hostname) == (verifies, checks_name)


@pytest.mark.parametrize(
    ("properties", "verifies", "checks_name"),
    [
        ({}, True, True),
        ({"disableSslHostnameVerification": "true"}, True, False),
        ({"trustServerCertificate": "true"}, False, False),
    ],
)
def test_use_ssl_in_a_mariadb_url_enables_certificate_and_host_name_verification_by_default(
    properties: dict[str, str], verifies: bool, checks_name: bool
) -> None:
    context = convert(True, useSsl="true", **properties).arguments["ssl"]
    assert (context.verify_mode is ssl.CERT_REQUIRED, context.check_hostname) == (verifies, checks_name)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"sslMode": "SECURE"}, "sslMode=SECURE is unknown; set one of DISABLED, PREFERRED, REQUIRED"),
        ({"trustCertificateKeyStoreUrl": "file:/x.jks"}, "trustCertificateKeyStoreUrl is not supported: convert"),
        ({"enabledTLSProtocols": "TLSv1.3"}, "enabledTLSProtocols is not supported"),
        ({"serverSslCert": "/nowhere/ca.pem"}, "cannot read the certificates in /nowhere/ca.pem"),
        ({"zeroDateTimeBehavior": "x"}, "zeroDateTimeBehavior=x is unknown"),
        ({"connectTimeout": "3s"}, "connectTimeout=3s is not a number of milliseconds"),
    ],
)
def test_invalid_or_unsupported_mysql_connection_property_is_rejected(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert(**properties)


def test_mysql_connection_properties_other_than_tls_settings_are_converted_or_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = convert(connectTimeout="3000", zeroDateTimeBehavior="round", jdbcCompliantTruncation="false",
                    connectionTimeZone="SERVER", allowPublicKeyRetrieval="true")  # fmt: skip
    assert found == MysqlProperties(BASE | {"connect_timeout": 3}, "ROUND", is_strict=False)
    assert caplog.text == ""
    convert(cachePrepStmts="true")
    assert "Connection property cachePrepStmts is ignored" in caplog.text


@pytest.mark.parametrize(("name", "known"), [("passwrd", "connection.password"), ("conectTimeout", "connectTimeout")])
def test_warning_about_an_unknown_mysql_property_contains_the_most_similar_name(
    caplog: pytest.LogCaptureFixture, name: str, known: str
) -> None:
    mysql_properties({name: "1"}, is_mariadb=False)
    assert f"{name} is ignored, because PyMySQL has no such option; did you mean {known}?" in caplog.text
