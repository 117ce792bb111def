"""Parses a connector's keys `iceberg.*`. This module does no I/O, and does not import pyiceberg.

The keys are those of Apache's Iceberg sink; after the prefix they are pyiceberg's, which are mostly Java's. Keys that
name Java classes, and catalogs that pyiceberg does not have, are rejected with the key to use instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.api.errors import ConfigError, ConfigErrors
from headrace_connectors.lakehouse.table_names import DEFAULT_CATALOG, DEFAULT_NAMESPACE
from headrace_connectors.lakehouse.table_uri import TableUri

CATALOG_KEY = "iceberg.catalog"
NAMESPACE_KEY = "iceberg.namespace"
PREFIX = "iceberg.catalog."
CATALOG_TYPES = ("rest", "sql", "glue", "hive")
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
    properties: dict[str, Any] = {**_defaults(type_, root), **given, "type": type_}
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


def _defaults(type_: str, root: TableUri | None) -> dict[str, str]:
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


def may_vend_credentials(config: Mapping[str, str], root: TableUri | None) -> bool:
    """Whether the catalog of a connector's configuration may have S3 credentials for its tables."""
    try:
        return parse_catalog(config, root).type == "rest"
    except ConfigErrors:
        return False
