"""Parses JDBC URLs such as `jdbc:sqlite:/path/file.db` or `jdbc:postgresql://host:5432/db?user=u`.

This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from headrace.api.errors import ConfigError

SUPPORTED = ("sqlite", "postgresql", "mysql", "mariadb")

_SQLALCHEMY = re.compile(r"(?!jdbc:)(?P<name>[a-z0-9_]+)(?:\+[a-z0-9_]+)?://")
_NETWORK = re.compile(r"//(?P<hosts>[^/?]*)(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?$")
_HOST = re.compile(r"(\[[^\]]+\]|[^:@]*)(?::(\d+))?")
_OF_JAVA: Mapping[str, tuple[str, str]] = {
    "oracle:thin:": ("Oracle", "oracle+oracledb://host:1521/?service_name=NAME"),
    "oracle:oci:": ("Oracle", "oracle+oracledb://host:1521/?service_name=NAME"),
    "sqlserver:": ("SQL Server", "mssql+pyodbc://host:1433/database?driver=ODBC+Driver+18+for+SQL+Server"),
}
"""Formats of URLs that only Java drivers parse: the database, and the SQLAlchemy URL to use instead."""


@dataclass(frozen=True, slots=True)
class JdbcUrl:
    """A parsed URL. `properties` are its query parameters. Without a host, `database` is a file path."""

    kind: str
    database: str
    host: str = ""
    port: int | None = None
    properties: dict[str, str] = field(default_factory=dict)
    hosts: tuple[tuple[str, int | None], ...] = ()
    """The hosts and ports, if there are several. In this case, `host` contains all of them."""
    is_sqlalchemy: bool = False
    """Whether the URL is one of SQLAlchemy instead of a JDBC URL."""

    @property
    def dialect(self) -> str:
        """The name of the dialect's module. MariaDB uses the module of MySQL."""
        return "mysql" if self.kind == "mariadb" else self.kind

    @property
    def address(self) -> str:
        """The database's address for error messages, without user and password."""
        return f"{self.kind}://{self.host}{f':{self.port}' if self.port else ''}/{self.database}"

    @property
    def is_known(self) -> bool:
        """Whether headrace has a dialect of its own for this database."""
        return self.kind in SUPPORTED and not self.is_sqlalchemy


def parse(url: str) -> JdbcUrl:
    """Parse a JDBC URL or a URL of SQLAlchemy. Raises ConfigError for `connection.url` if it is malformed."""
    if (dialect := _SQLALCHEMY.match(url.strip())) and dialect["name"] not in SUPPORTED:
        return JdbcUrl(dialect["name"], "", is_sqlalchemy=True)
    match = re.fullmatch(r"jdbc:([A-Za-z0-9_+]+):(.*)", url.strip(), re.DOTALL)
    if match is None:
        raise ConfigError(
            "connection.url",
            url,
            "must look like jdbc:sqlite:/path/to/file or jdbc:postgresql://host:5432/database",
        )
    kind, address = match[1].lower(), match[2]
    for prefix, (name, example) in _OF_JAVA.items():
        if f"{kind}:{address}".lower().startswith(prefix):
            raise ConfigError(
                "connection.url",
                url,
                f"JDBC URLs of {name} are not supported: set a SQLAlchemy URL, such as {example}, and install the "
                f"Python driver for {name}",
            )
    if kind == "sqlite" or (kind not in SUPPORTED and not address.startswith("//")):
        return _file_url(url, kind, address)
    return _network_url(url, kind, address)


def validate(url: str) -> None:
    """Raise ValueError if `parse` would raise ConfigError for the URL."""
    try:
        parse(url)
    except ConfigError as error:
        raise ValueError(error.reason) from None


def validate_known(url: str) -> None:
    """Raise ValueError if the URL is invalid, or if `SUPPORTED` does not contain the URL's kind of database."""
    if any(url.strip().lower().startswith(f"jdbc:{prefix}") for prefix in _OF_JAVA):
        kind = url.split(":")[1]
        raise ValueError(f"{kind} is not supported; supported databases are {', '.join(SUPPORTED)}")
    validate(url)
    parsed = parse(url)
    if not parsed.is_known:
        raise ValueError(f"{parsed.kind} is not supported; supported databases are {', '.join(SUPPORTED)}")


def _file_url(url: str, kind: str, address: str) -> JdbcUrl:
    path, _, query = address.removeprefix("file:").partition("?")
    if not path:
        raise ConfigError("connection.url", url, f"must name a database file, as in jdbc:{kind}:/path/to/file")
    return JdbcUrl(kind, path, properties=dict(parse_qsl(query)))


def _network_url(url: str, kind: str, address: str) -> JdbcUrl:
    match = _NETWORK.match(address)
    if match is None:  # jdbc:postgresql:database names a database on localhost
        if address and "/" not in address:
            return JdbcUrl(kind, unquote(address), host="localhost")
        raise ConfigError("connection.url", url, f"must look like jdbc:{kind}://host:port/database")
    hosts = [_host(url, kind, text) for text in match["hosts"].split(",")]
    if len(hosts) > 1 and kind != "postgresql":
        raise ConfigError("connection.url", url, "several hosts are supported only with PostgreSQL")
    host, port = hosts[0] if len(hosts) == 1 else (match["hosts"], None)
    return JdbcUrl(
        kind,
        unquote(match["database"] or ""),
        host=host,
        port=port,
        properties=dict(parse_qsl(match["query"] or "", keep_blank_values=True)),
        hosts=tuple(hosts) if len(hosts) > 1 else (),
    )


def _host(url: str, kind: str, text: str) -> tuple[str, int | None]:
    match = _HOST.fullmatch(text)
    if match is None:
        hint = "; set the user in connection.user and connection.password" if "@" in text else ""
        raise ConfigError("connection.url", url, f"must look like jdbc:{kind}://host:port/database{hint}")
    return match[1].strip("[]") or "localhost", int(match[2]) if match[2] else None
