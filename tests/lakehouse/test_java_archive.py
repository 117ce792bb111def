"""Makes an archive of Spark's classes, and starts Spark with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from headrace.testing import ConnectWorker, KafkaBroker
from headrace_connectors.lakehouse.spark import archive
from headrace_connectors.lakehouse.spark.java import find_java
from support.lakehouse_records import envelope, field
from support.spark import SHORT_RUN_CONF
from support.worker import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timed, pytest.mark.timeout(900)]

MAKER = [sys.executable, "-m", "headrace_connectors.lakehouse.spark.archive_maker"]
START = """
import sys
from pathlib import Path
from headrace_connectors.lakehouse.spark.executor_check import describe_executor
from headrace_connectors.lakehouse.spark.jobs import JobSettings, open_jobs
import psutil
conf = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": sys.argv[2]}
jobs = open_jobs(conf, None, "tests", Path(sys.argv[1]), JobSettings())
jobs.start()
jobs.run(describe_executor, 1, "check")
java = next(child for child in psutil.Process().children() if child.name() == "java")
print(any("headrace/java" in mapped.path for mapped in java.memory_maps()))
jobs.stop()
"""


def start(directory: Path, *java_options: str) -> tuple[bool, int]:
    """Start Spark in a process. Return whether it has used an archive, and the number of classes from archives."""
    log = directory / "classes.txt"
    options = [f"-Xlog:class+load:file={log}::filecount=0", *java_options]
    command = [sys.executable, "-c", START, str(directory / "spark"), " ".join(options)]
    used = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return used == "True", log.read_text().count("shared objects file")


def test_archive_is_made_once_and_is_ignored_if_it_does_not_fit_or_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = find_java(os.environ)
    directory = archive.archive_directory(java)
    old = directory.with_name(f"{archive.environment_digest(java)}-old")
    old.mkdir(parents=True)
    makers = [subprocess.Popen(MAKER, stderr=subprocess.PIPE) for _ in range(2)]
    assert [maker.communicate()[1] for maker in makers] == [b"", b""]
    assert [maker.returncode for maker in makers] == [0, 0]
    assert sorted(path.name for path in directory.parent.iterdir()) == [directory.name, "lock"]
    assert archive.is_complete(directory)

    with_archive = start(tmp_path)
    assert with_archive[0]
    assert with_archive[1] > 4_000  # about 7,300 with Java 17
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    without = start(tmp_path)
    assert not without[0]
    assert without[1] < 3_000
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    start(tmp_path, "-XX:+UseParallelGC", "-XX:-UseCompressedClassPointers")  # does not fit the archive

    classes = next(path for path in directory.iterdir() if path.suffix in (".jsa", ".aot") and path.stem == "classes")
    classes.chmod(0o644)
    with classes.open("r+b") as file:
        file.seek(classes.stat().st_size // 2)
        file.write(os.urandom(4096))
    assert not start(tmp_path)[0]
    subprocess.run(MAKER, check=True)
    assert archive.is_complete(directory)


@pytest.fixture
def connect_worker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return {"task.isolation": "process"}


def test_archive_is_made_after_the_task_has_stopped(
    tmp_path: Path, kafka_broker: KafkaBroker, connect_worker: ConnectWorker
) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", [envelope([field("n", "int32")], {"n": 1})])
    config = {
        "connector.class": "LakehouseSinkConnector",
        "topics": "t",
        "lakehouse.path": str(tmp_path / "tables"),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        **SHORT_RUN_CONF,
    }
    directory = archive.archive_directory(find_java(os.environ))
    connect_worker.create("sink", config)
    wait_for(lambda: (tmp_path / "tables/t/_delta_log").exists(), "the table is loaded", 120)
    assert not directory.exists()
    connect_worker.request("PUT", "/connectors/sink/stop")
    connect_worker.wait_for_status("sink", "STOPPED")
    wait_for(lambda: archive.is_complete(directory), "the archive is made", 300)
