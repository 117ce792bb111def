"""Runs jobs in a local Spark application: results, errors, cancellation, and the end of Spark's JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")
from headrace_connectors.lakehouse.spark.jobs import (
    JobCancelledError,
    JobFailedError,
    JobSettings,
    SparkDisconnectedError,
    SparkJobs,
    SparkStartError,
    open_jobs,
)
from support.spark import SHORT_RUN_CONF
from support.spark_work import WORK_ENVIRONMENT, Wait, die, fail, square
from support.worker import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

SETTINGS = JobSettings(java_archive=False)
PASSWORD_KEY, PASSWORD = "spark.hadoop.fs.s3a.secret.key", r"password=\:#ä"


@pytest.fixture(scope="module", autouse=True)
def environment_of_executors() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WORK_ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


def start_in_a_thread(jobs: SparkJobs) -> None:
    """Start Spark in a thread that exits, as the task does while it reads its tables."""
    thread = threading.Thread(target=jobs.start)
    thread.start()
    thread.join()


@pytest.fixture(scope="module")
def local_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def jobs(local_dir: Path) -> Iterator[SparkJobs]:
    opened = open_jobs({**SHORT_RUN_CONF, PASSWORD_KEY: PASSWORD}, None, "tests", local_dir, SETTINGS)
    start_in_a_thread(opened)
    yield opened
    opened.stop()


def call_when(condition: Callable[[], bool], action: Callable[[], None]) -> threading.Thread:
    """Call `action` in a thread when `condition` becomes true."""

    def run() -> None:
        wait_for(condition, "the tasks have started", 120)
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_results_are_in_the_order_of_the_tasks(jobs: SparkJobs) -> None:
    assert jobs.is_local
    assert jobs.parallelism == 2
    assert jobs.run(square, 5, "squares") == [b"0", b"1", b"4", b"9", b"16"]
    jobs.check_executors()


def test_failed_job_has_the_message_of_the_python_exception(jobs: SparkJobs) -> None:
    with pytest.raises(JobFailedError) as failed:
        jobs.run(fail, 1, "fail")
    assert (str(failed.value), failed.value.error_class) == ("topic t, task 0:\nthe second line", "ValueError")


def test_killed_python_worker_fails_the_job_and_not_the_next_one(jobs: SparkJobs) -> None:
    with pytest.raises(JobFailedError, match="Python worker exited unexpectedly"):
        jobs.run(die, 1, "die")
    assert jobs.run(square, 1, "square") == [b"0"]


def test_cancelled_job_ends_with_its_tasks(jobs: SparkJobs, tmp_path: Path) -> None:
    jobs.cancel()  # without effect on later jobs
    work = Wait(tmp_path)
    canceller = call_when(lambda: work.has_started(0), jobs.cancel)
    with pytest.raises(JobCancelledError):
        jobs.run(work, 2, "wait")
    canceller.join()
    assert jobs.run(square, 2, "squares") == [b"0", b"1"]


@pytest.mark.slow
def test_job_reports_the_end_of_the_jvm_and_spark_can_start_again(tmp_path: Path) -> None:
    code = """
import sys, threading, json, psutil
from pathlib import Path
from headrace_connectors.lakehouse.spark.jobs import JobSettings, SparkDisconnectedError, SparkStartError, open_jobs
from support.spark import SHORT_RUN_CONF
from support.spark_work import Wait, square
directory = Path(sys.argv[1])
jobs = open_jobs(SHORT_RUN_CONF, None, "tests", directory / "spark", JobSettings(java_archive=False))
jobs.start()
work = Wait(directory)
java = next(child for child in psutil.Process().children() if child.name() == "java")
def kill():
    while not work.has_started(0): pass
    java.kill()
threading.Thread(target=kill).start()
try:
    jobs.run(work, 1, "wait")
except SparkDisconnectedError as error:
    print(str(error).split(" (")[0], jobs.exit_status(), flush=True)
jobs.stop()
try:
    jobs.run(square, 1, "square")
except SparkDisconnectedError as error:
    print(error, flush=True)
jobs.start()
print(jobs.run(square, 2, "squares"), flush=True)
print("ready", flush=True)
jobs.run(Wait(directory / "2"), 1, "wait")
"""
    (tmp_path / "2").mkdir()
    environment = {**os.environ, **WORK_ENVIRONMENT}
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        if lines[-1] != "ready":
            process.kill()  # otherwise, the end of the block would wait for it
        assert lines == [
            "Spark's JVM was killed by SIGKILL -9",
            "Spark's JVM is not running",
            "[b'0', b'1']",
            "ready",
        ]
        wait_for(lambda: (tmp_path / "2" / "0").exists(), "the task has started", 120)
        children = psutil.Process(process.pid).children(recursive=True)
        assert {"java", "python"} <= {child.name().rstrip("0123456789.") for child in children}
        process.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(children, 60)[1] == []


def test_start_ends_if_it_is_stopped_or_killed(tmp_path: Path) -> None:
    jobs = open_jobs(SHORT_RUN_CONF, None, "tests", tmp_path, SETTINGS)
    with pytest.raises(SparkStartError, match="exited with status -9 while starting"):
        jobs.start(lambda: True)
    assert jobs.exit_status() == -signal.SIGKILL


def test_jobs_before_the_start_are_rejected(tmp_path: Path) -> None:
    jobs = open_jobs(SHORT_RUN_CONF, None, "tests", tmp_path, SETTINGS)
    with pytest.raises(SparkDisconnectedError, match="is not running"):
        jobs.run(square, 1, "square")
    jobs.cancel()
    jobs.stop()
    assert (jobs.exit_status(), jobs.output()) == (None, "")


def test_java_option_that_does_not_exist_fails_the_start_with_the_jvm_s_output(tmp_path: Path) -> None:
    conf = {**SHORT_RUN_CONF, "spark.driver.memory": "2x"}
    with pytest.raises(SparkStartError, match=r"Invalid maximum heap size: -Xmx2x"):
        open_jobs(conf, None, "tests", tmp_path, SETTINGS).start()


def test_configuration_reaches_spark_and_its_passwords_are_not_visible_outside_of_it(
    jobs: SparkJobs, local_dir: Path
) -> None:
    (jvm,) = (process for process in psutil.Process().children() if str(local_dir) in " ".join(process.cmdline()))
    assert PASSWORD not in " ".join(jvm.cmdline())
    assert [file for file in local_dir.rglob("*") if file.is_file() and PASSWORD.encode() in file.read_bytes()] == []
    assert jobs._context._jvm.java.lang.System.getProperty(PASSWORD_KEY) == PASSWORD  # type: ignore[attr-defined]
