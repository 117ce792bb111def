"""Spark's configuration for a task, and the version of PySpark that it needs.

No key of Spark SQL changes the tables: the executors convert and write the rows without Spark SQL.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from headrace_connectors.lakehouse.spark import worker_daemon
from headrace_connectors.lakehouse.spark.jobs import SparkStartError

_FIXED_CONF = {"spark.submit.deployMode": "client"}  # this process starts the driver's JVM
_DEFAULT_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.maxResultSize": "0",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.ui.retainedExecutions": "4",
    "spark.ui.retainedJobs": "8",
    "spark.ui.retainedStages": "8",
    "spark.ui.retainedTasks": "64",
    "spark.cleaner.periodicGC.interval": "5min",
}
_LOCAL_CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The daemon watches the task's process, which exists only on this machine.
    "spark.python.daemon.module": worker_daemon.__name__,
}
_LOCAL_CORES = re.compile(r"local(?:\[(\*|\d+)\])?")
_TASK_FAILURES_MAX = 4  # the default of spark.task.maxFailures
_LOCAL_MASTER = re.compile(r"local(?:\[|$)")
_STANDALONE_MASTER = re.compile(r"spark://(?P<host>\[[^\]]+\]|[^:,]+):(?P<port>\d+)")
_VERSION_MIN, _VERSION_END = (4, 1), (4, 4)
PACKAGE_DIRECTORY = "environment"
"""The directory of executors into which Spark unpacks the archive of `headrace lakehouse package`."""


def is_local_master(master: str) -> bool:
    """Whether the executors are threads of the driver's JVM."""
    return _LOCAL_MASTER.match(master) is not None


def with_task_failures(master: str) -> str:
    """Return a local master that repeats a task whose Python worker was killed, as a cluster does.

    A local master without a number of failures fails the job at the first failure.
    """
    found = _LOCAL_CORES.fullmatch(master)
    return master if found is None else f"local[{found[1] or 1},{_TASK_FAILURES_MAX}]"


def is_archive(package: Path) -> bool:
    """Whether the package contains a whole environment. Otherwise it contains only headrace."""
    return package.name.endswith((".tar.gz", ".tgz"))


def session_conf(given: Mapping[str, str], app_name: str, local_dir: Path, package: Path | None) -> dict[str, str]:
    """Return the configuration of the JVM and of the session. `given` has the connector's keys `spark.*`."""
    conf = {**_DEFAULT_CONF, "spark.local.dir": str(local_dir), "spark.app.name": app_name}
    conf["spark.master"] = "local[*]"
    conf.update(given)
    if is_local_master(conf["spark.master"]):
        conf["spark.master"] = with_task_failures(conf["spark.master"])
        conf = {**_LOCAL_CONF, **conf, "spark.python.daemon.module": _LOCAL_CONF["spark.python.daemon.module"]}
    else:
        host = driver_host(conf["spark.master"])
        if host is not None:
            conf.setdefault("spark.driver.host", host)
        if package is not None and is_archive(package):
            archives = filter(None, (conf.get("spark.archives", ""), f"{package.absolute()}#{PACKAGE_DIRECTORY}"))
            conf["spark.archives"] = ",".join(archives)
    return {**conf, **_FIXED_CONF}


def driver_host(master: str) -> str | None:
    """Return this machine's address that executors can connect to, or None if Spark must find it.

    It is $SPARK_LOCAL_IP or the address of the interface through which this machine reaches a standalone master.
    """
    given = os.environ.get("SPARK_LOCAL_IP")
    if given:
        return given
    found = _STANDALONE_MASTER.match(master)
    if found is None:
        return None
    host, port = found["host"].strip("[]"), int(found["port"])
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as connection:
            connection.connect(address)  # sends nothing
            return str(connection.getsockname()[0])
    except OSError as error:
        raise SparkStartError(f"spark.master: the host of {master} is not reachable: {error.strerror}") from error


def executor_python(conf: Mapping[str, str], local_python: str, package: Path | None) -> str:
    """Return the command of the executors' Python.

    Without a setting, executors run the same path as the driver. By default, pyspark would run `python3`.
    """
    if is_local_master(conf["spark.master"]):
        return local_python
    if package is not None and is_archive(package):
        return f"./{PACKAGE_DIRECTORY}/bin/python"
    return conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or local_python


def check_pyspark() -> None:
    """Check that the version of the installed PySpark is supported. Raises SparkStartError."""
    import pyspark

    check_version(pyspark.__version__, "PySpark")


def check_version(version: str, component: str) -> None:
    """Check that a version of Spark or PySpark is supported. Raises SparkStartError."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not _VERSION_MIN <= numbers < _VERSION_END:
        raise SparkStartError(
            f"{component} {version} is not supported: this connector needs 4.1 or newer and older than 4.4;"
            " install pyspark==4.2.0 (pip install 'headrace[spark]')"
        )
