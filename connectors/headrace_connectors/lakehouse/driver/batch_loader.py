"""Loads one micro-batch: runs the Spark job, handles bad records, and commits the files to their tables."""

from __future__ import annotations

import logging
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from headrace.api.errors import ConnectError
from headrace.api.record_access import ClusterUnavailableError
from headrace_connectors.lakehouse.bad_records import bad_record_error
from headrace_connectors.lakehouse.column_types import leaf_types
from headrace_connectors.lakehouse.committers.base import BatchIdentity, Commit, TableSchemaError
from headrace_connectors.lakehouse.driver.bad_record_reports import BadRecordReports
from headrace_connectors.lakehouse.driver.tables import Table, Tables
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.job.results import FoundColumns, RangeResult, TaskFailure, TaskResult
from headrace_connectors.lakehouse.job.work import BatchWork
from headrace_connectors.lakehouse.offsets import Range, TopicPartition, truncate_ranges
from headrace_connectors.lakehouse.planner import Plan, check_topic_ids, split_ranges

TASK_ROWS_MIN = 20_000
_REPEATS_MAX = 100
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """What a micro-batch did: its ranges, the rows by table, and the durations of reading and committing."""

    ranges: tuple[Range, ...]
    rows: dict[str, int] = field(default_factory=dict)
    bad_count: int = 0
    newest_ms: int | None = None
    read_s: float = 0.0
    commit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The merged results of the tasks of a Spark job."""

    results: tuple[TaskResult, ...]

    @property
    def files(self) -> list[DataFile]:
        return [file for result in self.results for file in result.files]

    @property
    def ranges(self) -> list[RangeResult]:
        return [range_ for result in self.results for range_ in result.ranges]

    @property
    def found_columns(self) -> list[FoundColumns]:
        return [found for result in self.results for found in result.found_columns]

    def rows(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        return _sums(range_.rows for range_ in self.ranges)

    def dropped_tombstones(self) -> dict[str, int]:
        """Return, by table, the number of tombstones that could not become rows."""
        return _sums(range_.dropped_tombstones for range_ in self.ranges)


class BatchLoader:
    """Loads micro-batches one at a time.

    `run_job` runs a `BatchWork` on Spark's executors. `work()` returns a `BatchWork` without ranges and tables.
    `layout_of(name)` returns the layout of a new table. `check_files` checks that the driver sees the files of a job.
    The commits to the tables of a micro-batch run in `pool`.
    """

    def __init__(
        self,
        tables: Tables,
        work: Callable[[], BatchWork],
        run_job: Callable[[BatchWork], list[bytes]],
        reports: BadRecordReports,
        *,
        layout_of: Callable[[str], FileLayout],
        parallelism: Callable[[], int],
        routes_by_transform: bool,
        check_files: Callable[[Sequence[TaskResult]], None],
        pool: Executor,
    ) -> None:
        self._tables = tables
        self._work = work
        self._run_job = run_job
        self._reports = reports
        self._layout_of = layout_of
        self._parallelism = parallelism
        self._routes = routes_by_transform
        self._check_files = check_files
        self._pool = pool

    def load(self, identity: BatchIdentity, plan: Plan, before_commit: Callable[[], None]) -> LoadedBatch:
        """Load a micro-batch. Raises ConnectError if it cannot be loaded.

        If a bad record must fail the task, loads the records before the first bad record of each partition, and then
        raises BadRecordError. `before_commit` raises an error if the batch must be cancelled.
        """
        started = time.monotonic()
        outcome = self._run(identity, plan)
        self._check_foreign_tables(outcome)
        error = None if self._reports.tolerates_errors else bad_record_error(outcome.ranges)
        if error is not None:
            self._discard(outcome.files)
            plan = replace(plan, ranges=tuple(truncate_ranges(plan.ranges, error.first_bad_offsets)))
            outcome = self._run(identity, plan) if plan.ranges else JobOutcome(())
        try:
            self._reports.report(outcome.ranges, self._work(), lambda: self._targets(plan))
            before_commit()
        except BaseException:
            self._discard(outcome.files)
            raise
        self._warn_dropped(outcome)
        read_s = time.monotonic() - started
        self._commit(identity, outcome, plan)
        loaded = LoadedBatch(
            plan.ranges,
            outcome.rows(),
            sum(range_.bad_count for range_ in outcome.ranges),
            max((range_.newest_ms for range_ in outcome.ranges if range_.newest_ms is not None), default=None),
            read_s,
            time.monotonic() - started - read_s,
        )
        _log_progress(identity, loaded)
        if error is not None:
            raise error
        return loaded

    # --- the job ----------------------------------------------------------------------------------------------------

    def _run(self, identity: BatchIdentity, plan: Plan) -> JobOutcome:
        """Run the job. If it found the columns of tables that do not exist, discard its files and run it again."""
        for _ in range(_REPEATS_MAX):
            outcome = self._run_once(identity, plan)
            if not self._create_tables(outcome, plan):
                self._check_files(outcome.results)
                return outcome
            self._discard(outcome.files)
        raise ConnectError(f"batch {identity.batch_id}: the columns of the tables change with each attempt to load it")

    def _run_once(self, identity: BatchIdentity, plan: Plan) -> JobOutcome:
        tasks = split_ranges(plan.ranges, self._parallelism(), TASK_ROWS_MIN)
        work = replace(
            self._work(),
            tables=self._targets(plan),
            tasks=tuple(map(tuple, tasks)),
            topic_ids=plan.topic_ids,
            file_prefix=f"{identity.generation}-{identity.batch_id}",
            stop_at_bad=not self._reports.tolerates_errors,
        )
        results = [pickle.loads(data) for data in self._run_job(work)]
        for result in results:
            if isinstance(result, TaskFailure):
                self._discard([file for other in results if isinstance(other, TaskResult) for file in other.files])
                raise ClusterUnavailableError(result.message) if result.is_retriable else ConnectError(result.message)
        return JobOutcome(tuple(results))

    def _targets(self, plan: Plan) -> dict[str, TableTarget]:
        """Return the tables of the ranges' topics. If a transform may change topics, return all open tables.

        Raises ConnectError if these tables have offsets of a deleted topic, because they would skip records of the new
        topic with the same name.
        """
        name_of = self._work().rules.names.name_of
        names = self._tables.names() if self._routes else sorted({name_of(range_.topic) for range_ in plan.ranges})
        for name in names if self._routes else ():
            check_topic_ids(self._tables[name].offsets.topic_ids, plan.topic_ids)
        return {name: self._tables[name].target(self._layout_of(name), skip_loaded=self._routes) for name in names}

    def _create_tables(self, outcome: JobOutcome, plan: Plan) -> bool:
        """Create the tables whose columns the job found. Return whether the job must run again.

        A table gets the columns of the record with the smallest (topic, partition, offset). The job must run again if
        other records of the table became rows with other columns, or could not be written.
        """
        by_table: dict[str, list[FoundColumns]] = defaultdict(list)
        for found in outcome.found_columns:
            by_table[found.table].append(found)
        unopened = [name for name in by_table if name not in self._tables]
        self._tables.open(dict.fromkeys(unopened, plan.partitions))
        repeat = bool(unopened)
        dropped = outcome.dropped_tombstones()
        for name, found_columns in sorted(by_table.items()):
            table = self._tables[name]
            if table.columns is not None:
                continue
            written = table.committer.data_location() is not None
            chosen = min(found_columns, key=lambda each: each.order)
            table.create(chosen.columns, self._layout_of(name))
            types = leaf_types(chosen.columns)
            differs = any(leaf_types(each.columns) != types for each in found_columns)
            repeat = repeat or not written or differs or name in dropped
        return repeat

    def _check_foreign_tables(self, outcome: JobOutcome) -> None:
        """Raise TableSchemaError if another tool created a table and none of the records match it.

        In this case the configuration is wrong, so the records must not be skipped as bad records.
        """
        rows = outcome.rows()
        for bad in (bad for range_ in outcome.ranges for bad in range_.bad if bad.columns_mismatch):
            table = self._tables.get(bad.table)
            if table is not None and not table.is_ours and table.committer.exists() and not rows.get(table.name):
                raise TableSchemaError(
                    f"topic {bad.failure.topic}: {bad.failure.reason}; table {table.name} was not created by this"
                    " connector: set another table name (lakehouse.table.name.format), or change the table's columns"
                )

    def _discard(self, files: Iterable[DataFile]) -> None:
        by_table: dict[str, list[DataFile]] = defaultdict(list)
        for file in files:
            by_table[file.table].append(file)
        for name, table_files in by_table.items():
            self._tables[name].committer.discard(table_files)

    def _warn_dropped(self, outcome: JobOutcome) -> None:
        for name, count in sorted(outcome.dropped_tombstones().items()):
            logger.warning(
                "Table %s: dropping %d tombstones, because the table does not exist yet and no earlier record had a"
                " schema from which to create the table",
                name,
                count,
            )

    # --- commits ----------------------------------------------------------------------------------------------------

    def _commit(self, identity: BatchIdentity, outcome: JobOutcome, plan: Plan) -> None:
        """Commit to all tables of the batch in parallel. Raises the first error after all commits have ended."""
        files: dict[str, list[DataFile]] = defaultdict(list)
        for file in outcome.files:
            files[file.table].append(file)
        commits = []
        for name, table_ranges in self._ranges_of_tables(outcome, plan.ranges).items():
            table = self._tables[name]
            if table.columns is None:
                continue  # the table cannot be created without columns, so it stores no offsets
            offsets = table.offsets.after(table_ranges, plan.topic_ids)
            commits.append((table, Commit(identity, offsets, files.get(name, ()))))
        futures = [self._pool.submit(Table.commit, table, commit) for table, commit in commits]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _ranges_of_tables(self, outcome: JobOutcome, ranges: Sequence[Range]) -> dict[str, list[Range]]:
        """Return the ranges whose offsets each table stores.

        A table stores the offsets of all partitions of its topics. If a transform may change topics, a table stores
        only the offsets of the partitions that it has rows of.
        """
        found: dict[str, list[Range]] = defaultdict(list)
        if not self._routes:
            names = self._work().rules.names
            for range_ in ranges:
                found[names.name_of(range_.topic)].append(range_)
            return found
        sources: dict[str, set[TopicPartition]] = defaultdict(set)
        for result in outcome.ranges:
            for name, count in result.rows.items():
                if count:
                    sources[name].add(result.range.key)
        return {name: [range_ for range_ in ranges if range_.key in keys] for name, keys in sorted(sources.items())}


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def _log_progress(identity: BatchIdentity, loaded: LoadedBatch) -> None:
    rows, total_s = sum(loaded.rows.values()), loaded.read_s + loaded.commit_s
    tables = ", ".join(f"{name} +{count:,}" for name, count in sorted(loaded.rows.items()) if count)
    logger.info(
        "Committed batch %d: %s rows in %.1f s (%s rows/s; reading took %.1f s, committing took %.1f s): %s",
        identity.batch_id,
        f"{rows:,}",
        total_s,
        f"{rows / max(total_s, 1e-3):,.0f}",
        loaded.read_s,
        loaded.commit_s,
        tables or "offsets only",
    )
