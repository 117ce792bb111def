"""Runs jobs on a standalone Spark cluster: a master and workers as processes, from the pyspark package."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from headrace_connectors.lakehouse.spark.jobs import (
    ExecutorsUnavailableError,
    ExecutorsUnsuitableError,
    JobFailedError,
    JobSettings,
    SparkDisconnectedError,
    SparkJobs,
    open_jobs,
)
from headrace_connectors.lakehouse.spark.package import write_archive, write_code
from support.spark_cluster import EXECUTOR_CONF, SparkCluster, running_cluster
from support.spark_work import WORK_ENVIRONMENT, Wait, fail, headrace_path, square
from support.worker import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), 2, WORK_ENVIRONMENT) as running:
        yield running


def started(cluster: SparkCluster, directory: Path, settings: JobSettings | None = None, **conf: str) -> SparkJobs:
    given = {"spark.master": cluster.master, **EXECUTOR_CONF, **conf}
    jobs = open_jobs(given, None, "tests", directory / "spark", settings or JobSettings(java_archive=False))
    jobs.start()
    return jobs


def test_job_survives_the_death_of_an_executor(cluster: SparkCluster, tmp_path: Path) -> None:
    jobs = started(cluster, tmp_path)
    try:
        assert not jobs.is_local
        jobs.check_executors()
        assert jobs.run(square, 4, "squares") == [b"0", b"1", b"4", b"9"]
        assert jobs.parallelism == 2
        with pytest.raises(JobFailedError, match="topic t, task 0:\nthe second line"):
            jobs.run(fail, 1, "fail")
        work = Wait(tmp_path)

        def kill_executor() -> None:
            wait_for(lambda: work.has_started(0) and work.has_started(1), "both tasks have started", 120)
            cluster.executors()[0].kill()
            work.release()

        killer = threading.Thread(target=kill_executor)
        killer.start()
        assert jobs.run(work, 2, "wait") == [b"0", b"1"]
        killer.join()
    finally:
        jobs.stop()


def test_code_of_a_package_runs_on_the_executors(cluster: SparkCluster, tmp_path: Path) -> None:
    package = tmp_path / "code.zip"
    write_code(package)
    jobs = started(cluster, tmp_path, JobSettings(package=package, java_archive=False))
    try:
        jobs.check_executors()
        assert b"code.zip" in jobs.run(headrace_path, 1, "path")[0]
        assert not any("code.zip" in entry for entry in sys.path)
    finally:
        jobs.stop()


@pytest.mark.prove
def test_environment_of_a_package_runs_on_the_executors(cluster: SparkCluster, tmp_path: Path) -> None:
    package = tmp_path / "environment.tar.gz"
    write_archive(package)
    jobs = started(cluster, tmp_path, JobSettings(package=package, java_archive=False))
    try:
        jobs.check_executors()
        assert b"/environment/" in jobs.run(headrace_path, 1, "path")[0]
    finally:
        jobs.stop()


WRAPPER = """#!/bin/sh
exec {python} -c '
import sys
if "headrace" in "{mode}":
    import importlib.metadata as metadata
    found = metadata.version
    metadata.version = lambda name: "0.0.1" if name == "headrace" else found(name)
if "module" in "{mode}":
    sys.modules["headrace"] = sys.modules["headrace_connectors"] = None
if "version" in "{mode}":
    from collections import namedtuple
    sys.version_info = namedtuple("v", "major minor micro releaselevel serial")(3, 9, 1, "final", 0)
import runpy
module = sys.argv[1 + sys.argv[1:].index("-m") + 1]
sys.argv = [module, *sys.argv[1 + sys.argv[1:].index(module) + 1:]]
runpy.run_module(module, run_name="__main__")
' "$@"
"""


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("headrace", r"the executors have headrace 0\.0\.1, and this worker has .*headrace lakehouse package"),
        ("module", r"cannot import a module that the connector needs: .*headrace_connectors"),
        ("version", r"another version of Python.*, and this worker runs Python 3\."),
        ("missing", r"cannot start Python: .*no/such/python"),
    ],
)
def test_unsuitable_python_on_the_executors_is_reported_with_a_remedy(
    cluster: SparkCluster, tmp_path: Path, mode: str, message: str
) -> None:
    python = tmp_path / "python"
    python.write_text(WRAPPER.format(python=sys.executable, mode=mode))
    python.chmod(0o755)
    path = "/no/such/python" if mode == "missing" else str(python)
    jobs = started(cluster, tmp_path, **{"spark.pyspark.python": path})
    try:
        with pytest.raises(ExecutorsUnsuitableError, match=message):
            jobs.check_executors()
    finally:
        jobs.stop()


def test_cluster_that_loses_all_workers_is_reported_and_the_job_continues_on_a_new_one(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1, WORK_ENVIRONMENT) as cluster:
        jobs = started(cluster, tmp_path, JobSettings(executors_timeout_ms=30_000, java_archive=False))
        try:
            assert jobs.run(square, 1, "square") == [b"0"]
            cluster.kill_workers()
            with pytest.raises(ExecutorsUnavailableError, match=r"30000 ms \(lakehouse\.executors\.timeout\.ms\)"):
                jobs.run(square, 1, "square")
            cluster.start_worker()
            assert jobs.run(square, 2, "squares") == [b"0", b"1"]
            cluster.stop()
            with pytest.raises((ExecutorsUnavailableError, SparkDisconnectedError)):
                jobs.run(square, 2, "squares")
        finally:
            jobs.stop()
