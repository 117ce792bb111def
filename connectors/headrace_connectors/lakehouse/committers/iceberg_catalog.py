"""Opens Iceberg catalogs from a connector's configuration (`iceberg.catalog.*`), and checks them at validation.

The keys are those of Apache's Iceberg sink; after the prefix they are pyiceberg's, which are mostly Java's. Keys that
name Java classes, and catalogs that pyiceberg does not have, are rejected with the key to use instead. Every request to
a REST catalog has a timeout, because pyiceberg sets none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread, local
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NotInstalledError, OAuthError, UnauthorizedError
from pyiceberg.table import Table
from requests import Session
from requests.exceptions import ConnectionError as UnreachableError
from requests.exceptions import InvalidSchema, InvalidURL, MissingSchema, Timeout

from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.api.redaction import redact_passwords
from headrace_connectors.lakehouse.committers.iceberg_io import TABLE_FILE_IO
from headrace_connectors.lakehouse.s3_access import S3Access, access_of_properties, iceberg_properties
from headrace_connectors.lakehouse.table_names import DEFAULT_CATALOG, DEFAULT_NAMESPACE
from headrace_connectors.lakehouse.table_uri import TableUri

CATALOG_KEY = "iceberg.catalog"
NAMESPACE_KEY = "iceberg.namespace"
PREFIX = "iceberg.catalog."
CATALOG_TYPES = ("rest", "sql", "glue", "hive")
CHECK_TIMEOUT_S = 20.0
_REQUEST_TIMEOUT_S = 60.0
_CREATE_ATTEMPTS = 5
_CREATE_RETRY_S = 0.05
_IGNORED = ("io-impl", "lock-impl", "metrics-reporter-impl")
_REJECTED = {
    "catalog-impl": "names a Java class, which this sink does not load; set iceberg.catalog.type instead",
    "py-catalog-impl": "is not supported; set iceberg.catalog.type instead",
    "s3.signer": "is not supported: the sink signs its requests to S3 itself; let the catalog vend credentials",
    "py-io-impl": "is not supported: files are always read and written with Apache Arrow's file systems",
}
_OTHER_TYPES = {
    "jdbc": "use sql with an SQLAlchemy URI in iceberg.catalog.uri, for example postgresql+psycopg://user@host/catalog",
    "nessie": "use rest with the URI of Nessie's Iceberg REST service",
    "hadoop": "its commits are not safe; use rest or sql",
}
_REQUIRED = {"rest": ("uri",), "sql": ("uri", "warehouse"), "glue": (), "hive": ("uri",)}
_NESTED = ("auth", "ssl")
_DELEGATION_HEADER = "header.x-iceberg-access-delegation"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """A catalog, and the namespace of tables whose names have none. `repr` does not show secrets. Picklable."""

    name: str
    properties: dict[str, Any] = field(repr=False)
    namespace: tuple[str, ...] = (DEFAULT_NAMESPACE,)

    @property
    def type(self) -> str:
        return str(self.properties["type"])

    def identifier(self, table: str) -> tuple[str, ...]:
        """Return the identifier of a table. Folders in the table's name are its namespace: `a/b` is table b of a."""
        *folders, name = table.split("/")
        return (*(folders or self.namespace), name)


# --- configuration --------------------------------------------------------------------------------------------------


def parse_catalog(config: Mapping[str, str], root: TableUri | None) -> CatalogConfig:
    """Return the catalog that the keys `iceberg.*` of a connector's configuration describe. Raises ConfigErrors.

    Without these keys, the catalog of a local `root` (lakehouse.path) is the SQLite file `catalog.db` in it. `root` is
    also the warehouse of catalogs of the types sql and glue, unless another is configured.
    """
    given = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX) and value}
    errors = [ConfigError(PREFIX + key, given[key], text) for key, text in _REJECTED.items() if key in given]
    for key, text in given.items():
        if key.lower() == _DELEGATION_HEADER and text.strip().lower() == "remote-signing":
            errors.append(ConfigError(PREFIX + key, text, "is not supported; the other value is vended-credentials"))
    for key in _IGNORED:
        if given.pop(key, None) is not None:
            logger.warning("%s%s has no effect, because it names a Java class", PREFIX, key)
    type_, error = _catalog_type(given, root)
    if errors or error is not None:
        raise ConfigErrors([*errors, *([error] if error is not None else [])])
    properties: dict[str, Any] = {**_defaults(type_, given, root), **given, "type": type_}
    path_style = properties.pop("s3.path-style-access", None)
    if path_style is not None:
        properties.setdefault("s3.force-virtual-addressing", "false" if path_style.lower() == "true" else "true")
    errors = [
        ConfigError(PREFIX + key, None, f"is required by the catalog type {type_}")
        for key in _REQUIRED[type_]
        if key not in properties
    ]
    namespace = tuple((config.get(NAMESPACE_KEY) or DEFAULT_NAMESPACE).split("."))
    if not all(namespace):
        errors.append(ConfigError(NAMESPACE_KEY, config[NAMESPACE_KEY], "has an empty part"))
    elif type_ == "glue" and len(namespace) > 1:
        errors.append(ConfigError(NAMESPACE_KEY, config[NAMESPACE_KEY], "Glue has no nested namespaces"))
    if errors:
        raise ConfigErrors(errors)
    return CatalogConfig(config.get(CATALOG_KEY) or DEFAULT_CATALOG, _nested(properties), namespace)


def _catalog_type(given: Mapping[str, str], root: TableUri | None) -> tuple[str, ConfigError | None]:
    type_ = given.get("type", "").lower()
    if type_ in CATALOG_TYPES:
        return type_, None
    if type_:
        reason = _OTHER_TYPES.get(type_, f"the types are {', '.join(CATALOG_TYPES)}")
        return type_, ConfigError(PREFIX + "type", type_, f"is not supported: {reason}")
    if given.get("uri", "").startswith(("http://", "https://")):
        return "rest", None
    if root is None or root.is_s3 or given:
        text = "is required: rest, sql, glue or hive (only a local lakehouse.path has a catalog by default)"
        return "", ConfigError(PREFIX + "type", None, text)
    return "sql", None


def _defaults(type_: str, given: Mapping[str, str], root: TableUri | None) -> dict[str, str]:
    defaults: dict[str, str] = {}
    if root is None:
        return defaults
    if type_ in ("sql", "glue"):
        defaults["warehouse"] = str(root) if root.is_s3 else root.local.as_uri()
    if type_ == "sql" and not root.is_s3:
        defaults["uri"] = f"sqlite:///{root.local / 'catalog.db'}"
    return defaults


def _nested(properties: Mapping[str, Any]) -> dict[str, Any]:
    # pyiceberg expects {"ssl": {"client": {"cert": ...}}} for `ssl.client.cert`.
    result: dict[str, Any] = {}
    for key, value in properties.items():
        first, *path = key.split(".")
        if first not in _NESTED or not path:
            result[key] = value
            continue
        level = result.setdefault(first, {})
        for part in path[:-1]:
            level = level.setdefault(part, {})
        level[path[-1]] = value
    return result


# --- connections ----------------------------------------------------------------------------------------------------


class _RestCatalog(RestCatalog):
    """A REST catalog whose requests, also those for tokens, have a timeout and trust `ssl.cabundle`."""

    def _config_headers(self, session: Session) -> None:
        """Set up a new session. pyiceberg calls this method before the session is used."""
        super()._config_headers(session)
        arguments: dict[str, Any] = {"timeout": _REQUEST_TIMEOUT_S}
        authorities = self.properties.get("ssl", {}).get("cabundle")
        if authorities is not None:  # otherwise REQUESTS_CA_BUNDLE in the environment would replace them
            arguments["verify"] = authorities
        session.request = partial(session.request, **arguments)  # type: ignore[method-assign]


def open_catalog(config: CatalogConfig, io: Mapping[str, str] | None = None) -> Catalog:
    """Connect to a catalog. `io` has the properties of `iceberg_properties`; the catalog's own properties win.

    Raises pyiceberg's and the drivers' errors; `catalog_error` converts them.
    """
    properties: dict[str, Any] = {**(io or {}), **config.properties, "py-io-impl": TABLE_FILE_IO}
    if config.type == "glue":
        properties = _glue_properties(properties)
    if config.type == "rest":
        return _RestCatalog(config.name, **properties)
    if config.type == "sql":
        return _open_sql_catalog(config.name, properties)
    return load_catalog(config.name, **properties)


def _open_sql_catalog(name: str, properties: Mapping[str, Any]) -> Catalog:
    """Connect to an SQL catalog. If several threads or processes create its tables at once, all but one fail first."""
    _create_directory_of_database(str(properties["uri"]))
    for attempt in range(1, _CREATE_ATTEMPTS + 1):
        try:
            return load_catalog(name, **properties)
        except Exception as error:
            if "already exists" not in str(error) or attempt == _CREATE_ATTEMPTS:
                raise
            time.sleep(_CREATE_RETRY_S * attempt)
    raise AssertionError("unreachable")


def _glue_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    # The credentials for S3 are those for Glue, unless others are configured.
    names = ("access-key-id", "secret-access-key", "session-token", "region")
    defaults = {f"glue.{name}": properties[f"s3.{name}"] for name in names if f"s3.{name}" in properties}
    merged = {**defaults, **properties}
    if "glue.max-retries" in merged:
        merged["glue.max-retries"] = int(merged["glue.max-retries"])  # pyiceberg passes it on as it is
    return merged


class CatalogConnection:
    """The catalog that all tables of a connector share. Each thread has its own connection.

    `renew` replaces the credentials for S3 and Glue. It takes effect when a table is loaded the next time.
    """

    def __init__(self, config: CatalogConfig, io: Mapping[str, str] | None = None) -> None:
        self.config = config
        self._io = dict(io or {})
        self._local = local()

    def renew(self, io: Mapping[str, str]) -> None:
        """Use other properties of `iceberg_properties` from now on."""
        self._io, self._local = dict(io), local()

    def catalog(self) -> Catalog:
        """Return the calling thread's connection. The first call connects."""
        catalog: Catalog | None = getattr(self._local, "catalog", None)
        if catalog is None:
            catalog = self._local.catalog = open_catalog(self.config, self._io)
        return catalog

    def vended_access(self, table: Table) -> S3Access | None:
        """Return the S3 credentials that a REST catalog has vended for the table, or None if there are none."""
        found = access_of_properties(table.io.properties) if self.config.type == "rest" else None
        return None if found is None or found.access_key == self._io.get("s3.access-key-id") else found

    def missing_credentials(self, table: Table) -> str | None:
        """Return what to do if a table on S3 has no vended credentials, or None if the connector has credentials."""
        if "s3.access-key-id" in self._io:
            return None
        properties = table.io.properties
        signs = properties.get("s3.remote-signing-enabled", "").lower() == "true" or "s3.signer" in properties
        offered = "signs requests (remote signing), which is not supported" if signs else "vends none"
        return (
            f"there are no S3 credentials, and the catalog {offered}; let the catalog vend credentials, or set"
            " aws.access.key.id and aws.secret.access.key"
        )


def may_vend_credentials(config: Mapping[str, str], root: TableUri | None) -> bool:
    """Whether the catalog of a connector's configuration may have S3 credentials for its tables."""
    try:
        return parse_catalog(config, root).type == "rest"
    except ConfigErrors:
        return False


def _create_directory_of_database(uri: str) -> None:
    scheme, separator, path = uri.partition(":///")
    if separator and scheme.startswith("sqlite") and path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def catalog_errors(
    config: Mapping[str, str], root: TableUri | None, access: S3Access | None = None
) -> Sequence[ConfigError]:
    """Return the errors of a connector's keys `iceberg.*`, after connecting to the catalog. For validation."""
    try:
        catalog = parse_catalog(config, root)
    except ConfigErrors as error:
        return error.errors
    return check_catalog(catalog, iceberg_properties(access) if access is not None else None)


def check_catalog(
    config: CatalogConfig, io: Mapping[str, str] | None = None, timeout_s: float = CHECK_TIMEOUT_S
) -> list[ConfigError]:
    """Connect to the catalog and look for the namespace. Returns the errors of the keys at fault."""
    found: list[BaseException | None] = []

    def connect() -> None:
        try:
            open_catalog(config, io).list_tables(config.namespace)
        except NoSuchNamespaceError:
            found.append(None)  # is created with the first table
        except Exception as error:  # noqa: BLE001 - the calling thread reports it
            found.append(error)
        else:
            found.append(None)

    # A thread, because database drivers and boto3 have own timeouts of minutes.
    thread = Thread(target=connect, name="iceberg-catalog-check", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not found:
        return [ConfigError(PREFIX + "uri", _shown_uri(config), f"the catalog did not answer within {timeout_s:g} s")]
    return [config_error(config, found[0])] if found[0] is not None else []


def config_error(config: CatalogConfig, error: BaseException) -> ConfigError:
    """Return the error of the key that is probably at fault for `error`."""
    text = describe_error(error)
    if isinstance(error, NotInstalledError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, ModuleNotFoundError):
        driver = f"needs a Python package that is not installed: {error.name}"
        return ConfigError(PREFIX + ("uri" if config.type == "sql" else "type"), _shown_uri(config), driver)
    if isinstance(error, (UnauthorizedError, ForbiddenError, OAuthError)):
        keys = "iceberg.catalog.credential, iceberg.catalog.token"
        return ConfigError(PREFIX + "credential", None, f"the catalog does not accept the credentials ({keys}): {text}")
    if "warehouse" in text.lower() and config.properties.get("warehouse"):
        return ConfigError(PREFIX + "warehouse", config.properties["warehouse"], text)
    if config.type == "glue":
        return ConfigError(PREFIX + "type", "glue", f"the Glue catalog cannot be used: {text}")
    return ConfigError(PREFIX + "uri", _shown_uri(config), f"the catalog cannot be used: {text}")


def _shown_uri(config: CatalogConfig) -> str:
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
