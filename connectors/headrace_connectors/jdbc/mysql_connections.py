"""Connections to MySQL and MariaDB with PyMySQL, for the JDBC source and the JDBC sink."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pymysql
import sqlalchemy
from sqlalchemy.engine import Engine

from headrace_connectors.jdbc.connections import ConnectionConfig, credentials
from headrace_connectors.jdbc.dialects import engine_for
from headrace_connectors.jdbc.url import JdbcUrl

logger = logging.getLogger(__name__)

# Server errors after which the same statement may succeed: missing resources, locks, shutdown, read-only mode.
_TRANSIENT_CODES = frozenset({1021, 1040, 1041, 1053, 1077, 1114, 1129, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213,
                              1290, 1317, 1836, 1927})  # fmt: skip


def mysql_engine(url: JdbcUrl, config: ConnectionConfig, **arguments: Any) -> Engine:
    """Return an engine for the URL, with the user, password and driver properties of the configuration.

    `arguments` are further arguments of PyMySQL's `connect`.
    """
    user, password, properties = credentials(url, config)
    address = sqlalchemy.URL.create(
        "mysql+pymysql",
        username=user,
        password=password,
        host=url.host,
        port=url.port,
        database=url.database or None,
    )
    return engine_for(address, connect_args=_arguments(properties) | arguments)


def is_transient(error: Exception) -> bool:
    """Whether the error is temporary: a lost connection, a lack of resources, or a conflict between transactions."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return isinstance(error, pymysql.err.InterfaceError) or code in _TRANSIENT_CODES or 2000 <= code < 3000


def _arguments(properties: Mapping[str, str]) -> dict[str, Any]:
    """Convert properties of MySQL's JDBC driver to arguments of PyMySQL. Skip unknown properties with a warning."""
    arguments: dict[str, Any] = {"charset": "utf8mb4", "connect_timeout": 10}
    for name, value in properties.items():
        if name == "connectTimeout":
            arguments["connect_timeout"] = max(1, int(value) // 1000)
        elif name in ("useSSL", "requireSSL") and value.lower() == "true":
            arguments["ssl"] = {"check_hostname": False}
        elif name in ("sslCa", "ssl_ca"):
            arguments["ssl_ca"] = value
        elif name != "useSSL":
            logger.warning("Connection property %s is ignored, because PyMySQL has no such option", name)
    return arguments
