"""LakehouseSinkConnector, whose task loads topics into tables with a Spark Structured Streaming query.

Each run of the query has a new generation number. A run starts at the offsets in the tables and uses a new checkpoint
directory, so that Spark's checkpoint cannot contradict the tables. A lost or corrupt checkpoint does no harm.
"""

from __future__ import annotations

import contextvars
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.api.config_def import ConfigValue, to_text
from headrace.api.connector import SinkConnector
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.api.retries import Retries, RetryPolicy
from headrace.api.task import SelfReadingSinkTask
from headrace_connectors.lakehouse.error_messages import disk_full_error, is_disk_full, jvm_exit_error
from headrace_connectors.lakehouse.sink_config import (
    LakehouseSinkConfig,
    ValueFormat,
    check,
    check_value_format,
)

if TYPE_CHECKING:
    from headrace_connectors.lakehouse.query import LoadQuery
    from headrace_connectors.lakehouse.session import SparkProcess

_RETRY_MS = 1000
_PROBE_BYTES = 1 << 20
logger = logging.getLogger(__name__)


class LakehouseSinkTask(SelfReadingSinkTask[LakehouseSinkConfig]):
    """Runs the Spark query until the task is stopped.

    A pause stops the query, and a resume starts it with a new generation number.
    """

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._changed = threading.Event()  # `stop`, `pause` and `resume` set this event
        self._paused = False
        self._spark: SparkProcess | None = None
        self._retries = Retries(RetryPolicy(_RETRY_MS, logged_every=10))

    def start(self, config: LakehouseSinkConfig) -> None:
        """Validate the effective value converter, and check that the directories are writable.

        Only the task can perform these checks, because they depend on the worker. Raises ConfigErrors if there are
        errors.
        """
        self._config = config
        value = ValueFormat(self.context.props)
        declared = config.declared_default() is not None or bool(config.declared_schemas())
        errors = list(check_value_format(value, declared))
        self._value = value
        self._name = self.context.props.get("name") or self.context.client_properties["group.id"].removeprefix(
            "connect-"
        )
        errors += _check_writable(config.root, "lakehouse.path")
        if not errors:
            errors += _check_writable(config.checkpoint_root(self._name), "lakehouse.checkpoint.path")
        if errors:
            raise ConfigErrors(errors)
        self._paused = self.context.pause_requested

    def run(self) -> None:
        """Run queries until `stop` is called. Spark's JVM exits when this method returns."""
        from headrace_connectors.lakehouse.session import SparkProcess, SparkStartError

        checkpoints = self._config.checkpoint_root(self._name)
        spark = SparkProcess(self._config.spark_conf(), f"headrace {self._name}", checkpoints / "spark")
        self._spark = spark
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                if self._paused:
                    self._changed.wait()
                else:
                    self._run_query(spark, checkpoints)
        except SparkStartError:
            if not self._stopping.is_set():  # it is not an error if `stop` has killed the starting JVM
                raise
        finally:
            spark.stop()

    def stop(self) -> None:
        """Make `run` return. The current micro-batch is cancelled, or completed if its commit has started."""
        self._stopping.set()
        self._changed.set()
        if self._spark is not None and self._spark.session is None:
            self._spark.kill()  # do not wait until Spark has started, which takes seconds

    def pause(self) -> None:
        """Stop the query. Spark's JVM keeps running."""
        self._paused = True
        self._changed.set()

    def resume(self) -> None:
        """Start a new query."""
        self._paused = False
        self._changed.set()

    def _run_query(self, spark: SparkProcess, checkpoints: Path) -> None:
        from headrace_connectors.lakehouse.query import LoadQuery
        from headrace_connectors.lakehouse.spec import SourceUnavailableError

        query: LoadQuery | None = None
        try:
            query = LoadQuery(self._config, self._value, self.context, self._name, contextvars.copy_context())
            start_offset = query.find_start_offset()
            generation = _new_generation(checkpoints)
            query.start(spark.session or spark.start(self._stopping.is_set), start_offset, checkpoints, generation)
            self._retries.succeeded()
            query.await_end(self._changed)
        except SourceUnavailableError as error:
            retry = self._retries.failed(error)
            retry.log(logger)
            self._changed.wait(retry.pause_s)
        except ConnectError:
            raise
        except Exception as error:  # py4j and Spark raise exceptions without a common base class
            raise _query_error(error, spark, checkpoints) from error
        finally:
            if query is not None:
                query.stop()


def _query_error(error: Exception, spark: SparkProcess, checkpoints: Path) -> ConnectError:
    """Convert an exception of Spark or py4j to a ConnectError with the cause."""
    status = spark.exit_status()
    if status is not None:
        return jvm_exit_error(status, spark.output())
    if is_disk_full(str(error)):
        return disk_full_error(checkpoints, "lakehouse.checkpoint.path")
    return ConnectError(f"the Spark query failed: {error}\n{spark.output()}")


def _check_writable(directory: Path, key: str) -> Iterator[ConfigError]:
    """Create a directory if it does not exist. Yield an error in key `key` if files cannot be written into it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_PROBE_BYTES))  # on a full disk, Spark's JVM would hang while starting
    except OSError as error:
        yield ConfigError(key, str(directory), f"the directory is not writable: {error.strerror}")


def _new_generation(checkpoints: Path) -> int:
    """Delete the checkpoints of earlier generations and return a new generation number."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    for directory in checkpoints.iterdir():
        if directory.name.isdigit():
            shutil.rmtree(directory, ignore_errors=True)
    return time.time_ns() // 1_000_000


class LakehouseSinkConnector(SinkConnector[LakehouseSinkConfig]):
    """Starts a single task. The task runs one query for all topics, on all cores of `spark.master`."""

    task_class = LakehouseSinkTask
    supports_transforms = False

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
        """Return also the warnings about client overrides. Only the task knows the worker's keys of consumers."""
        from headrace_connectors.lakehouse.client_config import librdkafka_config

        return [*super().warnings(config), *librdkafka_config(config.originals_with_prefix("consumer.override."))[1]]

    @classmethod
    def required_extra(cls, props: Mapping[str, str]) -> str:
        """Return the extra that installs Spark and the writers of tables."""
        return "spark"

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Add to `values` the errors that the validation of single keys does not find."""
        defaults = {name: to_text(value.value) for name, value in values.items() if name.startswith("value.converter.")}
        converter = {name: text for name, text in defaults.items() if text is not None}
        for error in check({**converter, **props}):
            values.setdefault(error.key, ConfigValue(error.key, error.value)).errors.append(str(error))
