"""LakehouseSinkConnector, whose task loads topics into tables with Spark batch jobs.

The task's process plans micro-batches from the offsets in the tables, and commits the files that Spark's executors
wrote. Records never pass through it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.api.config_def import ConfigValue, to_text
from headrace.api.connector import SinkConnector
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.api.record_access import ClusterUnavailableError
from headrace.api.retries import Retries, RetryPolicy
from headrace.api.task import SelfReadingSinkTask
from headrace_connectors.lakehouse.error_messages import disk_full_error, is_disk_full, jvm_exit_error
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig
from headrace_connectors.lakehouse.spark.jobs import SparkStartError
from headrace_connectors.lakehouse.validation import (
    check,
    check_brokers,
    check_environment,
    check_value_format,
    ignored_key_warnings,
    no_effect_warnings,
)

if TYPE_CHECKING:
    from headrace_connectors.lakehouse.driver.session import LoadSession

_RETRY_MS = 1000
logger = logging.getLogger(__name__)


class LakehouseSinkTask(SelfReadingSinkTask[LakehouseSinkConfig]):
    """Loads micro-batches until the task is stopped. A pause ends the run, and a resume starts another."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._changed = threading.Event()  # `stop`, `pause` and `resume` set this event
        self._paused = False
        self._session: LoadSession | None = None
        self._retries = Retries(RetryPolicy(_RETRY_MS, logged_every=10))

    def start(self, config: LakehouseSinkConfig) -> None:
        """Validate the effective value converter and the brokers, and check that the directories are writable.

        Only the task can perform these checks, because they depend on the worker. Raises ConfigErrors if there are
        errors.
        """
        self._config = config
        declared = config.default_options().declared is not None or bool(config.table_options())
        errors = list(check_value_format(self.context.props, declared))
        self._name = self.context.connector_name
        bootstrap = self.context.client_properties.get("bootstrap.servers", "")
        errors += check_brokers(config.spark_remote or config.spark_master, bootstrap)
        if config.root is not None and not config.root.is_s3:
            from headrace_connectors.lakehouse.location_check import check_directory

            errors += check_directory(config.root.local)
        if errors:
            raise ConfigErrors(errors)
        for warning in no_effect_warnings(config.originals):
            logger.warning(warning)
        self._paused = self.context.pause_requested

    def run(self) -> None:
        """Load micro-batches until `stop` is called. Spark's JVM exits when this method returns."""
        from headrace_connectors.lakehouse.spark.local_directory import local_directory

        with local_directory(self._config.spark_files(self._name)) as directory:
            self._run(directory)

    def _run(self, directory: Path) -> None:
        """Load micro-batches. `directory` is for Spark's temporary files."""
        from headrace_connectors.lakehouse.driver.session import LoadSession
        from headrace_connectors.lakehouse.spark.jobs import open_jobs

        config = self._config
        jobs = open_jobs(
            config.spark_conf(),
            config.spark_remote,
            f"headrace {self._name}",
            directory,
            replace(config.job_settings(), run_module=self.context.run_module),
        )
        session = self._session = LoadSession(config, self.context, self._name, jobs)
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                if self._stopping.is_set():
                    break
                if self._paused:
                    self._changed.wait()
                else:
                    self._run_once(session)
        finally:
            session.close()

    def stop(self) -> None:
        """Make `run` return. The current micro-batch is cancelled, or completed if its commit has started."""
        self._stopping.set()
        self._interrupt()

    def pause(self) -> None:
        """End the run. Spark keeps running."""
        self._paused = True
        self._interrupt()

    def resume(self) -> None:
        """Start another run."""
        self._paused = False
        self._interrupt()

    def _interrupt(self) -> None:
        self._changed.set()
        if self._session is not None:
            self._session.cancel(is_stopping=self._stopping.is_set())

    def _run_once(self, session: LoadSession) -> None:
        try:
            session.run(self._changed, self._retries.succeeded)
        except ClusterUnavailableError as error:
            retry = self._retries.failed(error)
            retry.log(logger)
            self._changed.wait(retry.pause_s)
        except ConnectError as error:
            if self._stopping.is_set():  # `stop` kills a starting JVM
                return
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from error
        except Exception as error:
            raise self._explain(error) or ConnectError(f"the micro-batch failed: {error}") from error

    def _explain(self, error: Exception) -> ConnectError | None:
        """Return the error that caused `error`, if it is a JVM that has exited, or a full disk."""
        assert self._session is not None
        if isinstance(error, SparkStartError):  # it has the reason, and ends the JVM
            return None
        status = self._session.jvm_exit_status()
        if status is not None:
            return jvm_exit_error(status, self._session.jvm_output())
        if is_disk_full(str(error)) and self._config.root is not None:
            return disk_full_error(Path(str(self._config.root)), "lakehouse.path")
        return None


class LakehouseSinkConnector(SinkConnector[LakehouseSinkConfig]):
    """Starts a single task. The task loads all topics, on all cores of `spark.master`."""

    task_class = LakehouseSinkTask

    def start(self, config: LakehouseSinkConfig) -> None:
        """Store the configuration for the task."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return one configuration regardless of `tasks.max`, because Spark distributes the work to cores."""
        if max_tasks > 1:
            logger.info(
                "Starting only one task despite tasks.max=%d, because Spark distributes the work of this task to the "
                "cores that spark.master sets",
                max_tasks,
            )
        return [self._config.originals]

    def warnings(self, config: LakehouseSinkConfig) -> list[str]:
        """Return also warnings about keys that have no effect."""
        return [*super().warnings(config), *no_effect_warnings(config.originals), *ignored_key_warnings(config)]

    def validate_config(self, config: LakehouseSinkConfig) -> Iterator[ConfigError]:
        """Return errors about Java, the bucket, the Iceberg catalog, and the package for executors."""
        yield from check_environment(config)

    def alter_offsets(self, config: LakehouseSinkConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool | str:
        """Write the offsets into the tables, because the task starts at the tables' offsets."""
        from headrace_connectors.lakehouse.driver.positions import alter_table_offsets

        return alter_table_offsets(config, self.offsets_context, offsets) or True

    @classmethod
    def required_extra(cls, props: Mapping[str, str]) -> str:
        """Return the extra that installs Spark and the libraries of the table formats."""
        return "spark"

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Add to `values` the errors that the validation of single keys does not find."""
        defaults = {name: to_text(value.value) for name, value in values.items() if name.startswith("value.converter.")}
        converter = {name: text for name, text in defaults.items() if text is not None}
        for error in check({**converter, **props}):
            values.setdefault(error.key, ConfigValue(error.key, error.value)).errors.append(str(error))
