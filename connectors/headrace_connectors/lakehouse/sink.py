"""LakehouseSinkConnector: topics to tables, by one Spark Structured Streaming query in the task's process.

Each run of the query is a generation of its own: it starts where the tables say they are and keeps Spark's log in a
fresh directory, so nothing that Spark remembers can contradict a table, and a lost or torn checkpoint is no event.
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

from headrace.api.config_def import ConfigValue
from headrace.api.connector import SinkConnector
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.api.task import SelfReadingSinkTask
from headrace_connectors.lakehouse.config import (
    ErrorHandling,
    LakehouseSinkConfig,
    ValueFormat,
    check,
    check_value_format,
)
from headrace_connectors.lakehouse.faults import disk_full, is_disk_full, jvm_death

if TYPE_CHECKING:
    from headrace_connectors.lakehouse.query import LoadQuery
    from headrace_connectors.lakehouse.session import SparkProcess

_RETRY_S = 1.0
_ROOM_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class LakehouseSinkTask(SelfReadingSinkTask):
    """Runs the query until it is stopped; a pause ends the query and a resume starts the next generation."""

    config_model = LakehouseSinkConfig

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._changed = threading.Event()  # stop, pause or resume was asked for
        self._paused = False
        self._spark: SparkProcess | None = None

    def start(self, config: LakehouseSinkConfig) -> None:
        """Check what only the task sees: the converter in force, whether it may write. Raises ConfigErrors."""
        self._config = config
        value = ValueFormat(self.context.props)
        declared = config.declared_default() is not None or bool(config.declared_schemas())
        errors = list(check_value_format(value, declared))
        self._value = value
        self._errors = ErrorHandling(self.context.props)
        self._name = self.context.props.get("name") or self.context.client_properties["group.id"].removeprefix(
            "connect-"
        )
        errors += _unwritable(config.root, "lakehouse.path")
        if not errors:
            errors += _unwritable(config.checkpoint_root(self._name), "lakehouse.checkpoint.path")
        if errors:
            raise ConfigErrors(errors)
        self._paused = self.context.pause_requested

    def run(self) -> None:
        """Work until `stop`; Spark's JVM lives as long as this call."""
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
            if not self._stopping.is_set():  # else `stop` cut the start short
                raise
        finally:
            spark.stop()

    def stop(self) -> None:
        """Let `run` end: the batch under way is given up, or finished when its commit has begun."""
        self._stopping.set()
        self._changed.set()
        if self._spark is not None and self._spark.session is None:
            self._spark.kill()  # it takes seconds to start, and nobody will need it

    def pause(self) -> None:
        """End the query; Spark stays warm."""
        self._paused = True
        self._changed.set()

    def resume(self) -> None:
        """Start the next query."""
        self._paused = False
        self._changed.set()

    def _run_query(self, spark: SparkProcess, checkpoints: Path) -> None:
        from headrace_connectors.lakehouse.query import LoadQuery
        from headrace_connectors.lakehouse.spec import SourceUnavailableError

        query: LoadQuery | None = None
        try:
            query = LoadQuery(
                self._config, self._value, self._errors, self.context, self._name, contextvars.copy_context()
            )
            position = query.find_position()
            generation = _new_generation(checkpoints)
            query.start(spark.session or spark.start(self._stopping.is_set), position, checkpoints, generation)
            query.await_end(self._changed)
        except SourceUnavailableError as error:
            _log.warning("%s; trying again", error)
            self._changed.wait(_RETRY_S)
        except ConnectError:
            raise
        except Exception as error:  # py4j and Spark raise what they like
            raise _fault(error, spark, checkpoints) from error
        finally:
            if query is not None:
                query.stop()


def _fault(error: Exception, spark: SparkProcess, checkpoints: Path) -> ConnectError:
    """Say what has ended a query that ended by none of our own errors."""
    status = spark.exit_status()
    if status is not None:
        return jvm_death(status, spark.output())
    if is_disk_full(str(error)):
        return disk_full(checkpoints, "lakehouse.checkpoint.path")
    return ConnectError(f"the Spark query failed: {error}\n{spark.output()}")


def _unwritable(directory: Path, key: str) -> Iterator[ConfigError]:
    """Yield an error when nothing can be written into a directory, which is made where it is not there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_ROOM_BYTES))  # on a full disk Spark's JVM would hang at start
    except OSError as error:
        yield ConfigError(key, str(directory), f"the directory cannot be written to: {error.strerror}")


def _new_generation(checkpoints: Path) -> int:
    """Make room for a run: earlier generations' directories are of no use any more."""
    checkpoints.mkdir(parents=True, exist_ok=True)
    for directory in checkpoints.iterdir():
        if directory.name.isdigit():
            shutil.rmtree(directory, ignore_errors=True)
    return time.time_ns() // 1_000_000


class LakehouseSinkConnector(SinkConnector):
    """The plug-in. One task runs one query over all topics, on all cores of `spark.master`."""

    config_model = LakehouseSinkConfig
    task_class = LakehouseSinkTask
    supports_transforms = False

    def start(self, config: LakehouseSinkConfig) -> None:
        """Keep the configuration for the task."""
        self._config = config

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One task, whatever `tasks.max` allows: Spark does the sharing out."""
        if max_tasks > 1:
            _log.info("tasks.max=%d: one task does the work, spark.master says on how many cores", max_tasks)
        return [self._config.originals]

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Add what one key's own check does not show."""
        for error in check(props):
            values.setdefault(error.key, ConfigValue(error.key, error.value)).errors.append(str(error))
