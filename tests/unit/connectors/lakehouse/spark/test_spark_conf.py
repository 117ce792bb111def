"""Tests of Spark's configuration for local masters and clusters."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_connectors.lakehouse.spark.conf import (
    check_version,
    driver_host,
    executor_python,
    is_local_master,
    session_conf,
)
from headrace_connectors.lakehouse.spark.jobs import SparkStartError

LOCAL_DIR = Path("/tmp/spark")
ARCHIVE, ZIP = Path("/p/e.tar.gz"), Path("/p/e.zip")


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_LOCAL_IP", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def master() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"spark://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("master", "is_local"),
    [("local", True), ("local[2]", True), ("local[*,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_only_masters_with_executors_in_the_drivers_jvm_are_local(master: str, is_local: bool) -> None:
    assert is_local_master(master) is is_local


def test_driver_of_a_local_master_listens_only_on_loopback() -> None:
    conf = session_conf({}, "app", LOCAL_DIR, None)
    assert (conf["spark.master"], conf["spark.driver.host"], conf["spark.driver.bindAddress"]) == (
        "local[*,4]",
        "127.0.0.1",
        "127.0.0.1",
    )
    assert conf["spark.python.daemon.module"].endswith("worker_daemon")


def test_driver_of_a_cluster_listens_on_the_address_that_reaches_the_master(master: str) -> None:
    conf = session_conf({"spark.master": master}, "app", LOCAL_DIR, None)
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in conf
    assert "spark.python.daemon.module" not in conf


def test_driver_host_of_the_user_takes_precedence(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    assert driver_host(master) == "10.0.0.1"
    given = {"spark.master": master, "spark.driver.host": "driver.example"}
    assert session_conf(given, "app", LOCAL_DIR, None)["spark.driver.host"] == "driver.example"


@pytest.mark.parametrize("cluster", ["yarn", "k8s://https://127.0.0.1:6443"])
def test_spark_finds_the_drivers_address_for_other_cluster_managers(cluster: str) -> None:
    conf = session_conf({"spark.master": cluster}, "app", LOCAL_DIR, None)
    assert (conf["spark.master"], conf["spark.submit.deployMode"]) == (cluster, "client")
    assert "spark.driver.host" not in conf


def test_master_with_an_unknown_host_is_rejected() -> None:
    with pytest.raises(SparkStartError, match=r"spark\.master: the host of spark://no\.invalid:7077 is not reachable"):
        driver_host("spark://no.invalid:7077")


def test_keys_of_the_connector_replace_defaults_but_the_driver_stays_on_this_machine() -> None:
    given = {"spark.submit.deployMode": "cluster", "spark.ui.enabled": "true"}
    conf = session_conf(given, "app", LOCAL_DIR, None)
    assert (conf["spark.submit.deployMode"], conf["spark.ui.enabled"]) == ("client", "true")


def test_archive_is_added_to_the_archives_of_the_user() -> None:
    conf = session_conf({"spark.master": "yarn", "spark.archives": "a.zip#a"}, "app", LOCAL_DIR, ARCHIVE)
    assert conf["spark.archives"] == "a.zip#a,/p/e.tar.gz#environment"
    assert "spark.archives" not in session_conf({"spark.master": "yarn"}, "app", LOCAL_DIR, ZIP)
    assert "spark.archives" not in session_conf({"spark.master": "local[2]"}, "app", LOCAL_DIR, ARCHIVE)


def test_python_of_executors_is_that_of_the_archive_or_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"spark.master": "yarn"}
    assert executor_python({"spark.master": "local[2]"}, "/driver", ARCHIVE) == "/driver"
    assert executor_python(cluster, "/driver", ARCHIVE) == "./environment/bin/python"
    assert executor_python({**cluster, "spark.pyspark.python": "/node"}, "/driver", ZIP) == "/node"
    assert executor_python(cluster, sys.executable, None) == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/env")
    assert executor_python(cluster, "/driver", None) == "/env"


@pytest.mark.parametrize("version", ["4.1.0", "4.1.4", "4.2.0", "4.3.0", "4.3.1-SNAPSHOT"])
def test_supported_versions_are_accepted(version: str) -> None:
    check_version(version, "PySpark")


@pytest.mark.parametrize("version", ["3.5.4", "4.0.5", "4.4.0", "5.0.0"])
def test_other_versions_are_rejected(version: str) -> None:
    with pytest.raises(SparkStartError, match=f"PySpark {version} is not supported"):
        check_version(version, "PySpark")
