"""Runs a Spark Connect server from the pyspark package, on a loopback address.

Several connectors can share the server, and so one JVM. Each connector names it with `spark.remote`.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace_connectors.lakehouse.spark import archive
from headrace_connectors.lakehouse.spark.conf import check_pyspark, session_conf
from headrace_connectors.lakehouse.spark.java import find_java
from headrace_connectors.lakehouse.spark.jvm import SparkJvm, jvm_environment

HOST = "127.0.0.1"
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

logger = logging.getLogger(__name__)


class SparkConnectServer:
    """A Spark Connect server. Use it as a context manager: the server ends at the end of the block."""

    def __init__(self, port: int, conf: Mapping[str, str], java_archive: bool = True) -> None:
        self.remote = f"sc://{HOST}:{port}"
        self._port = port
        self._directory = tempfile.TemporaryDirectory(prefix="headrace-spark-")
        binding = {"spark.connect.grpc.binding.address": HOST, "spark.connect.grpc.binding.port": str(port)}
        local_dir = Path(self._directory.name) / "local"
        self._conf = {**session_conf(conf, "headrace lakehouse server", local_dir, None), **binding}
        self._java_archive = java_archive
        self._jvm = SparkJvm(
            self._conf, local_dir, jvm_environment(sys.executable, self._conf.get("spark.driver.host"))
        )

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Start the server and wait until it accepts connections. Raises JavaNotFoundError and SparkStartError."""
        check_pyspark()
        java = find_java(os.environ)
        options = archive.options(java) if self._java_archive else []
        self._jvm.launch(java, options, ["--class", _CLASS, "spark-internal"])
        self._jvm.wait_until(self._accepts_connections, is_stopping)

    def wait(self) -> int:
        """Wait until the server exits, and return its exit status."""
        return self._jvm.wait()

    def output(self) -> str:
        """Return the last lines that the server wrote."""
        return self._jvm.output()

    def stop(self) -> None:
        """Kill the server. May be called repeatedly."""
        self._jvm.kill()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _accepts_connections(self) -> bool:
        try:
            socket.create_connection((HOST, self._port), timeout=1).close()
        except OSError:
            return False
        return True
