"""The Spark session of the streaming query, in the JVM that `ClassicJobs` starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace_connectors.lakehouse.spark.classic_jobs import ClassicJobs
from headrace_connectors.lakehouse.spark.jobs import JobSettings
from headrace_connectors.lakehouse.spark.jobs import SparkStartError as SparkStartError

_STREAMING_CONF = {
    # Do not use the default checkpoint file manager: it forks a process for each file that it renames.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
}


class SparkProcess:
    """The JVM and Spark session of one task. Not thread-safe, except for `kill`."""

    def __init__(self, conf: Mapping[str, str], app_name: str, local_dir: Path) -> None:
        self._jobs = ClassicJobs({**_STREAMING_CONF, **conf}, app_name, local_dir, JobSettings(java_archive=False))
        self.session: Any = None
        self.stop, self.kill = self._stop, self._jobs.kill
        self.exit_status, self.output = self._jobs.exit_status, self._jobs.output

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """Start the JVM and return the SparkSession. Raises JavaNotFoundError and SparkStartError."""
        self._jobs.start(is_stopping)
        self.session = self._jobs.session
        return self.session

    def _stop(self) -> None:
        self._jobs.stop()
        self.session = None
