"""Checks once per run that the driver sees the files that the executors of each host have written."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.driver.tables import Tables
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.job.results import TaskResult
from headrace_connectors.lakehouse.table_uri import TableUri


class SharedPathCheck:
    """Looks for one file of each executor host, before the first commit with files of this host."""

    def __init__(self, tables: Tables) -> None:
        self._store = FileStore(None)
        self._tables = tables
        self._checked: set[str] = set()

    def __call__(self, results: Sequence[TaskResult]) -> None:
        """Raise ConnectError if a file of an executor does not exist for the driver."""
        for result in results:
            if result.host in self._checked or not result.files:
                continue
            file = result.files[0]
            location = self._tables[file.table].committer.data_location()
            if location is None or TableUri.parse(location).is_s3:
                continue
            if not self._store.exists(location, file.path):
                raise ConnectError(
                    f"the executor on host {result.host} wrote {file.path} into {location}, but this worker cannot see"
                    " the file: lakehouse.path must be a directory that all machines share, or an s3: URI"
                )
            self._checked.add(result.host)
