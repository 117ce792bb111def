"""Finds all tables below the location of a connector's tables, also those of other programs.

If a transform may change topics, the configuration does not tell which tables a connector has loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.table_names import RESERVED
from headrace_connectors.lakehouse.table_uri import TableUri

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_LOG_DIRECTORIES = {"delta": "_delta_log", "parquet": "_headrace"}
logger = logging.getLogger(__name__)


def names_in_directory(store: FileStore, root: TableUri, format_: str) -> Iterator[str]:
    """Yield the names of the Delta or Parquet tables below `root`. Raises OSError."""
    for name in store.directories(str(root)):
        if name not in RESERVED:
            yield from _search(store, root, name, _LOG_DIRECTORIES[format_])


def _search(store: FileStore, root: TableUri, name: str, log_directory: str) -> Iterator[str]:
    children = store.directories(str(root / name))
    if log_directory in children:
        yield name
        return
    for child in children:
        yield from _search(store, root, f"{name}/{child}", log_directory)


def names_in_catalog(catalog: Catalog, namespace: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the names of the tables in a namespace, and in the namespaces below it. By default, in all namespaces.

    Namespaces that the catalog does not let the connector list are left out, because it cannot load tables there
    either. Raises the errors of the catalog.
    """
    from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError

    try:
        tables = catalog.list_tables(namespace) if namespace else []
        children = catalog.list_namespaces(namespace)
    except (ForbiddenError, NoSuchNamespaceError) as error:
        logger.warning("Iceberg namespace %s: not searched for tables of the connector: %s", ".".join(namespace), error)
        return
    yield from ("/".join(table) for table in tables)
    for child in children:
        yield from names_in_catalog(catalog, child)
