"""A task's Spark session, and the parts of each run: reader, tables, loader. Spark starts while the first run plans."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.api.record_access import OpenRecordReader
from headrace.api.task import SelfReadingSinkTaskContext
from headrace_connectors.lakehouse.committers.base import TableCommitter
from headrace_connectors.lakehouse.driver.bad_record_reports import BadRecordReports
from headrace_connectors.lakehouse.driver.batch_loader import BatchLoader
from headrace_connectors.lakehouse.driver.load_metrics import LoadMetrics
from headrace_connectors.lakehouse.driver.run import LoadRun, RunCancelledError, RunSettings
from headrace_connectors.lakehouse.driver.shared_path import SharedPathCheck
from headrace_connectors.lakehouse.driver.table_access import TableAccess
from headrace_connectors.lakehouse.driver.table_columns import check_table_columns
from headrace_connectors.lakehouse.driver.tables import Tables
from headrace_connectors.lakehouse.job.results import FAILED_RECORDS_MAX
from headrace_connectors.lakehouse.job.work import BatchWork, RecordSource, TableRules
from headrace_connectors.lakehouse.offsets import TopicPartition
from headrace_connectors.lakehouse.planner import Limits, Planner
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig
from headrace_connectors.lakehouse.spark.jobs import JobCancelledError, SparkJobs

_COMMITS_MAX = 8
logger = logging.getLogger(__name__)


class LoadSession:
    """Owns Spark and the threads of a task. `run` is called on the task's thread, `cancel` on any."""

    def __init__(
        self, config: LakehouseSinkConfig, context: SelfReadingSinkTaskContext, connector: str, jobs: SparkJobs
    ) -> None:
        self._config = config
        self._context = context
        self._connector = connector
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(_COMMITS_MAX, "lakehouse-table")
        self._starter = ThreadPoolExecutor(1, "lakehouse-spark")
        self._stopping = threading.Event()
        self._metrics = LoadMetrics(context.metrics)
        self._access = TableAccess(config, connector)
        self._started: Future[None] | None = None
        self._generation = 0
        self._starts: dict[TopicPartition, int] = {}

    def run(self, changed: threading.Event, on_connected: Callable[[], object]) -> None:
        """Load micro-batches until `changed` is set. `on_connected` is called when the cluster has responded."""
        if self._started is None:
            self._started = self._starter.submit(self._start_spark)
        context = self._context
        reader_config = context.record_reader()
        pipeline = context.record_pipeline(FAILED_RECORDS_MAX, json_texts=True)
        source = RecordSource(uuid.uuid4().hex, reader_config, pipeline)
        settings = self._settings(routes_by_transform=pipeline.changes_topics)
        with reader_config.open() as reader, self._tables() as tables:
            planner = self._planner(reader)
            planner.describe_topics()
            on_connected()
            loader = self._loader(source, tables, settings)
            run = LoadRun(settings, context, planner, reader, tables, loader, changed, self._metrics, self._starts)
            with contextlib.suppress(RunCancelledError, JobCancelledError):
                run.run()

    def _start_spark(self) -> None:
        self._jobs.start(self._stopping.is_set)
        if not self._jobs.is_local:
            self._jobs.check_executors()

    def cancel(self, *, is_stopping: bool) -> None:
        """Cancel the current job. If the task is stopping, do not wait until Spark has started."""
        if is_stopping:
            self._stopping.set()
        if self._started is not None and not self._started.done():
            if is_stopping:
                self._jobs.kill()
            return
        self._jobs.cancel()

    def close(self) -> None:
        """Stop Spark."""
        self._stopping.set()
        if self._started is not None and not self._started.done():
            self._jobs.kill()
        self._starter.shutdown()  # a start that has not ended yet would create files and sessions after `stop`
        self._jobs.stop()
        self._pool.shutdown()

    def jvm_exit_status(self) -> int | None:
        """Return the exit status of Spark's JVM, or None if it is running or there is none."""
        return self._jobs.exit_status()

    def jvm_output(self) -> str:
        """Return the last lines that Spark's JVM wrote."""
        return self._jobs.output()

    # --- parts of a run ---------------------------------------------------------------------------------------------

    def _settings(self, *, routes_by_transform: bool) -> RunSettings:
        config = self._config
        self._generation = max(self._generation + 1, time.time_ns() // 1_000_000)
        return RunSettings(
            self._connector,
            self._generation,
            config.names,
            config.trigger_interval_ms / 1000,
            self._context.client_properties.get("auto.offset.reset") == "latest",
            routes_by_transform,
            config.local_tables(),
        )

    def _planner(self, reader: OpenRecordReader) -> Planner:
        config, context = self._config, self._context
        limits = Limits(config.batch_rows_max, config.batch_bytes_max)
        return Planner(reader, context.topics, context.topics_regex, limits, fail_on_data_loss=config.fail_on_data_loss)

    @contextlib.contextmanager
    def _tables(self) -> Iterator[Tables]:
        self._access.store()
        tables = Tables(self._access.open, self._check_table, self._config.take_over, self._pool)
        try:
            yield tables
        finally:
            tables.close()
            self._access.close()

    def _check_table(self, committer: TableCommitter) -> None:
        columns = committer.columns()
        if columns is not None:
            options = self._config.table_options().get(committer.name, self._config.default_options())
            check_table_columns(committer.location, columns, options)

    def _loader(self, source: RecordSource, tables: Tables, settings: RunSettings) -> BatchLoader:
        config = self._config
        rules = TableRules(settings.names, config.default_options(), config.table_options(), "LakehouseSinkTask")

        def work() -> BatchWork:
            store = self._access.store()
            return BatchWork(source, rules, {}, (), {}, store, config.writer_settings(), "", stop_at_bad=False)

        return BatchLoader(
            tables,
            work,
            self._run_job,
            BadRecordReports(
                self._context.errant_record_reporter,
                lambda: self._context.record_pipeline(sys.maxsize, json_texts=True),
            ),
            layout_of=config.layout_of,
            parallelism=lambda: self._started_jobs().parallelism,
            routes_by_transform=settings.routes_by_transform,
            check_files=SharedPathCheck(tables),
            pool=self._pool,
        )

    def _run_job(self, work: BatchWork) -> list[bytes]:
        return self._started_jobs().run(work, len(work.tasks), f"headrace {self._connector}")

    def _started_jobs(self) -> SparkJobs:
        """Wait until Spark has started. Raises the error of the start."""
        assert self._started is not None
        self._started.result()
        return self._jobs
