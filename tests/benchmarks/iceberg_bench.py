"""Measures how fast LakehouseSinkConnector appends to an Iceberg table. The baseline is Apache Iceberg's own sink.

Both sinks load the same records from one Apache Kafka broker into tables on a local disk, with an SQLite catalog: ours
with two local cores, the other one with two tasks in Apache's Connect worker. A rate counts the rows between the first
and the last commit, so starting is not included. CPU times are those of all processes of a worker, without the broker.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark
from jvm_connectors import JvmWorker
from lakehouse_loads import ENVELOPES, connector, envelope, fill
from measured import Measurements
from process_stats import cpu_s, tree
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from results import Row

from support import apache
from support.worker import Worker

POM = Path(__file__).with_name("iceberg-sink-pom.xml")
RECORDS = 2_500_000
BATCH_ROWS = 250_000
COMMIT_INTERVAL_MS = 3_000
TIMEOUT_S = 600.0
RATE, CPU = "rows/s", "us/row"
Report = Callable[[str], None]


def run(rounds: int, scale: float, report: Report) -> list[Row]:
    """Run both sinks in turns, `rounds` times. Returns no rows if Apache Kafka cannot run here."""
    reason = apache.unavailable_reason()
    if reason is not None:
        report(f"skipped: {reason}")
        return []
    ours, theirs, records = Measurements(), Measurements(), int(RECORDS * scale)
    with TemporaryDirectory(prefix="headrace-bench-") as name, apache.broker() as broker:
        fill(broker.address, ENVELOPES, map(envelope, range(records)))
        report(f"{records:,} records")
        for number in range(rounds):
            _measure_ours(broker.address, Path(name, f"ours-{number}"), records, ours)
            _measure_theirs(broker.address, Path(name, f"theirs-{number}"), records, theirs)
            report(
                f"rounds up to {number}: ours {ours.median(RATE):,.0f} rows/s, Apache's sink"
                f" {theirs.median(RATE):,.0f} rows/s"
            )
    rate, cpu = (ours.median(RATE), theirs.median(RATE)), (ours.median(CPU), theirs.median(CPU))
    return [
        Row("iceberg", "topic (JSON envelopes) to an Iceberg table", RATE, *rate, 3.0),
        Row("iceberg", "the same, CPU", CPU, *cpu, None, False),
    ]


def _measure_ours(address: str, directory: Path, records: int, measured: Measurements) -> None:
    directory.mkdir(parents=True)
    config = {
        **connector(ENVELOPES, directory, min(BATCH_ROWS, records // 5)),
        "lakehouse.format": "iceberg",
        "lakehouse.metadata.columns": "false",
    }
    settings = {"bootstrap.servers": address, "offset.storage.file.filename": str(directory / "offsets")}
    with Worker(directory, settings) as worker:
        _measure(worker, config, _catalog(directory), records, measured)


def _measure_theirs(address: str, directory: Path, records: int, measured: Measurements) -> None:
    directory.mkdir(parents=True)
    catalog = _catalog(directory)  # creates the catalog's tables: of two tasks that create them, one fails
    catalog.create_namespace_if_not_exists("default")
    config = {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": "2",
        "topics": ENVELOPES,
        "iceberg.tables": f"default.{ENVELOPES}",
        "iceberg.tables.auto-create-enabled": "true",
        "iceberg.control.commit.interval-ms": str(COMMIT_INTERVAL_MS),
        "iceberg.control.topic": f"control-{directory.name}",
        "iceberg.control.group-id-prefix": directory.name,
        "iceberg.catalog": "iceberg",
        "iceberg.catalog.type": "jdbc",
        "iceberg.catalog.uri": f"jdbc:sqlite:{directory / 'catalog.db'}",
        "iceberg.catalog.warehouse": directory.as_uri(),
        "consumer.override.auto.offset.reset": "earliest",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
    }
    settings = {"bootstrap.servers": address, "offset.storage.file.filename": str(directory / "offsets")}
    with JvmWorker(directory, settings, _plugins()) as worker:
        _measure(worker, config, catalog, records, measured)


def _measure(worker: Worker, config: dict[str, str], catalog: SqlCatalog, records: int, measured: Measurements) -> None:
    """Run a connector until the table has all records."""
    worker.create(f"iceberg-{worker.directory.name}", config)
    first_rows, first_s = _wait_for_rows(worker, catalog, 1)
    before_s = cpu_s(tree(worker.pid))
    rows, last_s = _wait_for_rows(worker, catalog, records)
    counted = rows - first_rows
    measured.note(CPU, (cpu_s(tree(worker.pid)) - before_s) * 1e6 / counted)
    measured.note(RATE, counted / (last_s - first_s))


def _wait_for_rows(worker: Worker, catalog: SqlCatalog, minimum: int) -> tuple[int, float]:
    """Wait until the table has `minimum` rows. Return its rows, and the time of its last commit in seconds."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        rows, committed_s = _rows(catalog)
        if rows >= minimum:
            return rows, committed_s
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {rows} rows after {TIMEOUT_S:g} s:\n{worker.log()[-3000:]}")
        time.sleep(0.2)


def _rows(catalog: SqlCatalog) -> tuple[int, float]:
    try:
        snapshot = catalog.load_table(("default", ENVELOPES)).current_snapshot()
    except NoSuchTableError:
        return 0, 0.0
    if snapshot is None or snapshot.summary is None:
        return 0, 0.0
    return int(snapshot.summary.additional_properties.get("total-records", 0)), snapshot.timestamp_ms / 1000


def _catalog(directory: Path) -> SqlCatalog:
    return SqlCatalog("iceberg", uri=f"sqlite:///{directory / 'catalog.db'}", warehouse=directory.as_uri())


def _plugins() -> Path:
    """Return a plugin directory with Iceberg's sink. The first call downloads the jars with Maven."""
    root = apache.ROOT / "build" / f"iceberg-sink-{hashlib.sha256(POM.read_bytes()).hexdigest()[:8]}"
    libs = root / "iceberg"
    libs.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / ".complete").exists():
            command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
            subprocess.run(command, check=True, capture_output=True, timeout=600)
            for jar in (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"):
                (libs / jar.name).symlink_to(jar)
            (root / ".complete").touch()
    return root
