"""Converts errors of Iceberg catalogs to errors of the key that is probably at fault. This module does no I/O."""

from __future__ import annotations

from pyiceberg.exceptions import ForbiddenError, NotInstalledError, OAuthError, UnauthorizedError
from requests.exceptions import ConnectionError as UnreachableError
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, Timeout

from headrace.api.errors import ConfigError, ConnectError
from headrace.api.redaction import redact_passwords
from headrace_connectors.lakehouse.committers.iceberg_config import PREFIX, CatalogConfig


def config_error(config: CatalogConfig, error: BaseException) -> ConfigError:
    """Return the error of the key that is probably at fault for `error`."""
    text = describe_error(error)
    if isinstance(error, NotInstalledError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError):
        driver = f"needs a Python package that is not installed: {error.name}"
        return ConfigError(PREFIX + ("uri" if config.type == "sql" else "type"), shown_uri(config), driver)
    if isinstance(error, (UnauthorizedError, ForbiddenError, OAuthError)):
        keys = "iceberg.catalog.credential, iceberg.catalog.token"
        return ConfigError(PREFIX + "credential", None, f"the catalog does not accept the credentials ({keys}): {text}")
    if "warehouse" in text.lower() and config.properties.get("warehouse"):
        return ConfigError(PREFIX + "warehouse", config.properties["warehouse"], text)
    if config.type == "glue":
        return ConfigError(PREFIX + "type", "glue", f"the Glue catalog cannot be used: {text}")
    return ConfigError(PREFIX + "uri", shown_uri(config), f"the catalog cannot be used: {text}")


def shown_uri(config: CatalogConfig) -> str:
    """Return the catalog's URI without passwords."""
    return redact_passwords(str(config.properties.get("uri", "")))


def describe_error(error: BaseException) -> str:
    """Return the message of an error of pyiceberg or of a driver in one line, without passwords."""
    if isinstance(error, (MissingSchema, InvalidSchema, InvalidURL)):
        return f"not an HTTP URL: {error}"
    if isinstance(error, Timeout):
        return "the catalog did not answer in time"
    if isinstance(error, UnreachableError):
        return f"no connection: {_root_cause(error)}"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redact_passwords(lines[0].removeprefix("RESTError "))


def _root_cause(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return str(error)


def catalog_error(config: CatalogConfig, table: str, action: str, error: BaseException) -> ConnectError:
    """Return the error for a table that cannot be read or changed. `action` is for example "read"."""
    return ConnectError(f"table {table} cannot be {action}: {config_error(config, error).reason}")
