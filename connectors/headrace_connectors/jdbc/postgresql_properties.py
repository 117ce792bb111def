"""Converts the connection properties of PostgreSQL's JDBC driver to options of libpq.

References: https://jdbc.postgresql.org/documentation/use/ and
https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import psycopg

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.connections import ignored_property_warning

logger = logging.getLogger(__name__)

_LIBPQ_NAMES = {
    "ApplicationName": "application_name",
    "channelBinding": "channel_binding",
    "connectTimeout": "connect_timeout",
    "gssEncMode": "gssencmode",
    "kerberosServerName": "krbsrvname",
    "loginTimeout": "connect_timeout",
    "requireAuth": "require_auth",
}
"""libpq's names of connection properties that have a different name in PostgreSQL's JDBC driver."""
_SERVER_TYPES = {
    "any": "any",
    "primary": "primary",
    "master": "primary",
    "secondary": "standby",
    "slave": "standby",
    "prefersecondary": "prefer-standby",
    "preferslave": "prefer-standby",
}
_ESCAPED = re.compile(r"([\\\s])")
_NON_VALIDATING, _DEFAULT_FACTORY = "NonValidatingFactory", "LibPQFactory"
_HARMLESS = ("sslResponseTimeout",)


def libpq_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Convert properties of PostgreSQL's JDBC driver to libpq options.

    Skips unknown properties with a warning. Raises ConfigError for an unknown property that concerns security.
    """
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    options: dict[str, str] = {}
    for name, value in properties.items():
        if name in known:
            options[name] = value
        elif name == "tcpKeepAlive":
            options["keepalives"] = "1" if _is_true(value) else "0"
        elif name in _LIBPQ_NAMES:
            options[_LIBPQ_NAMES[name]] = value
        elif name == "targetServerType":
            options["target_session_attrs"] = _target(value)
        elif name == "loadBalanceHosts":
            options["load_balance_hosts"] = "random" if _is_true(value) else "disable"
        elif name in ("currentSchema", "ssl", "sslfactory"):
            continue
        elif name.startswith("ssl") and name not in _HARMLESS:
            raise _error(f"{name} is not supported: set sslmode, and set sslrootcert, sslcert and sslkey to PEM files")
        else:
            logger.warning("%s", ignored_property_warning(name, "libpq", [*known, *_LIBPQ_NAMES]))
    _set_ssl_mode(options, properties)
    if schemas := properties.get("currentSchema"):
        search_path = "-csearch_path=" + _ESCAPED.sub(r"\\\1", schemas)
        options["options"] = f"{options['options']} {search_path}" if options.get("options") else search_path
    return options


def _set_ssl_mode(options: dict[str, str], properties: Mapping[str, str]) -> None:
    if "ssl" in properties:
        options.setdefault("sslmode", "verify-full" if _is_true(properties["ssl"] or "true") else "prefer")
    factory = properties.get("sslfactory", "").rpartition(".")[2]
    if factory == _NON_VALIDATING and options.get("sslmode", "").startswith("verify-"):
        options["sslmode"] = "require"
    elif factory not in ("", _NON_VALIDATING, _DEFAULT_FACTORY):
        raise _error(
            f"sslfactory={properties['sslfactory']} is not supported: set sslmode, and set sslrootcert to a PEM file"
        )


def _target(value: str) -> str:
    found = _SERVER_TYPES.get(value.lower())
    if found is None:
        raise _error(
            f"targetServerType={value} is not supported; the supported values are any, primary, secondary and "
            "preferSecondary"
        )
    return found


def _error(problem: str) -> ConfigError:
    return ConfigError("connection.url", None, f"connection property {problem}")


def _is_true(value: str) -> bool:
    return value.lower() == "true"
