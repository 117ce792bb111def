"""The configuration of Iceberg catalogs, and the errors of catalogs that cannot be used."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")
from headrace.api.errors import ConfigErrors
from headrace_connectors.lakehouse.committers.iceberg_catalog import (
    catalog_errors,
    check_catalog,
    open_catalog,
)
from headrace_connectors.lakehouse.committers.iceberg_config import CatalogConfig, parse_catalog
from headrace_connectors.lakehouse.table_uri import TableUri
from support.ports import free_port

LOCAL = TableUri("/lake")
S3 = TableUri("prefix", "bucket")


def _errors(config: dict[str, str], root: TableUri | None = LOCAL) -> list[str]:
    with pytest.raises(ConfigErrors) as raised:
        parse_catalog(config, root)
    return [str(error) for error in raised.value.errors]


def test_local_path_has_an_sqlite_catalog_by_default() -> None:
    config = parse_catalog({"lakehouse.path": "/lake"}, LOCAL)
    assert config.name == "iceberg"
    assert config.properties == {"type": "sql", "uri": "sqlite:////lake/catalog.db", "warehouse": "file:///lake"}
    assert parse_catalog({"iceberg.catalog.type": "sql"}, LOCAL) == config


@pytest.mark.parametrize("root", [S3, None])
def test_other_locations_need_a_catalog(root: TableUri | None) -> None:
    (error,) = _errors({}, root)
    assert error.startswith("Invalid value null for configuration iceberg.catalog.type: is required: rest, sql, glue")


def test_keys_are_those_of_pyiceberg_without_the_prefix() -> None:
    keys = {
        "iceberg.catalog": "prod",
        "iceberg.namespace": "a.b",
        "iceberg.catalog.type": "REST",
        "iceberg.catalog.uri": "https://catalog/api",
        "iceberg.catalog.warehouse": "w",
        "iceberg.catalog.credential": "id:secret",
        "iceberg.catalog.ssl.cabundle": "/ca.pem",
        "iceberg.catalog.ssl.client.cert": "/cert.pem",
        "iceberg.catalog.auth.type": "oauth2",
        "iceberg.catalog.auth.oauth2.client_id": "id",
        "iceberg.catalog.s3.path-style-access": "true",
    }
    config = parse_catalog(keys, S3)
    assert config.name == "prod"
    assert config.namespace == ("a", "b")
    assert config.type == "rest"
    assert config.properties == {
        "type": "rest",
        "uri": "https://catalog/api",
        "warehouse": "w",
        "credential": "id:secret",
        "ssl": {"cabundle": "/ca.pem", "client": {"cert": "/cert.pem"}},
        "auth": {"type": "oauth2", "oauth2": {"client_id": "id"}},
        "s3.force-virtual-addressing": "false",
    }
    assert "secret" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config


def test_an_http_uri_is_that_of_a_rest_catalog() -> None:
    assert parse_catalog({"iceberg.catalog.uri": "http://catalog"}, S3).type == "rest"


def test_lakehouse_path_is_the_warehouse_of_sql_and_glue_catalogs() -> None:
    sql = {"iceberg.catalog.type": "sql", "iceberg.catalog.uri": "postgresql+psycopg://db/catalog"}
    assert parse_catalog(sql, S3).properties["warehouse"] == "s3://bucket/prefix"
    assert parse_catalog({"iceberg.catalog.type": "glue"}, S3).properties["warehouse"] == "s3://bucket/prefix"
    assert "warehouse" not in parse_catalog({"iceberg.catalog.uri": "http://catalog"}, S3).properties
    other = {**sql, "iceberg.catalog.warehouse": "s3://other"}
    assert parse_catalog(other, S3).properties["warehouse"] == "s3://other"
    (error,) = _errors(sql, None)
    assert "iceberg.catalog.warehouse: is required by the catalog type sql" in error


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"iceberg.catalog.type": "rest"}, "iceberg.catalog.uri: is required by the catalog type rest"),
        ({"iceberg.catalog.type": "hive"}, "iceberg.catalog.uri: is required by the catalog type hive"),
        ({"iceberg.catalog.type": "x"}, "iceberg.catalog.type: is not supported: the types are rest, sql, glue, hive"),
        ({"iceberg.catalog.type": "jdbc"}, "use sql with an SQLAlchemy URI in iceberg.catalog.uri"),
        ({"iceberg.catalog.type": "hadoop"}, "its commits are not safe; use rest or sql"),
        ({"iceberg.catalog.type": "nessie"}, "use rest with the URI of Nessie's Iceberg REST service"),
        ({"iceberg.catalog.warehouse": "/w"}, "iceberg.catalog.type: is required"),
        ({"iceberg.namespace": "a..b"}, "iceberg.namespace: has an empty part"),
        ({"iceberg.catalog.type": "glue", "iceberg.namespace": "a.b"}, "Glue has no nested namespaces"),
        (
            {"iceberg.catalog.type": "sql", "iceberg.catalog.py-io-impl": "x"},
            "iceberg.catalog.py-io-impl: is not supported",
        ),
    ],
)
def test_catalog_that_is_not_supported_or_incomplete_is_rejected(config: dict[str, str], message: str) -> None:
    (error,) = _errors(config)
    assert message in error


def test_java_class_of_a_catalog_is_rejected_with_the_key_to_use() -> None:
    errors = _errors({"iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog"}, S3)
    assert "iceberg.catalog.catalog-impl: names a Java class, which this sink does not load; set" in errors[0]


def test_java_class_for_files_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    config = parse_catalog({"iceberg.catalog.uri": "http://x", "iceberg.catalog.io-impl": "S3FileIO"}, S3)
    assert "io-impl" not in config.properties
    assert "iceberg.catalog.io-impl has no effect, because it names a Java class" in caplog.text


def test_folders_of_a_tables_name_replace_the_default_namespace() -> None:
    config = CatalogConfig("iceberg", {}, ("a", "b"))
    assert config.identifier("orders") == ("a", "b", "orders")
    assert config.identifier("shop.orders") == ("a", "b", "shop.orders")
    assert config.identifier("shop/orders") == ("shop", "orders")


# --- check ----------------------------------------------------------------------------------------------------------


def test_check_accepts_a_catalog_without_the_namespace(tmp_path: Path) -> None:
    assert catalog_errors({}, TableUri(str(tmp_path / "new"))) == []


def test_check_reports_the_errors_of_keys_without_connecting() -> None:
    (error,) = catalog_errors({"iceberg.catalog.type": "x"}, LOCAL)
    assert error.key == "iceberg.catalog.type"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("nonsense", "Could not parse SQLAlchemy URL"),
        ("sqlite:////proc/no/such/catalog.db", "cannot be used: "),
        ("oracle+no_such_driver://host/x", "Can't load plugin"),
        ("mssql+pymssql://user:geheim@host/x", "needs a Python package that is not installed: pymssql"),
    ],
)
def test_check_reports_a_database_that_cannot_be_used(uri: str, message: str) -> None:
    config = parse_catalog({"iceberg.catalog.type": "sql", "iceberg.catalog.uri": uri}, LOCAL)
    (error,) = check_catalog(config)
    assert error.key == "iceberg.catalog.uri"
    assert message in str(error)
    assert "geheim" not in str(error)


@pytest.mark.parametrize("type_", ["rest", "hive"])
def test_check_reports_a_server_that_is_not_reachable(type_: str) -> None:
    scheme = "http" if type_ == "rest" else "thrift"
    uri = f"{scheme}://127.0.0.1:{free_port()}"
    config = parse_catalog({"iceberg.catalog.type": type_, "iceberg.catalog.uri": uri}, S3)
    (error,) = check_catalog(config)
    assert error.key in ("iceberg.catalog.uri", "iceberg.catalog.type")
    assert "Connection refused" in str(error) or "not installed" in str(error)


def test_check_reports_a_uri_without_a_scheme() -> None:
    (error,) = check_catalog(parse_catalog({"iceberg.catalog.type": "rest", "iceberg.catalog.uri": "catalog:80"}, S3))
    assert "not an HTTP URL" in str(error)


@pytest.mark.parametrize(
    ("key", "text"), [("s3.signer", "S3V4RestSigner"), ("header.X-Iceberg-Access-Delegation", "remote-signing")]
)
def test_remote_signing_is_refused(key: str, text: str) -> None:
    (error,) = _errors({"iceberg.catalog.uri": "http://catalog", f"iceberg.catalog.{key}": text})
    assert f"iceberg.catalog.{key}: is not supported" in error
    assert "credentials" in error


def test_several_threads_can_open_a_new_sql_catalog_at_once(tmp_path: Path) -> None:
    for number in range(5):
        config = parse_catalog({}, TableUri(str(tmp_path / str(number))))
        started = threading.Barrier(8)

        def connect(config: CatalogConfig, started: threading.Barrier) -> int:
            started.wait()
            return len(open_catalog(config).list_namespaces())

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(connect, [config] * 8, [started] * 8)) == [0] * 8
