"""Configuration of the database connection, for the JDBC source and the JDBC sink. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, cast

from headrace.api.config import Config, ConfigType, Password, config_def
from headrace.api.config_def import nearest
from headrace.api.errors import ConfigError
from headrace.api.retries import Retries, RetryPolicy
from headrace_connectors.jdbc.url import JdbcUrl, parse

CREDENTIALS_PROVIDER_DOC = (
    "Only Confluent's DefaultJdbcCredentialsProvider, which is the default, is supported: it returns connection.user "
    "and connection.password. A config provider can read them from a file."
)
_DEFAULT_CREDENTIALS_PROVIDER = "DefaultJdbcCredentialsProvider"
_KEYS = ("connection.url", "connection.user", "connection.password", "connection.attempts", "connection.backoff.ms")
_EXTRAS = {"postgresql": "jdbc-postgres", "mysql": "jdbc-mysql"}


class ConnectionConfig(Protocol):
    """The connection keys that the configurations of the source and the sink have in common."""

    connection_url: str
    dialect_name: str
    connection_user: str | None
    connection_password: Password | None
    connection_attempts: int
    connection_backoff_ms: int

    def originals_with_prefix(self, prefix: str) -> Mapping[str, str]: ...


def connection_retries(config: ConnectionConfig) -> Retries:
    """Return the retries of the attempts to connect to the database."""
    return Retries(RetryPolicy(config.connection_backoff_ms, config.connection_attempts - 1, "connection.attempts"))


def check_credentials_provider(name: str) -> None:
    """Raise ValueError unless `name` is empty or Confluent's default provider.

    The default provider returns the values of connection.user and connection.password.
    """
    if name and name.rpartition(".")[2] != _DEFAULT_CREDENTIALS_PROVIDER:
        raise ValueError(
            "credentials providers are not supported: set connection.user and connection.password; to keep both out of "
            "the configuration, set them to variables of a config provider, such as ${file:...}"
        )


def warnings_about_dialect(config: ConnectionConfig) -> list[str]:
    """Return a warning if `dialect.name` and `connection.url` name different databases."""
    name, database = config.dialect_name, parse(config.connection_url)
    if not name or not database.is_known or name.lower().startswith(database.dialect):
        return []
    return [f"Configuration dialect.name={name} has no effect: connection.url determines the database, {database.kind}"]


def driver_properties(config: ConnectionConfig) -> dict[str, str]:
    """Return the properties for the driver: the `connection.*` keys that the connector does not define itself.

    The names are returned without the prefix `connection.`.
    """
    known = config_def(cast("Config", config).__class__).keys
    given = config.originals_with_prefix("connection.")
    return {name: value for name, value in given.items() if f"connection.{name}" not in known}


def ignored_property_warning(name: str, driver: str, properties: Iterable[str]) -> str:
    """Return the warning for an unknown driver property. `properties` are the names of known properties.

    The warning contains the most similar configuration key or property, if there is one.
    """
    known = {each: each for each in properties} | {key.removeprefix("connection."): key for key in _KEYS}
    guess = nearest(name, known)
    hint = f"; did you mean {known[guess]}?" if guess else ""
    return f"Connection property {name} is ignored, because {driver} has no such option{hint}"


def invalid_value(config: ConnectionConfig, key: str, reason: str) -> ConfigError:
    """Return an error about the configured value of `key`. The message contains no password."""
    value: object = config.originals_with_prefix("").get(key)
    if config_def(cast("Config", config).__class__).keys[key].type is ConfigType.PASSWORD:
        value = "[hidden]"
    return ConfigError(key, value, reason)


def connection_error(url: JdbcUrl, config: ConnectionConfig, text: str, *, is_denied: bool) -> ConfigError:
    """Return the error of the configuration key that causes a failed connection.

    `text` is the text of the driver's error. `is_denied` is true if the server rejected the user or the password.
    """
    key = "connection.url"
    if is_denied and config.connection_password is not None and config.connection_password.value:
        key = "connection.password"
    elif is_denied and config.connection_user:
        key = "connection.user"
    return invalid_value(config, key, f"cannot connect to {url.address}: {text}")


class Credentials(NamedTuple):
    """The user and password of a connection, and its other driver properties."""

    user: str | None
    password: str | None
    properties: dict[str, str]


def credentials(url: JdbcUrl, config: ConnectionConfig) -> Credentials:
    """Return the user, password and driver properties of a connection.

    A value in the configuration replaces the value in the URL.
    """
    properties = {**url.properties, **driver_properties(config)}
    user, secret = properties.pop("user", None), properties.pop("password", None)
    password = config.connection_password
    return Credentials(config.connection_user or user, password.value if password else secret, properties)


def extra_for(connection_url: str) -> str:
    """Return the extra of headrace that installs SQLAlchemy and the driver for this URL."""
    try:
        return _EXTRAS.get(parse(connection_url).dialect, "jdbc")
    except ConfigError:
        return "jdbc"
