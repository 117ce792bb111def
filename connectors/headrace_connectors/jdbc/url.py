"""JDBC URLs: what people have in their files, as the address of a Python driver. Pure.

`jdbc:sqlite:/path/file.db`, `jdbc:postgresql://host:5432/db?user=u&password=p` and the like. The part after `jdbc:`
names the database; a database that no driver here serves is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from headrace.api.errors import ConfigError

SUPPORTED = ("sqlite", "postgresql")

_NETWORK = re.compile(
    r"//(?P<host>\[[^\]]+\]|[^:/?]*)(?::(?P<port>\d+))?(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?$"
)


@dataclass(frozen=True, slots=True)
class JdbcUrl:
    """A parsed URL: `database` is a file's path for SQLite; `properties` are the URL's own parameters."""

    kind: str
    database: str
    host: str = ""
    port: int | None = None
    properties: dict[str, str] = field(default_factory=dict)


def parse(url: str) -> JdbcUrl:
    """Take a JDBC URL apart. Raises ConfigError for `connection.url` when it is none or its database is not served."""
    match = re.fullmatch(r"jdbc:([A-Za-z0-9]+):(.*)", url.strip(), re.DOTALL)
    if match is None:
        raise ConfigError(
            "connection.url",
            shown(url),
            "must look like jdbc:sqlite:/path/to/file or jdbc:postgresql://host:5432/database",
        )
    kind, rest = match[1].lower(), match[2]
    if kind == "sqlite":
        return _file_url(url, rest)
    if kind not in SUPPORTED:
        raise ConfigError(
            "connection.url", shown(url), f"no driver for jdbc:{kind}: this version reads {' and '.join(SUPPORTED)}"
        )
    return _network_url(url, kind, rest)


def shown(url: str) -> str:
    """A URL for people to read: without the passwords that it may hold."""
    return re.sub(r"(?i)((?:password|pwd)=)[^&;]*", r"\1****", url)


def check(url: str) -> None:
    """Raises ValueError with the reason when `parse` would refuse the URL."""
    try:
        parse(url)
    except ConfigError as error:
        raise ValueError(error.reason) from None


def _file_url(url: str, rest: str) -> JdbcUrl:
    path, _, query = rest.removeprefix("file:").partition("?")
    if not path:
        raise ConfigError("connection.url", shown(url), "names no database file: jdbc:sqlite:/path/to/file")
    return JdbcUrl("sqlite", path, properties=dict(parse_qsl(query)))


def _network_url(url: str, kind: str, rest: str) -> JdbcUrl:
    match = _NETWORK.match(rest)
    if match is None:  # jdbc:postgresql:database is the local server
        if rest and "/" not in rest:
            return JdbcUrl(kind, unquote(rest), host="localhost")
        raise ConfigError("connection.url", shown(url), f"must look like jdbc:{kind}://host:port/database")
    port = int(match["port"]) if match["port"] else None
    return JdbcUrl(
        kind,
        unquote(match["database"] or ""),
        host=match["host"].strip("[]") or "localhost",
        port=port,
        properties=dict(parse_qsl(match["query"] or "", keep_blank_values=True)),
    )
