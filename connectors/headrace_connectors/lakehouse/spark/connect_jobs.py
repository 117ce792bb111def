"""Runs jobs on a Spark Connect server, which several connectors may share.

Spark Connect has no RDDs. So the functions are tasks of a DataFrame: `mapInArrow` passes the task's number to the
function, and returns its bytes as a column.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace_connectors.lakehouse.spark.conf import PACKAGE_DIRECTORY, check_pyspark, check_version, is_archive
from headrace_connectors.lakehouse.spark.executor_check import check_versions
from headrace_connectors.lakehouse.spark.jobs import (
    ExecutorsUnavailableError,
    JobCancelledError,
    JobSettings,
    SparkDisconnectedError,
    SparkJobs,
    SparkStartError,
    Work,
)
from headrace_connectors.lakehouse.spark.task_errors import job_error

_RESULT = "task int, result binary"
_RETRIES = 4  # about 5 s in total. By default, the client retries for ten minutes
_GONE = ("INVALID_HANDLE", "StatusCode.UNAVAILABLE", "RETRIES_EXCEEDED", "SESSION_CLOSED", "Cannot invoke RPC")

logger = logging.getLogger(__name__)


class ConnectJobs(SparkJobs):
    """A session of a Spark Connect server. The server's configuration selects the cluster."""

    def __init__(self, conf: Mapping[str, str], remote: str, settings: JobSettings) -> None:
        self._conf = conf
        self._remote = remote
        self._settings = settings
        self._tag = f"headrace-{uuid.uuid4()}"
        self._cancelled = threading.Event()
        self._killed = False
        self._progress: _Progress | None = None
        self._session: Any = None
        self._parallelism = 1

    @property
    def is_local(self) -> bool:
        return False

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        check_pyspark()
        self._killed = False
        logging.getLogger("pyspark.sql.connect").setLevel(logging.CRITICAL)  # it logs errors that it also raises
        try:
            self._session = self._connect()
            version = self._session.version
            check_version(version, "Spark")
            self._add_package()
            self._parallelism = self._find_parallelism()
        except SparkStartError:
            raise
        except Exception as error:  # grpc and pyspark raise exceptions without a common base class
            raise SparkStartError(f"spark.remote: {self._remote} cannot be used: {_first_lines(error)}") from error
        logger.info("Connected to Spark %s at %s", version, self._remote)

    @property
    def parallelism(self) -> int:
        return self._parallelism

    def run(self, work: Work, tasks: int, description: str) -> list[bytes]:
        session = self._session
        if session is None or self._killed:
            raise SparkDisconnectedError(f"the connection to {self._remote} is closed")
        self._cancelled.clear()
        progress = _Progress(self._settings.executors_timeout_ms, self._interrupt)
        session.client.add_tag(self._tag)
        session.client.register_progress_handler(progress)
        try:
            with progress:
                rows = session.range(0, tasks, 1, tasks).mapInArrow(_TaskFunction(work), _RESULT).collect()
        except Exception as error:  # grpc and pyspark raise exceptions without a common base class
            if progress.has_expired:
                raise ExecutorsUnavailableError(self._no_executors()) from error
            raise self._error(error) from error
        finally:
            session.client.remove_progress_handler(progress)
        return [bytes(row[1]) for row in sorted(rows, key=lambda row: int(row[0]))]

    def check_executors(self) -> None:
        check_versions(self)

    def cancel(self) -> None:
        self._cancelled.set()
        self._interrupt()

    def stop(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None

    def kill(self) -> None:
        self._killed = True
        self._interrupt()

    def exit_status(self) -> int | None:
        return None

    def output(self) -> str:
        return ""

    def _connect(self) -> Any:
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(self._remote).create()
        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
        for key, value in self._conf.items():
            if key.startswith("spark.sql."):
                session.conf.set(key, value)
        return session

    def _add_package(self) -> None:
        package = self._settings.package
        if package is None:
            return
        path = str(package.absolute())
        if is_archive(package):
            self._session.addArtifacts(f"{path}#{PACKAGE_DIRECTORY}", archive=True)
            self._session.conf.set("spark.sql.execution.pyspark.python", f"./{PACKAGE_DIRECTORY}/bin/python")
        else:
            self._session.addArtifacts(path, pyfile=True)

    def _find_parallelism(self) -> int:
        """Return the server's default parallelism: by default, a range has as many partitions."""
        from pyspark.sql.connect import functions

        number = functions.spark_partition_id().alias("number")
        rows = self._session.range(1_000).select(number).distinct().collect()
        return max(1, len(rows))

    def _interrupt(self) -> None:
        session = self._session
        if session is not None:
            with contextlib.suppress(Exception):  # without a connection, `run` raises SparkDisconnectedError
                session.client.interrupt_tag(self._tag)

    def _no_executors(self) -> str:
        return (
            f"the Spark cluster of {self._remote} has not run any task of this connector for"
            f" {self._settings.executors_timeout_ms} ms (lakehouse.executors.timeout.ms); check that the cluster has"
            " workers with enough free cores and memory"
        )

    def _error(self, error: Exception) -> Exception:
        if self._killed:
            return SparkDisconnectedError(f"the connection to {self._remote} was closed")
        if self._cancelled.is_set():
            return JobCancelledError("the Spark job was cancelled")
        text = f"{type(error).__name__}: {error}"
        if any(sign in text for sign in _GONE):
            return SparkDisconnectedError(f"{self._remote} does not respond, or has restarted: {_first_lines(error)}")
        return job_error(error)


class _TaskFunction:
    """The function of `mapInArrow`. Executors import this class, so that pickling it does not copy its code."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pa.array([self._work(number)], pa.binary())
                yield pa.RecordBatch.from_arrays([pa.array([number], pa.int32()), result], ["task", "result"])


class _Progress:
    """Interrupts a job that has run no task for `timeout_ms`. The client calls it with the progress of the job."""

    def __init__(self, timeout_ms: int, interrupt: Callable[[], None]) -> None:
        self._timer = threading.Timer(timeout_ms / 1000, self._expire)
        self._timer.daemon = True
        self._interrupt = interrupt
        self.has_expired = False

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Stop waiting as soon as the job's first task runs or has finished."""
        if inflight_tasks or any(stage.num_completed_tasks for stage in stages or ()):
            self._timer.cancel()

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *exc_info: object) -> None:
        self._timer.cancel()

    def _expire(self) -> None:
        self.has_expired = True
        self._interrupt()


def _first_lines(error: Exception) -> str:
    return "\n".join(str(error).strip().splitlines()[:3])
