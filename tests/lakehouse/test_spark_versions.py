"""Runs jobs with the other supported versions of PySpark, which this test installs from the package index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.spark_work import WORK_ENVIRONMENT

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.prove, pytest.mark.timeout(1800)]

RUN = """
import sys
from pathlib import Path
import pyspark
from headrace_connectors.lakehouse.spark.jobs import JobCancelledError, JobFailedError, JobSettings, open_jobs
from headrace_connectors.lakehouse.spark.connect_server import SparkConnectServer
from support.ports import free_port
from support.spark import SHORT_RUN_CONF
from support.spark_cluster import EXECUTOR_CONF, running_cluster
from support.spark_work import fail, square

directory, settings = Path(sys.argv[1]), JobSettings(java_archive=False)


def use(conf, remote=None):
    jobs = open_jobs(conf, remote, "tests", directory / "spark", settings)
    jobs.start()
    jobs.check_executors()
    assert jobs.run(square, 3, "squares") == [b"0", b"1", b"4"]
    try:
        jobs.run(fail, 1, "fail")
    except JobFailedError as error:
        assert (str(error), error.error_class) == ("topic t, task 0:\\nthe second line", "ValueError"), error
    jobs.stop()


use(SHORT_RUN_CONF)
with running_cluster(directory, 1) as cluster:
    use({"spark.master": cluster.master, **EXECUTOR_CONF})
with SparkConnectServer(free_port(), SHORT_RUN_CONF, java_archive=False) as server:
    use({}, server.remote)
print(pyspark.__version__)
"""


@pytest.mark.parametrize("version", ["4.1.4", "4.3.0"])
def test_jobs_run_on_other_versions_of_pyspark(tmp_path: Path, version: str) -> None:
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
    subprocess.run([*install, f"pyspark=={version}"], check=True)
    path = os.pathsep.join([str(packages), WORK_ENVIRONMENT["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.strip() == version
