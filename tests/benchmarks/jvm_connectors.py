"""Runs JVM connectors in Apache Kafka's Connect worker. Benchmarks compare headrace's connectors with them.

The connectors are Aiven's JDBC, S3 and OpenSearch connectors (Apache License 2.0). No registry has their jars, so they
must be built from their sources. The environment variable `BENCH_JVM_CONNECTORS` names a directory with the
subdirectories `jdbc`, `s3` and `opensearch`, each with the jars of one connector and of its dependencies. If the
variable is not set, the benchmarks compare headrace's rates with constants. The constants are rates of these JVM
connectors that were measured on a similar machine.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_stats import wait_until_idle
from sink_load import Measured

from support import apache
from support.worker import Worker

VARIABLE = "BENCH_JVM_CONNECTORS"
WARM_UP_ROUNDS = 2
"""Rounds that are not counted. The JVM needs two rounds until its compiler has optimized a connector."""


class JvmWorker(Worker):
    """Runs Apache's connect-standalone with the connectors in the directory `plugins`."""

    def __init__(self, directory: Path, settings: Mapping[str, str], plugins: Path) -> None:
        super().__init__(directory, {"plugin.path": str(plugins), "plugin.discovery": "service_load", **settings})
        del self.settings["headrace.data.dir"]

    def command(self) -> list[str]:
        """Write the worker's properties file and return the command line."""
        *_, properties = super().command()
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        return apache.java_command(main, properties, flags=("-Xms256M", "-Xmx2G"))


@dataclass(frozen=True, slots=True)
class Systems:
    """Headrace's worker and, if the connector is available, the worker of the JVM connector."""

    ours: Worker
    theirs: Worker | None

    @property
    def label(self) -> str:
        """A note for the results, which says whether the baseline was measured or is quoted."""
        return "(baseline quoted: JVM)" if self.theirs is None else "(baseline: JVM)"

    def wait_until_idle(self) -> None:
        """Wait until both workers are idle, because the JVM's compilers keep running after a measurement."""
        wait_until_idle([worker.pid for worker in (self.ours, self.theirs) if worker is not None])


@contextmanager
def systems_under_test(directory: Path, address: str, connector: str, **theirs: str) -> Iterator[Systems]:
    """Run headrace's worker and, if `connector` is available, Apache's worker, with the broker at `address`.

    `theirs` are additional settings of Apache's worker.
    """
    settings = {
        "bootstrap.servers": address,
        "offset.storage.file.filename": str(directory / "offsets"),
        "offset.flush.interval.ms": "60000",  # Kafka's default, instead of the short interval of the tests
    }
    plugins = _plugins(connector)
    with ExitStack() as stack:
        ours = stack.enter_context(Worker(directory, settings))
        if plugins is None:
            yield Systems(ours, None)
            return
        place = directory / "jvm"
        place.mkdir()
        settings["offset.storage.file.filename"] = str(place / "offsets")
        more = {key.replace("_", "."): value for key, value in theirs.items()}
        yield Systems(ours, stack.enter_context(JvmWorker(place, settings | more, plugins)))


def _plugins(connector: str) -> Path | None:
    """Return the directory that BENCH_JVM_CONNECTORS names, or None if it is not set or Apache Kafka cannot run here.

    Raises RuntimeError if the directory does not have the jars of `connector`.
    """
    name = os.environ.get(VARIABLE)
    if name is None or apache.unavailable_reason():
        return None
    if not any(Path(name, connector).glob("*.jar")):
        raise RuntimeError(f"{VARIABLE}={name}: the directory {connector} has no jars")
    return Path(name)


def medians(rounds: list[Measured]) -> Measured:
    """Return the medians of the measurements in all rounds after the warm-up rounds."""
    counted: Any = zip(*rounds[WARM_UP_ROUNDS:], strict=True)
    return Measured(*map(statistics.median, counted))
