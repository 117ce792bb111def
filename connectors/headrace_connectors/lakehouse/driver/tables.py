"""The tables that a run of the task has opened: their committers, and the offsets that they contain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.committers.base import Commit, TableCommitter, TableSchemaError
from headrace_connectors.lakehouse.driver.ownership import check_owner
from headrace_connectors.lakehouse.error_messages import table_error
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.layout_text import layout_problems
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition


class Table:
    """An open table. `offsets` has this connector's offsets in the table. Not thread-safe."""

    def __init__(self, committer: TableCommitter, offsets: TableOffsets) -> None:
        self.committer = committer
        self.offsets = offsets
        self.is_ours = bool(offsets.next_offsets)
        """Whether this connector had committed offsets to the table when it was opened."""
        self._new_columns: tuple[TableColumn, ...] | None = None

    @property
    def name(self) -> str:
        return self.committer.name

    @property
    def columns(self) -> tuple[TableColumn, ...] | None:
        """The columns of the table, also of a table that the next commit creates. None if they are not known yet."""
        return self.committer.columns() or self._new_columns

    def create(self, columns: tuple[TableColumn, ...], layout: FileLayout) -> None:
        """Create the table, or declare its columns for the next commit, which creates it. Raises ConnectError."""
        problems = layout_problems(layout, columns)
        if problems:
            raise TableSchemaError(f"table {self.committer.location} cannot be created: {'; '.join(problems)}")
        self.committer.create(columns, layout)
        self._new_columns = columns

    def commit(self, commit: Commit) -> None:
        """Commit, and store the offsets. Raises ConnectError."""
        try:
            self.committer.commit(commit)
        except ConnectError:
            raise
        except Exception as error:  # the libraries of tables raise exceptions without a common base class
            raise table_error(self.committer.location, "written", error) from error
        self.offsets = commit.offsets

    def target(self, layout: FileLayout, *, skip_loaded: bool) -> TableTarget:
        """Return what executors need to write files. `layout` is for a table that does not exist yet.

        If `skip_loaded` is true, executors skip the records below the table's offsets.
        """
        committer = self.committer
        return TableTarget(
            committer.name,
            committer.data_location(),
            self.columns,
            committer.layout() or layout,
            dict(self.offsets.next_offsets) if skip_loaded else {},
            committer.location,
            committer.field_ids(),
        )


class Tables:
    """The open tables of a run. `make_committer` returns the committer for a table's name.

    `check` raises ConnectError if the configuration does not fit an existing table.
    """

    def __init__(
        self,
        make_committer: Callable[[str], TableCommitter],
        check: Callable[[TableCommitter], None],
        taken_over: str | None,
        pool: Executor,
    ) -> None:
        self._make_committer = make_committer
        self._check = check
        self._taken_over = taken_over
        self._pool = pool
        self._tables: dict[str, Table] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def get(self, name: str | None) -> Table | None:
        """Return the open table with that name, or None."""
        return None if name is None else self._tables.get(name)

    def names(self) -> list[str]:
        """Return the names of the open tables."""
        return list(self._tables)

    def open(self, partitions_of: Mapping[str, Iterable[TopicPartition]]) -> None:
        """Open tables in parallel: `partitions_of` has, by table, the partitions whose records it may contain.

        Raises ConnectError if a table cannot be read, or if it has another connector's offsets for these partitions.
        """
        wanted = {name: list(partitions) for name, partitions in partitions_of.items() if name not in self._tables}
        for table in self._pool.map(self._open, wanted, wanted.values()):
            self._tables[table.name] = table

    def close(self) -> None:
        """Close all tables."""
        for table in self._tables.values():
            table.committer.close()
        self._tables.clear()

    def _open(self, name: str, partitions: list[TopicPartition]) -> Table:
        committer = self._make_committer(name)
        try:
            offsets = committer.load(partitions)
            offsets = check_owner(committer, offsets, partitions, self._taken_over)
            self._check(committer)
        except ConnectError:
            raise
        except Exception as error:  # the libraries of tables raise exceptions without a common base class
            raise table_error(committer.location, "read", error) from error
        return Table(committer, offsets)
