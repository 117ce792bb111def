"""Runs functions on the cores of Spark's executors.

A micro-batch is one Spark job. The driver sends a function to the executors' Python workers, and they return bytes.
`open_jobs` chooses how the job reaches Spark: through a JVM of the task's own (`classic_jobs`), or through a Spark
Connect server (`connect_jobs`). Importing this module does not import pyspark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.api.errors import ConnectError

Work = Callable[[int], bytes]
"""A picklable function that a Spark task calls with its number."""

EXECUTORS_TIMEOUT_MS = 120_000


class SparkStartError(ConnectError):
    """Spark did not start, or its version is not supported. The message contains the JVM's output."""


class JobCancelledError(ConnectError):
    """`cancel` ended the job."""


class JobFailedError(ConnectError):
    """A task failed on an executor. The message is the message of the task's Python exception.

    `error_class` is the name of the exception's class, or an empty string if the task did not raise an exception of
    Python.
    """

    def __init__(self, message: str, error_class: str = "") -> None:
        super().__init__(message)
        self.error_class = error_class


class ExecutorsUnavailableError(ConnectError):
    """The Spark cluster did not start any task of the job within `lakehouse.executors.timeout.ms`."""


class ExecutorsUnsuitableError(ConnectError):
    """Python or headrace on the executors does not fit the driver's. The message says what to install there."""


class SparkDisconnectedError(ConnectError):
    """Spark's JVM has exited, or the Spark Connect server has no session of this task any more."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The settings of jobs that are not part of Spark's configuration.

    `package` is a file that `headrace lakehouse package` has made, or None if the executors have headrace. `run_module`
    runs a module in the background, also after the jobs have ended; without it, no archive of Spark's classes is made.
    """

    package: Path | None = None
    executors_timeout_ms: int = EXECUTORS_TIMEOUT_MS
    java_archive: bool = True
    run_module: Callable[[str], None] | None = None


class SparkJobs(ABC):
    """Runs functions on Spark's executors.

    Call `start`, `check_executors` and `run` on one thread at a time. `cancel` and `kill` may be called on any thread.
    """

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Whether the executors are child processes on this machine."""

    @abstractmethod
    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Start Spark. If `is_stopping()` becomes true before Spark has started, raise SparkStartError.

        Raises JavaNotFoundError if no suitable Java is installed, and SparkStartError if Spark does not start.
        """

    @property
    @abstractmethod
    def parallelism(self) -> int:
        """The number of tasks that the executors can run at the same time."""

    @abstractmethod
    def run(self, work: Work, tasks: int, description: str) -> list[bytes]:
        """Call `work(number)` in `tasks` Spark tasks, and return the results in the order of the numbers.

        Raises JobCancelledError, ExecutorsUnavailableError, JobFailedError and SparkDisconnectedError.
        """

    @abstractmethod
    def check_executors(self) -> None:
        """Check that the executors' Python can run the driver's functions, with one small job.

        Raises ExecutorsUnsuitableError, and the errors of `run`.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the running job. Does nothing if no job is running."""

    @abstractmethod
    def stop(self) -> None:
        """End Spark and delete its local files. Another `start` is possible afterwards."""

    @abstractmethod
    def kill(self) -> None:
        """End Spark immediately. A running job raises SparkDisconnectedError. May be called repeatedly."""

    @abstractmethod
    def exit_status(self) -> int | None:
        """Return the exit status of the task's own JVM, or None if it is running or if there is none.

        If a signal has killed the JVM, the status is the negative signal number.
        """

    @abstractmethod
    def output(self) -> str:
        """Return the last lines that the task's own JVM wrote."""


def open_jobs(
    conf: Mapping[str, str], remote: str | None, app_name: str, local_dir: Path, settings: JobSettings
) -> SparkJobs:
    """Return jobs that are not started yet.

    `conf` contains the connector's keys `spark.*` except `spark.remote`, which is `remote`.
    """
    if remote is not None:
        from headrace_connectors.lakehouse.spark.connect_jobs import ConnectJobs

        return ConnectJobs(conf, remote, settings)
    from headrace_connectors.lakehouse.spark.classic_jobs import ClassicJobs

    return ClassicJobs(conf, app_name, local_dir, settings)
