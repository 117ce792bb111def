"""Converts the connection properties of MySQL's and MariaDB's JDBC drivers to arguments of PyMySQL.

This module reads certificate files.

References: https://dev.mysql.com/doc/connector-j/en/connector-j-reference-configuration-properties.html and
https://mariadb.com/docs/connectors/mariadb-connector-j/about-mariadb-connector-j
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.connections import ignored_property_warning

logger = logging.getLogger(__name__)

_SECURITY = re.compile(r"ssl|tls|certificate|keystore|truststore|encrypt|kerberos|pinning", re.IGNORECASE)
"""Matches the names of properties that cannot be ignored, because the connection would be less secure."""
_SSL_MODES = {
    **{mode: mode for mode in ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")},
    "DISABLE": "DISABLED",
    "TRUST": "REQUIRED",
    "VERIFY-CA": "VERIFY_CA",
    "VERIFY-FULL": "VERIFY_IDENTITY",
}
"""The modes of MySQL's driver and, after them, those of MariaDB's driver."""
_SSL_SWITCHES = (
    "usessl",
    "requiressl",
    "verifyservercertificate",
    "trustservercertificate",
    "disablesslhostnameverification",
)
_AUTHORITIES = ("serversslcert", "sslca", "ssl_ca")
_KEY_STORES = re.compile(r"keystore|truststore", re.IGNORECASE)
_WITHOUT_EFFECT = frozenset(
    {
        "allowpublickeyretrieval",  # PyMySQL always retrieves the key if it needs it
        "connectiontimezone",  # the connector converts timestamps itself; see db.timezone
        "forceconnectiontimezonetosession",
        "servertimezone",
        "timezone",
    }
)
_TIMEOUT_MAX_S = 31_536_000
"""PyMySQL's longest timeout for a connection attempt, a year."""
_ZERO_DATES = {
    "EXCEPTION": "EXCEPTION",
    "CONVERT_TO_NULL": "CONVERT_TO_NULL",
    "CONVERTTONULL": "CONVERT_TO_NULL",
    "ROUND": "ROUND",
}


_NAMES = ("connectTimeout", "socketTimeout", "zeroDateTimeBehavior", "jdbcCompliantTruncation", "sslMode", "useSSL")
"""Names of properties, for warnings about unknown properties."""


@dataclass(frozen=True, slots=True)
class MysqlProperties:
    """The properties of a connection."""

    arguments: dict[str, Any]
    """Arguments of PyMySQL's `connect`."""
    zero_dates: str = "EXCEPTION"
    """How to read the date 0000-00-00: ``EXCEPTION`` (`unmappable.values` applies), ``CONVERT_TO_NULL`` or ``ROUND``
    (to the date 0001-01-01)."""
    is_strict: bool = True
    """Whether the server must reject values that do not fit their columns."""


def mysql_properties(properties: Mapping[str, str], *, is_mariadb: bool) -> MysqlProperties:
    """Convert the properties of a URL that starts with ``jdbc:mysql`` or ``jdbc:mariadb``.

    Skips unknown properties with a warning. Raises ConfigError for an invalid value, and for an unknown property that
    concerns security.
    """
    arguments: dict[str, Any] = {"charset": "utf8mb4", "connect_timeout": 10}
    security: dict[str, str] = {}
    zero_dates, is_strict = "EXCEPTION", True
    for name, value in properties.items():
        key = name.lower()
        if key == "connecttimeout":
            arguments["connect_timeout"] = _seconds(name, value) or _TIMEOUT_MAX_S
        elif key == "sockettimeout":
            if (seconds := _seconds(name, value)) > 0:
                arguments |= {"read_timeout": seconds, "write_timeout": seconds}
        elif key == "zerodatetimebehavior":
            zero_dates = _one_of(name, value, _ZERO_DATES)
        elif key == "jdbccomplianttruncation":
            is_strict = _is_true(value)
        elif key == "sslmode" or key in _SSL_SWITCHES or key in _AUTHORITIES:
            security[key] = value
        elif key in _WITHOUT_EFFECT:
            continue
        elif _SECURITY.search(name):
            raise _unsupported(name)
        else:
            logger.warning("%s", ignored_property_warning(name, "PyMySQL", _NAMES))
    arguments |= _ssl_arguments(security, is_mariadb)
    return MysqlProperties(arguments, zero_dates, is_strict)


def _ssl_arguments(security: Mapping[str, str], is_mariadb: bool) -> dict[str, Any]:
    """Return PyMySQL's arguments for the properties in `security`. The names of the properties are in lower case."""
    authority = next((security[name] for name in _AUTHORITIES if name in security), None)
    mode = _mode_of_switches(security, is_mariadb)
    if "sslmode" in security:
        mode = _one_of("sslMode", security["sslmode"], _SSL_MODES)
    elif authority is not None and mode in (None, "PREFERRED", "REQUIRED"):
        mode = "VERIFY_CA"
    if mode == "DISABLED":
        return {"ssl_disabled": True}
    if mode in (None, "PREFERRED"):
        return {}  # PyMySQL encrypts the connection if the server supports it
    return {"ssl": _context(mode, authority)}


def _mode_of_switches(security: Mapping[str, str], is_mariadb: bool) -> str | None:
    """Return the sslMode that the drivers derive from older properties such as useSSL.

    Returns None if `security` contains none of these properties.
    """

    def is_on(name: str) -> bool:
        return _is_true(security.get(name, "false"))

    if "usessl" not in security and not is_on("requiressl"):
        return None
    if "usessl" in security and not is_on("usessl"):
        return "DISABLED"
    if is_mariadb:
        if is_on("trustservercertificate"):
            return "REQUIRED"
        return "VERIFY_CA" if is_on("disablesslhostnameverification") else "VERIFY_IDENTITY"
    if is_on("verifyservercertificate"):
        return "VERIFY_CA"
    return "REQUIRED" if is_on("requiressl") else "PREFERRED"


def _context(mode: str | None, authority: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if authority is None else authority.removeprefix("file:"))
    except OSError as error:
        raise ConfigError("connection.url", None, f"cannot read the certificates in {authority}: {error}") from error
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the certificates that servers generate do not conform to RFC 5280
    context.check_hostname = mode == "VERIFY_IDENTITY"
    context.verify_mode = ssl.CERT_NONE if mode == "REQUIRED" else ssl.CERT_REQUIRED
    return context


def _seconds(name: str, value: str) -> int:
    """Convert the value of property `name` from milliseconds to whole seconds, at least 1.

    Returns 0 for 0, which means no timeout.
    """
    if not value.isdecimal():
        raise ConfigError("connection.url", None, f"{name}={value} is not a number of milliseconds")
    return max(1, int(value) // 1000) if int(value) else 0


def _unsupported(name: str) -> ConfigError:
    if _KEY_STORES.search(name):
        advice = "convert the key store to PEM and set serverSslCert to the file with the trusted certificates"
    else:
        advice = "remove it, and set sslMode and serverSslCert (a PEM file with the trusted certificates)"
    return ConfigError("connection.url", None, f"connection property {name} is not supported: {advice}")


def _one_of(name: str, value: str, choices: Mapping[str, str]) -> str:
    found = choices.get(value.strip().upper())
    if found is None:
        raise ConfigError("connection.url", None, f"{name}={value} is unknown; set one of {', '.join(choices)}")
    return found


def _is_true(value: str) -> bool:
    return value.strip().lower() in ("", "true", "yes", "1")
