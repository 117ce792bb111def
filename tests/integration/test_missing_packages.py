"""Tests that REST responses, statuses and the log say which package to install for a connector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import ConnectWorker, ConnectWorkerError, KafkaBroker

pytestmark = pytest.mark.integration

PLUGIN = """
from headrace.api import SourceTask

class NeedsDriver(SourceTask):
    def start(self, config):
        import acme_driver
"""
JDBC = {
    "connector.class": "JdbcSource",
    "connection.url": "jdbc:sqlite:shop.sqlite",
    "mode": "bulk",
    "topic.prefix": "shop-",
}
HINT = "the Python package sqlalchemy is not installed: pip install 'headrace[jdbc]'"


def test_error_for_a_missing_driver_of_a_bundled_connector_says_which_package_to_install(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sqlalchemy.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'sqlalchemy'\", name=__name__)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with ConnectWorker(kafka_broker.bootstrap_servers) as worker:
        with pytest.raises(ConnectWorkerError) as refused:
            worker.create("shop", JDBC)
        assert HINT in str(refused.value)
        result = worker.request("PUT", "/connector-plugins/JdbcSource/config/validate", {**JDBC, "name": "shop"})
        assert HINT in str(result["configs"])


VALIDATE = """
import sys
sys.modules[sys.argv[1]] = None
from headrace.runtime.worker_connector import validate_config
config = dict(pair.split("=", 1) for pair in sys.argv[2:])
for item in validate_config({"name": "acme", "topics": "orders", **config}, {}, None)["configs"]:
    print(*item["value"]["errors"], sep="\\n")
"""


@pytest.mark.parametrize(
    ("package", "extra", "config"),
    [
        ("sqlalchemy", "jdbc", ("connector.class=JdbcSink", "connection.url=jdbc:sqlite:shop.sqlite")),
        ("sqlalchemy", "jdbc-postgres", ("connector.class=JdbcSink", "connection.url=jdbc:postgresql://db/shop")),
        ("psycopg", "jdbc-postgres", ("connector.class=JdbcSink", "connection.url=jdbc:postgresql://db/shop")),
        (
            "sqlalchemy",
            "jdbc-mysql",
            ("connector.class=JdbcSource", "connection.url=jdbc:mysql://db/shop", "mode=bulk", "topic.prefix=shop-"),
        ),
        ("pyarrow", "spark", ("connector.class=LakehouseSink", "lakehouse.path=tables")),
        (
            "boto3",
            "s3",
            (
                "connector.class=S3Sink",
                "s3.bucket.name=orders",
                "flush.size=1",
                "storage.class=S3Storage",
                "format.class=io.confluent.connect.s3.format.json.JsonFormat",
            ),
        ),
        (
            "elastic_transport",
            "elasticsearch",
            ("connector.class=ElasticsearchSink", "connection.url=http://localhost:1", "schema.ignore=true"),
        ),
    ],
)
def test_error_for_a_missing_package_names_the_extra_that_installs_all_packages_of_the_connector(
    package: str, extra: str, config: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", VALIDATE, package, *config], capture_output=True, text=True, timeout=60, check=True
    )
    assert f"the Python package {package} is not installed: pip install 'headrace[{extra}]'" in done.stdout


def test_error_of_a_failed_task_contains_the_name_of_the_missing_module(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    (tmp_path / "acme.py").write_text(PLUGIN)
    with ConnectWorker(kafka_broker.bootstrap_servers, {"plugin.path": str(tmp_path)}) as worker:
        worker.create("acme", {"connector.class": "NeedsDriver"}, wait=False)
        trace = worker.wait_for_status("acme", "FAILED")["tasks"][0]["trace"]
        hint = "NeedsDriver: the Python package that contains the module acme_driver is not installed"
        assert hint in trace
        assert hint in worker.log
