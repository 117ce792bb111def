"""Connections to MySQL and MariaDB with PyMySQL, for the JDBC source and the JDBC sink."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql
import sqlalchemy
from pymysql.constants import ER
from sqlalchemy.engine import Engine

from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.connections import ConnectionConfig, credentials
from headrace_connectors.jdbc.dialects import engine_for, run_on_connect
from headrace_connectors.jdbc.mysql_properties import MysqlProperties, mysql_properties
from headrace_connectors.jdbc.url import JdbcUrl

# Server errors after which the same statement may succeed: missing resources, locks, shutdown, read-only mode.
_TRANSIENT_CODES = frozenset({1021, 1040, 1041, 1053, 1077, 1114, 1129, 1158, 1159, 1160, 1161, 1184, 1203, 1205, 1213,
                              1290, 1317, 1792, 1836, 1927})  # fmt: skip


def properties_of(url: JdbcUrl, config: ConnectionConfig) -> MysqlProperties:
    """Return the properties of the URL and of the configuration. Raises ConfigError for an invalid property."""
    try:
        return mysql_properties(credentials(url, config).properties, is_mariadb=url.kind == "mariadb")
    except ConfigError as error:
        raise ConfigError("connection.url", config.connection_url, error.reason) from error


def mysql_engine(url: JdbcUrl, config: ConnectionConfig, statements: Sequence[str] = (), **arguments: Any) -> Engine:
    """Return an engine for the URL, with the user, password and driver properties of the configuration.

    The time zone of its sessions is UTC, so that values of the type TIMESTAMP are exact. Each session also executes
    `statements` when it begins. `arguments` are further arguments of PyMySQL's `connect`.
    """
    user, password, _ = credentials(url, config)
    address = sqlalchemy.URL.create(
        "mysql+pymysql",
        username=user,
        password=password,
        host=url.host,
        port=url.port,
        database=url.database or None,
    )
    given = properties_of(url, config).arguments
    # PyMySQL's connect_timeout does not limit the login, so a server that accepts connections could block it forever.
    arguments = {"read_timeout": given["connect_timeout"], **given, **arguments}
    engine = engine_for(address, connect_args=arguments)

    def prepare(connection: Any) -> None:
        with connection.cursor() as cursor:
            for statement in ("SET time_zone = '+00:00'", *statements):
                cursor.execute(statement)
        connection._read_timeout = given.get("read_timeout")

    run_on_connect(engine, prepare)
    return engine


def is_denied(error: Exception) -> bool:
    """Whether `error` means that the server rejected the user or the password."""
    return bool(error.args) and error.args[0] == ER.ACCESS_DENIED_ERROR


def is_transient(error: Exception) -> bool:
    """Whether the error is temporary: a lost connection, a lack of resources, or a conflict between transactions."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return isinstance(error, pymysql.err.InterfaceError) or code in _TRANSIENT_CODES or 2000 <= code < 3000
