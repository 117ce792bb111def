"""Runs jobs in a Spark application of the task's own: a local one, or one on a cluster.

The driver is a JVM that this process starts. The functions are tasks of an RDD, because an RDD's first job needs a
third of the CPU time of a DataFrame's, and a small job half of it: neither Spark's optimizer nor Arrow is involved.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace_connectors.lakehouse.error_messages import jvm_exit_error
from headrace_connectors.lakehouse.spark import archive
from headrace_connectors.lakehouse.spark.conf import (
    check_pyspark,
    executor_python,
    is_archive,
    is_local_master,
    session_conf,
)
from headrace_connectors.lakehouse.spark.executor_check import check_versions
from headrace_connectors.lakehouse.spark.executor_watch import ExecutorWatch
from headrace_connectors.lakehouse.spark.java import Java, find_java
from headrace_connectors.lakehouse.spark.jobs import (
    ExecutorsUnavailableError,
    JobCancelledError,
    JobSettings,
    SparkDisconnectedError,
    SparkJobs,
    SparkStartError,
    Work,
)
from headrace_connectors.lakehouse.spark.jvm import SparkJvm, jvm_environment
from headrace_connectors.lakehouse.spark.task_errors import job_error

_IDLE_S = 30.0
_STOPPED = re.compile(r"SparkContext (?:has been|was) shut ?down|stopped SparkContext")

logger = logging.getLogger(__name__)


class ClassicJobs(SparkJobs):
    """The Spark application of one task. There can be only one in a process, because pyspark permits only one."""

    def __init__(self, conf: Mapping[str, str], app_name: str, local_dir: Path, settings: JobSettings) -> None:
        self._given = conf
        self._app_name = app_name
        self._local_dir = local_dir
        self._settings = settings
        self._is_local = is_local_master(conf.get("spark.master", "local[*]"))
        self._jvm: SparkJvm | None = None
        self._killed = False
        self._cancelled = threading.Event()
        self._context: Any = None
        self._group = ""
        self._java: Java | None = None
        self._makes_archive = settings.java_archive and settings.run_module is not None
        self._archive_timer: threading.Timer | None = None

    @property
    def is_local(self) -> bool:
        return self._is_local

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        started = time.monotonic()
        check_pyspark()
        # Suppress py4j's log of exceptions in callbacks: the caller raises them again, and the task logs them.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_not_from_py4j)  # py4j logs some of the exceptions to the root logger
        java = find_java(os.environ)
        logger.info("Starting Spark on Java %s (%s, %s)", java.version, java.found_by, java.executable)
        package = self._settings.package
        conf = session_conf(self._given, self._app_name, self._local_dir, package)
        python = executor_python(conf, sys.executable, package)
        jvm = SparkJvm(conf, self._local_dir, jvm_environment(python, conf.get("spark.driver.host")))
        self._jvm, self._java, self._killed = jvm, java, False
        options = archive.options(java) if self._settings.java_archive else []
        # The directory is not in `_local_dir`, which the JVM's start empties.
        with tempfile.TemporaryDirectory(prefix="headrace-spark-") as directory:
            info = Path(directory) / "gateway"
            jvm.set_gateway_file(info)
            jvm.launch(java, options, ["pyspark-shell"])
            port, secret = jvm.await_gateway(info, lambda: self._killed or is_stopping())
        with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret, PYSPARK_PYTHON=python):
            self._context = self._connect(jvm, conf)
        self._add_package(package)
        self._make_archive_when_idle()
        logger.info("Started Spark %s in %.1f s", self._context.version, time.monotonic() - started)

    @property
    def parallelism(self) -> int:
        return max(1, int(self._context.defaultParallelism))

    def run(self, work: Work, tasks: int, description: str) -> list[bytes]:
        context = self._context
        if context is None:
            raise SparkDisconnectedError("Spark's JVM is not running")
        self._cancelled.clear()
        self._group = f"headrace-{uuid.uuid4()}"
        self._cancel_archive()
        with ExecutorWatch(context, 0 if self._is_local else self._settings.executors_timeout_ms, self.cancel) as watch:
            try:
                context.setJobGroup(self._group, description, interruptOnCancel=True)
                return list(context.parallelize(range(tasks), tasks).map(work).collect())
            except Exception as error:  # py4j and Spark raise exceptions without a common base class
                if watch.has_expired:
                    raise ExecutorsUnavailableError(self._no_executors()) from error
                raise self._error(error) from error
            finally:
                self._make_archive_when_idle()

    def check_executors(self) -> None:
        if not self._is_local:
            check_versions(self)

    def cancel(self) -> None:
        self._cancelled.set()
        context = self._context
        if context is not None:
            with contextlib.suppress(Exception):  # if the JVM has exited, `run` raises SparkDisconnectedError
                # `run` may not have started the job yet.
                context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)

    def stop(self) -> None:
        """Kill the JVM and delete its files.

        Killing the JVM cannot damage a table, because the JVM does not write tables. The cluster's master ends the
        executors when the connection to the JVM closes.
        """
        self._cancel_archive()
        self.kill()
        if self._jvm is not None:
            self._jvm.delete_files()
        self._make_archive()
        if self._context is not None:
            _reset_pyspark()
            self._context = None

    def exit(self, timeout_s: float) -> None:
        """Let the JVM exit by itself, which also writes the archive of its classes."""
        assert self._jvm is not None
        with contextlib.suppress(Exception):  # the JVM closes the connection before it answers
            self._context._jvm.java.lang.System.exit(0)
        self._jvm.wait(timeout_s)

    def kill(self) -> None:
        self._killed = True
        if self._jvm is not None:
            self._jvm.kill()

    def exit_status(self) -> int | None:
        return self._jvm.exit_status() if self._jvm is not None else None

    def output(self) -> str:
        return self._jvm.output() if self._jvm is not None else ""

    def _connect(self, jvm: SparkJvm, conf: Mapping[str, str]) -> Any:
        from pyspark import SparkConf, SparkContext

        try:
            context = SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(conf.items())))
        except Exception as error:  # py4j and Spark raise exceptions without a common base class
            status = jvm.exit_status()
            if status is not None:
                raise SparkStartError(str(jvm_exit_error(status, jvm.output()))) from error
            reason = str(error)  # py4j requests the text from the JVM
            jvm.kill()
            raise SparkStartError(f"the Spark session did not start: {reason}") from None
        # Suppress the accumulator server's errors: the server writes an error to the terminal whenever the JVM exits.
        setattr(context._accumulatorServer, "handle_error", _ignore)  # noqa: B010
        return context

    def _add_package(self, package: Path | None) -> None:
        """Send a package that contains only headrace to the executors. Spark unpacks an archive by itself."""
        if package is None or self._is_local or is_archive(package):
            return
        path = list(sys.path)
        self._context.addPyFile(str(package.absolute()))
        sys.path[:] = path  # the driver must not import headrace from the package

    def _make_archive_when_idle(self) -> None:
        """Make the archive of Spark's classes if no job runs for a while, because this takes CPU time and memory."""
        if self._makes_archive:
            self._archive_timer = threading.Timer(_IDLE_S, self._make_archive)
            self._archive_timer.daemon = True
            self._archive_timer.start()

    def _make_archive(self) -> None:
        """Make the archive if it is missing, once in the life of this object."""
        java, run_module = self._java, self._settings.run_module
        if self._makes_archive and java is not None and run_module is not None and archive.is_missing(java):
            self._makes_archive = False
            logger.info("Making an archive of Spark's classes in %s for faster starts", archive.cache_directory())
            run_module(archive.MAKER)

    def _cancel_archive(self) -> None:
        if self._archive_timer is not None:
            self._archive_timer.cancel()

    def _no_executors(self) -> str:
        return (
            f"{self._context.master} has given this connector no executor for"
            f" {self._settings.executors_timeout_ms} ms (lakehouse.executors.timeout.ms); check that the cluster has"
            " workers with enough free cores and memory (spark.cores.max, spark.executor.cores, spark.executor.memory),"
            f" and that they can connect to {self._context.getConf().get('spark.driver.host')} (spark.driver.host)"
        )

    def _error(self, error: Exception) -> Exception:
        if self._cancelled.is_set():
            return JobCancelledError("the Spark job was cancelled")
        status = self.exit_status()
        if status is not None:
            return SparkDisconnectedError(str(jvm_exit_error(status, self.output())))
        if _STOPPED.search(str(error)):
            return SparkDisconnectedError(f"the cluster has ended the Spark application: {self._reason_of_end()}")
        return job_error(error)

    def _reason_of_end(self) -> str:
        reasons = [line for line in self.output().splitlines() if "Application has been killed" in line]
        return reasons[-1] if reasons else self.output()


def _ignore(*_: object) -> None:
    pass


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _reset_pyspark() -> None:
    """Reset pyspark's global state after the JVM has exited, so that this process can start another JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):  # the JVM has exited, so calls to it fail
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
