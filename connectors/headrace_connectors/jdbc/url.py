"""Parses JDBC URLs such as `jdbc:sqlite:/path/file.db` or `jdbc:postgresql://host:5432/db?user=u`.

This module has no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from headrace.api.errors import ConfigError

SUPPORTED = ("sqlite", "postgresql", "mysql", "mariadb")

_NETWORK = re.compile(
    r"//(?P<host>\[[^\]]+\]|[^:/?]*)(?::(?P<port>\d+))?(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?$"
)


@dataclass(frozen=True, slots=True)
class JdbcUrl:
    """A parsed JDBC URL. `properties` are its query parameters. For SQLite, `database` is a file path."""

    kind: str
    database: str
    host: str = ""
    port: int | None = None
    properties: dict[str, str] = field(default_factory=dict)


def parse(url: str) -> JdbcUrl:
    """Parse a JDBC URL. Raises ConfigError for `connection.url` if it is malformed or its database is not supported."""
    match = re.fullmatch(r"jdbc:([A-Za-z0-9]+):(.*)", url.strip(), re.DOTALL)
    if match is None:
        raise ConfigError(
            "connection.url",
            redact_passwords(url),
            "must look like jdbc:sqlite:/path/to/file or jdbc:postgresql://host:5432/database",
        )
    kind, address = match[1].lower(), match[2]
    if kind == "sqlite":
        return _file_url(url, address)
    if kind not in SUPPORTED:
        raise ConfigError(
            "connection.url",
            redact_passwords(url),
            f"jdbc:{kind} is not supported; supported databases are {', '.join(SUPPORTED)}",
        )
    return _network_url(url, kind, address)


def redact_passwords(url: str) -> str:
    """Replace passwords in a URL with asterisks."""
    return re.sub(r"(?i)((?:password|pwd)=)[^&;]*", r"\1****", url)


def validate(url: str) -> None:
    """Raise ValueError if `parse` would raise ConfigError for the URL."""
    try:
        parse(url)
    except ConfigError as error:
        raise ValueError(error.reason) from None


def _file_url(url: str, address: str) -> JdbcUrl:
    path, _, query = address.removeprefix("file:").partition("?")
    if not path:
        raise ConfigError(
            "connection.url", redact_passwords(url), "must name a database file, as in jdbc:sqlite:/path/to/file"
        )
    return JdbcUrl("sqlite", path, properties=dict(parse_qsl(query)))


def _network_url(url: str, kind: str, address: str) -> JdbcUrl:
    match = _NETWORK.match(address)
    if match is None:  # jdbc:postgresql:database names a database on localhost
        if address and "/" not in address:
            return JdbcUrl(kind, unquote(address), host="localhost")
        raise ConfigError("connection.url", redact_passwords(url), f"must look like jdbc:{kind}://host:port/database")
    port = int(match["port"]) if match["port"] else None
    return JdbcUrl(
        kind,
        unquote(match["database"] or ""),
        host=match["host"].strip("[]") or "localhost",
        port=port,
        properties=dict(parse_qsl(match["query"] or "", keep_blank_values=True)),
    )
