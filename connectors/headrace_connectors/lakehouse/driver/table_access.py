"""Opens the committers of a connector's tables, with the credentials that S3 needs and that may expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.base import TableCommitter
from headrace_connectors.lakehouse.committers.formats import open_committer
from headrace_connectors.lakehouse.driver.table_search import names_in_catalog, names_in_directory
from headrace_connectors.lakehouse.error_messages import error_text
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.s3_access import S3Access, iceberg_properties
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig

if TYPE_CHECKING:
    from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection
    from headrace_connectors.lakehouse.s3_settings import AccessProvider

_JOB_S = 900.0
"""Temporary credentials are renewed if they expire within this time, because a job may take as long."""


class TableAccess:
    """Opens committers, and keeps their credentials valid. Use it on one thread, except for `open`."""

    def __init__(self, config: LakehouseSinkConfig, connector: str) -> None:
        self._config = config
        self._connector = connector
        self._root = config.root
        self._provider: AccessProvider | None = None
        self._may_vend = False
        if config.uses_s3():
            from headrace_connectors.lakehouse.s3_settings import AccessProvider

            self._provider = AccessProvider(config)
            if config.format == "iceberg":
                from headrace_connectors.lakehouse.committers.iceberg_config import may_vend_credentials

                self._may_vend = may_vend_credentials(config.originals, config.root)
        self._access: S3Access | None = None
        self._catalog: CatalogConnection | None = None
        self._committers: list[TableCommitter] = []

    def store(self) -> FileStore:
        """Return the file systems for the next job. Raises ConnectError if there are no valid credentials."""
        if self._provider is not None:
            access = self._provider.current(_JOB_S, required=not self._may_vend)
            if access != self._access:
                self._use(access)
        vended = {committer.data_location(): committer.vended_access(_JOB_S) for committer in self._committers}
        return FileStore(self._access, {place: access for place, access in vended.items() if place and access})

    def close(self) -> None:
        """Forget the committers that `open` has returned."""
        self._committers.clear()

    def open(self, name: str) -> TableCommitter:
        """Return the committer of the table with that name."""
        committer = self._open(name)
        self._committers.append(committer)
        return committer

    def find_names(self) -> list[str]:
        """Return the names of all tables at the location of the connector's tables. Call `store` before.

        Raises ConnectError if the tables cannot be listed.
        """
        try:
            if self._config.format == "iceberg":
                return sorted(names_in_catalog(self._connection().catalog()))
            assert self._root is not None
            return sorted(names_in_directory(FileStore(self._access), self._root, self._config.format))
        except Exception as error:  # catalogs and file systems raise exceptions without a common base class
            raise ConnectError(f"the tables of the connector cannot be listed: {error_text(error)}") from error

    def _open(self, name: str) -> TableCommitter:
        config = self._config
        if config.format == "iceberg":
            from headrace_connectors.lakehouse.committers.iceberg import IcebergCommitter

            location = None if self._root is None else str(self._root / name)
            return IcebergCommitter(name, self._connection(), self._connector, location)
        assert self._root is not None
        return open_committer(config.format, name, self._root / name, self._connector, self._access)

    def _connection(self) -> CatalogConnection:
        if self._catalog is None:
            from headrace_connectors.lakehouse.committers.iceberg_catalog import CatalogConnection
            from headrace_connectors.lakehouse.committers.iceberg_config import parse_catalog

            catalog = parse_catalog(self._config.originals, self._root)
            io = None if self._access is None else iceberg_properties(self._access)
            self._catalog = CatalogConnection(catalog, io)
        return self._catalog

    def _use(self, access: S3Access) -> None:
        self._access = access
        if self._catalog is not None:
            self._catalog.renew(iceberg_properties(access))
        for committer in self._committers:
            committer.use_access(access)
