"""Runs a real standalone Spark cluster from the pyspark package: a master and workers, as processes on 127.0.0.1.

with running_cluster(directory, workers=2) as cluster:
    jobs = open_jobs({"spark.master": cluster.master, **EXECUTOR_CONF}, ...)
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from headrace_connectors.lakehouse.spark.java import find_java
from headrace_connectors.lakehouse.spark.jvm import JVM_OPTIONS, die_with_parent, spark_home
from support.ports import free_ports

EXECUTOR_CONF = {
    "spark.executor.memory": "600m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Small executors, and the driver's options for short runs (`support.spark`)."""

_START_TIMEOUT_S = 180


class SparkCluster:
    """A master and workers. Each worker offers one core. `environment` is added to the environment of all processes."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.13",  # Spark's scripts would find it
            **environment,
        }
        self._master: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.master = ""

    def start_master(self) -> None:
        """Start the master."""
        port, web_port = free_ports(2)
        self.master = f"spark://127.0.0.1:{port}"
        arguments = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port))
        self._master = self._run("master.Master", *arguments)
        self._wait_for(lambda: "New state: ALIVE" in self.log("master.Master"))

    def start_worker(self) -> None:
        """Start another worker, and wait until it has registered with the master."""
        name = f"worker-{len(self.workers)}"
        (web_port,) = free_ports(1)
        arguments = ("--host", "127.0.0.1", "--webui-port", str(web_port), "--cores", "1", "--memory", "1g")
        place = ("--work-dir", str(self._directory / name), self.master)
        self.workers.append(self._run("worker.Worker", *arguments, *place, log=name))
        self._wait_for(lambda: "Successfully registered with master" in self.log(name))

    def executors(self) -> list[psutil.Process]:
        """Return the running executors of all workers."""
        found: list[psutil.Process] = []
        for worker in self.workers:
            if worker.poll() is None:
                found += psutil.Process(worker.pid).children()
        return [child for child in found if any("CoarseGrainedExecutor" in word for word in _command_line(child))]

    def kill_workers(self) -> None:
        """Kill all workers and their executors."""
        executors = self.executors()
        for worker in self.workers:
            _kill(worker)
        for executor in executors:
            with _gone_is_fine():
                executor.kill()

    def log(self, name: str) -> str:
        """Return the log of a process."""
        path = self._directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """Kill all processes."""
        self.kill_workers()
        if self._master is not None:
            _kill(self._master)

    def _run(self, main: str, *arguments: str, log: str = "") -> subprocess.Popen[bytes]:
        java = find_java(os.environ)
        command = [str(java.executable), "-cp", str(spark_home() / "jars" / "*"), "-Xmx256m", *JVM_OPTIONS]
        command += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"org.apache.spark.deploy.{main}", *arguments]
        with (self._directory / f"{log or main}.log").open("wb") as output:
            return subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.log("master.Master")
            time.sleep(0.05)


@contextmanager
def running_cluster(
    directory: Path, workers: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[SparkCluster]:
    """Run a cluster. By default, executors run this interpreter."""
    cluster = SparkCluster(directory, {"PYSPARK_PYTHON": sys.executable, **(environment or {})})
    try:
        cluster.start_master()
        for _ in range(workers):
            cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except psutil.NoSuchProcess:
        return


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)
