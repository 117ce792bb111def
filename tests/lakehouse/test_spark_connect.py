"""Runs jobs on the Spark Connect server that `headrace lakehouse server` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("grpc")

from headrace_connectors.lakehouse.spark.jobs import (
    JobCancelledError,
    JobFailedError,
    JobSettings,
    SparkDisconnectedError,
    SparkJobs,
    SparkStartError,
    open_jobs,
)
from headrace_connectors.lakehouse.spark.package import write_code
from support.ports import free_port
from support.spark import SHORT_RUN_CONF
from support.spark_work import WORK_ENVIRONMENT, Wait, fail, headrace_path, square
from support.worker import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def running_server(cache: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command, and return its process and the value of spark.remote."""
    command = [sys.executable, "-m", "headrace.cli.main", "lakehouse", "server", "--port", str(free_port())]
    for key, value in SHORT_RUN_CONF.items():
        command += ["--conf", f"{key}={value}"]
    environment = {**os.environ, **WORK_ENVIRONMENT, "XDG_CACHE_HOME": str(cache)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert line.startswith("spark.remote=sc://127.0.0.1:")
            yield process, line.removeprefix("spark.remote=")
        finally:
            process.kill()


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("cache")) as (_, found):
        yield found


def connected(remote: str, tmp_path: Path, settings: JobSettings | None = None) -> SparkJobs:
    jobs = open_jobs({}, remote, "tests", tmp_path, settings or JobSettings())
    jobs.start()
    return jobs


def test_two_connectors_share_one_server(remote: str, tmp_path: Path) -> None:
    first, second = connected(remote, tmp_path), connected(remote, tmp_path)
    first.check_executors()
    assert (first.is_local, first.parallelism) == (False, 2)
    work = Wait(tmp_path)
    canceller = threading.Thread(
        target=lambda: (wait_for(lambda: work.has_started(0), "the task has started", 120), first.cancel())
    )
    canceller.start()
    results: list[bytes] = []
    other = threading.Thread(target=lambda: results.extend(second.run(square, 3, "squares")))
    other.start()
    with pytest.raises(JobCancelledError):
        first.run(work, 1, "wait")
    other.join()
    canceller.join()
    assert results == [b"0", b"1", b"4"]
    with pytest.raises(JobFailedError) as failed:
        first.run(fail, 1, "fail")
    assert (str(failed.value), failed.value.error_class) == ("topic t, task 0:\nthe second line", "ValueError")
    first.stop()
    assert second.run(square, 1, "square") == [b"0"]
    second.stop()


def test_code_of_a_package_is_sent_to_the_server(remote: str, tmp_path: Path) -> None:
    package = tmp_path / "code.zip"
    write_code(package)
    jobs = connected(remote, tmp_path, JobSettings(package=package))
    assert b"code.zip" in jobs.run(headrace_path, 1, "path")[0]
    jobs.stop()


def test_end_of_the_server_is_reported(tmp_path: Path) -> None:
    with running_server(tmp_path / "cache") as (server, remote):
        jobs = connected(remote, tmp_path)
        assert jobs.run(square, 1, "square") == [b"0"]
        children = psutil.Process(server.pid).children(recursive=True)
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        assert psutil.wait_procs(children, 60)[1] == []
        with pytest.raises(SparkDisconnectedError, match="does not respond"):
            jobs.run(square, 1, "square")
        jobs.stop()


def test_server_that_does_not_exist_is_reported_at_the_start(tmp_path: Path) -> None:
    remote = f"sc://127.0.0.1:{free_port()}"
    with pytest.raises(SparkStartError, match=f"spark.remote: {remote} cannot be used: .*"):
        connected(remote, tmp_path)
