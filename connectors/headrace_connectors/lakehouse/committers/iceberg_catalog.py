"""Connects to Iceberg catalogs, and checks them at validation.

Every request to a REST catalog has a timeout, because pyiceberg sets none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Thread, local
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from requests import Session

from headrace.api.errors import ConfigError, ConfigErrors
from headrace_connectors.lakehouse.committers.iceberg_config import PREFIX, CatalogConfig, parse_catalog
from headrace_connectors.lakehouse.committers.iceberg_errors import config_error, shown_uri
from headrace_connectors.lakehouse.committers.iceberg_io import TABLE_FILE_IO
from headrace_connectors.lakehouse.s3_access import S3Access, access_of_properties, iceberg_properties
from headrace_connectors.lakehouse.table_uri import TableUri

CHECK_TIMEOUT_S = 20.0
_REQUEST_TIMEOUT_S = 60.0
_CREATE_ATTEMPTS = 5
_CREATE_RETRY_S = 0.05


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
        return [ConfigError(PREFIX + "uri", shown_uri(config), f"the catalog did not answer within {timeout_s:g} s")]
    return [config_error(config, found[0])] if found[0] is not None else []
