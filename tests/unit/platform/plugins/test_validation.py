from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from headrace.api.config import Config, Password, key
from headrace.api.config_def import ConfigValue
from headrace.api.connector import Connector, SinkConnector, SourceConnector
from headrace.api.converter import Converter
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.api.task import SinkTask, SourceTask
from headrace.api.transform import Transformation
from headrace.plugins.registry import PluginNotFoundError
from headrace.plugins.validation import Validation, plugin_config, validate_connector
from support.transforms import make_plugin


class _SourceConfig(Config):
    passthrough_prefixes: ClassVar[tuple[str, ...]] = ("driver.",)

    table: str = key("table", doc="The table.")
    password: Password | None = key("password", default=None)


class ExampleSource(SourceConnector[_SourceConfig]):
    task_class = SourceTask

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        if props.get("table") == "missing":
            values["table"].errors.append(f"There is no table missing (password {props.get('password')})")
        if props.get("table") == "crash":
            raise RuntimeError("boom")


class CheckedSource(SourceConnector[_SourceConfig]):
    """A source whose checks need a valid configuration."""

    task_class = SourceTask

    def validate_config(self, config: _SourceConfig) -> Iterator[ConfigError]:
        if config.table == "crash":
            raise RuntimeError("boom")
        if config.table == "missing":
            yield ConfigError("table", config.table, "there is no such table")
            yield ConfigError("no.key", None, "the server is too old")

    def warnings(self, config: _SourceConfig) -> list[str]:
        if config.table == "bad warnings":
            raise RuntimeError("boom")
        secret = config.password.value if config.password else "no password"
        return [f"Table {config.table} is slow ({secret})"]


class ExampleSink(SinkConnector):
    task_class = SinkTask


class ExamplePlainSink(SinkConnector):
    task_class = SinkTask
    supports_transforms = False


class TasklessSource(SourceConnector):
    pass


class MixedUpSource(SourceConnector):
    task_class = SinkTask  # type: ignore[assignment]


class MixedUpSink(SinkConnector):
    task_class = "SinkTask"  # type: ignore[assignment]


class NeitherConnector(Connector):
    task_class = SinkTask


WORKER = {"key.converter": "JsonConverter", "value.converter": "StringConverter", "group.id": "connect-taken"}


def validate(connector: type, worker: Mapping[str, str] = WORKER, **props: str | None) -> Validation:
    given: dict[str, str | None] = {"name": "c", "connector.class": f"{__name__}:{connector.__name__}"}
    given |= {name.replace("__", "."): value for name, value in props.items()}
    return validate_connector(given, worker)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


def test_connector_name_longer_than_the_maximum_length_of_a_topic_name_is_an_error() -> None:
    assert validate(ExampleSource, table="t", name="x" * 249).errors == []
    [text] = validate(ExampleSource, table="t", name="x" * 250).errors
    assert "String may have at most 249 characters but has 250" in text


@pytest.mark.parametrize("key", ["config.storage.topic", "status.storage.topic"])
def test_connectors_offsets_topic_must_not_be_the_config_or_status_topic_of_the_worker(key: str) -> None:
    worker = {**WORKER, "offset.storage.topic": "offsets", key: "other"}
    [text] = validate(ExampleSource, worker, table="t", offsets__storage__topic="other").errors
    assert f"Topic other is the worker's {key}" in text
    assert validate(ExampleSource, worker, table="t", offsets__storage__topic="offsets").errors == []


def test_valid_source_configuration_has_no_errors() -> None:
    result = validate(ExampleSource, table="t", driver__x="1", producer__override__linger__ms="5")
    assert (result.errors, result.warnings, result.type) == ([], [], "source")
    as_json_result = result.as_json()
    assert set(as_json_result) == {"name", "error_count", "groups", "configs"}
    assert as_json_result["error_count"] == 0
    assert as_json_result["groups"][:4] == ["Common", "Transforms", "Predicates", "Error Handling"]
    by_name = {item["value"]["name"]: item for item in as_json_result["configs"]}
    assert list(by_name)[:4] == ["name", "connector.class", "connector.plugin.version", "tasks.max"]
    assert by_name["tasks.max"]["value"] == {
        "name": "tasks.max", "value": "1", "recommended_values": [], "errors": [], "visible": True,
    }  # fmt: skip
    assert by_name["value.converter"]["definition"]["default_value"] == "StringConverter"
    assert by_name["table"]["definition"]["required"] is True
    json.dumps(as_json_result)


def test_validate_config_is_called_only_with_a_configuration_that_the_model_accepts() -> None:
    result = validate(CheckedSource, table="missing")
    assert result.values["table"].errors == ["Invalid value missing for configuration table: there is no such table"]
    assert result.values["connector.class"].errors == [
        "Invalid value null for configuration no.key: the server is too old"
    ]
    assert validate(CheckedSource, table="good").errors == []
    [text] = validate(CheckedSource, password="crash").errors
    assert text == 'Missing required configuration "table" which has no default value.'
    [text] = validate(CheckedSource, table="crash").errors
    assert text == "CheckedSource.validate_config: RuntimeError: boom"


def test_validation_returns_the_warnings_of_the_connector_without_the_values_of_variables() -> None:
    result = validate(CheckedSource, table="t")
    assert (result.errors, result.warnings) == ([], [])
    assert result.connector_warnings == ["Table t is slow (no password)"]
    props = {"name": "c", "connector.class": f"{__name__}:CheckedSource", "table": "t", "password": "s3cret"}
    result = validate_connector(props, WORKER, originals={**props, "password": "${env:PASSWORD}"})
    assert result.connector_warnings == ["Table t is slow (${env:PASSWORD})"]
    props = {"name": "c", "connector.class": f"{__name__}:ExampleSource", "table": "t", "transaction.boundary": "poll"}
    result = validate_connector(props, WORKER, originals={**props, "transaction.boundary": "${env:BOUNDARY}"})
    assert result.warnings == [
        "transaction.boundary=${env:BOUNDARY} has no effect: source tasks write without transactions"
    ]
    [text] = validate(CheckedSource, table="bad warnings").errors
    assert text == "CheckedSource.warnings: RuntimeError: boom"


def test_validation_reports_invalid_values_of_framework_keys() -> None:
    result = validate(
        ExampleSource, table="t", name=" ", tasks__max="0", errors__tolerance="some", transforms="A,A",
        key__converter="Nope", transaction__boundary="never", config__action__reload="maybe",
    )  # fmt: skip
    bad = {name for name, value in result.values.items() if value.errors}
    assert bad == {
        "name", "tasks.max", "errors.tolerance", "transforms", "transforms.A.type", "key.converter",
        "transaction.boundary", "config.action.reload",
    }  # fmt: skip


def test_validation_reports_errors_in_the_configuration_of_transforms_and_predicates() -> None:
    result = validate(
        ExampleSource, table="t", transforms="A,B,C,D", predicates="P",
        transforms__A__type="HoistField$Value", transforms__A__field="x", transforms__A__predicate="P",
        transforms__B__type="Cast$Value", transforms__B__spec="int128", transforms__B__negate="true",
        transforms__C__type="Nope", transforms__C__anything="1",
        transforms__D__type="InsertField$Value", transforms__D__predicate="Q", transforms__D__statik__field="x",
        predicates__P__type="TopicNameMatches",
    )  # fmt: skip
    errors = {name: value.errors for name, value in result.values.items() if value.errors}
    assert set(errors) == {
        "transforms.B.spec", "transforms.B.type", "transforms.C.type", "transforms.D.type", "transforms.D.predicate",
        "predicates.P.pattern",
    }  # fmt: skip
    assert errors["predicates.P.pattern"] == [
        'Missing required configuration "predicates.P.pattern" which has no default value.'
    ]
    assert "Invalid value [int128] for configuration transforms.B.spec" in errors["transforms.B.spec"][0]
    assert "defining a predicate to be negated" in errors["transforms.B.type"][0]
    assert "No field insertion configured" in errors["transforms.D.type"][0]
    assert result.warnings == [
        "Unknown configuration key transforms.D.statik.field is ignored; did you mean transforms.D.static.field?"
    ]
    assert result.definitions["transforms.A.field"].group == "Transforms: A"


def test_removed_key_whose_neglect_would_expose_data_is_an_error_that_names_the_new_key() -> None:
    result = validate(
        ExampleSource, table="t", transforms="r", transforms__r__type="ReplaceField$Value",
        transforms__r__blacklist="a", transforms__r__whitelist="b",
    )  # fmt: skip
    assert result.warnings == []
    assert result.errors == [
        f"Invalid value {value} for configuration transforms.r.{old}: this key was removed, and ignoring it would "
        f"change the data; use {new}"
        for value, old, new in (("a", "blacklist", "exclude"), ("b", "whitelist", "include"))
    ]
    assert result.values["transforms.r.blacklist"].recommended_values == ["transforms.r.exclude"]
    with pytest.raises(ConfigErrors, match=r"blacklist.*use exclude"):
        make_plugin("ReplaceField$Value", blacklist="a")


@pytest.mark.parametrize(("old", "new"), [("add.source.fields", "add.fields"), ("operation.header", "add.headers")])
def test_keys_that_debezium_removed_from_extract_new_record_state_are_errors(old: str, new: str) -> None:
    with pytest.raises(ConfigErrors, match=f"{old}.*use {new}"):
        make_plugin("ExtractNewRecordState", **{old: "true"})


def test_removed_key_with_an_empty_value_is_accepted() -> None:
    make_plugin("ReplaceField$Value", blacklist="")


def test_validation_reports_an_error_that_the_configure_method_of_a_transform_raises() -> None:
    result = validate(
        ExampleSource, table="t", transforms="A",
        transforms__A__type="ExtractField$Value", transforms__A__field="`a", transforms__A__field__syntax__version="V2",
    )  # fmt: skip
    assert "Incomplete backtick pair" in result.values["transforms.A.field"].errors[0]


def test_validation_reports_errors_in_the_configuration_of_converters() -> None:
    result = validate(
        ExampleSource, table="t", value__converter="JsonConverter", value__converter__schemas__enable="maybe",
        key__converter="StringConverter", key__converter__converter__encoding="UTF-99",
        header__converter="JsonConverter",
    )  # fmt: skip
    assert {name for name, value in result.values.items() if value.errors} == {
        "value.converter.schemas.enable", "key.converter.converter.encoding",
    }  # fmt: skip


def test_validation_reports_missing_and_invalid_topic_creation_keys() -> None:
    result = validate(ExampleSource, table="t", topic__creation__groups="g", topic__creation__g__include="(")
    assert {name for name, value in result.values.items() if value.errors} == {
        "topic.creation.default.replication.factor", "topic.creation.default.partitions", "topic.creation.g.include",
    }  # fmt: skip
    result = validate(
        ExampleSource, table="t", topic__creation__default__replication__factor="-1",
        topic__creation__default__partitions="0", topic__creation__default__cleanup__policy="compact",
    )  # fmt: skip
    assert {name for name, value in result.values.items() if value.errors} == {"topic.creation.default.partitions"}
    assert result.warnings == []


@pytest.mark.parametrize(
    ("props", "errors"),
    [
        ({"topics": "a"}, []),
        ({"topics.regex": "a.*"}, []),
        ({}, ["Must configure one of topics or topics.regex"] * 2),
        ({"topics": "a", "topics.regex": "b"}, ["topics and topics.regex are mutually exclusive options"] * 2),
        ({"topics": "a,a"}, []),
        ({"topics": "a,"}, ["Invalid value [a, ] for configuration topics"]),
        ({"topics.regex": "("}, ["Invalid value ( for configuration topics.regex"]),
        ({"topics": "a,q", "errors.deadletterqueue.topic.name": "q"}, ["The DLQ topic 'q' may not be included"]),
        ({"topics.regex": "q.*", "errors.deadletterqueue.topic.name": "q1"}, ["The DLQ topic 'q1' may not be matched"]),
        ({"topics": "a", "name": "taken"}, ["Consumer group for sink connector named taken conflicts"]),
    ],
)
def test_validation_reports_missing_or_conflicting_topic_keys_of_a_sink(
    props: dict[str, str], errors: list[str]
) -> None:
    result = validate(ExampleSink, **props)
    assert len(result.errors) == len(errors)
    assert all(found.startswith(text) for found, text in zip(result.errors, errors, strict=True)), result.errors
    assert result.type == "sink"


def test_transforms_of_a_sink_that_reads_its_topics_itself_are_rejected() -> None:
    props = {"topics": "a", "transforms": "A", "transforms.A.type": "Filter"}
    assert validate(ExampleSink, **props).errors == []
    (error,) = validate(ExamplePlainSink, **props).errors
    assert "ExamplePlainSink reads its topics itself and does not support transforms" in error


def test_validation_reports_errors_that_the_validate_method_of_a_connector_adds_or_raises() -> None:
    assert "There is no table missing" in validate(ExampleSource, table="missing").values["table"].errors[0]
    assert "boom" in validate(ExampleSource, table="crash").values["connector.class"].errors[0]
    assert validate(ExampleSource, table=None).values["table"].errors[-1].startswith("Null value")


def test_validation_result_does_not_contain_secrets_from_config_providers() -> None:
    originals = {
        "name": "c", "connector.class": f"{__name__}:ExampleSource", "table": "missing", "password": "${env:SECRET}",
    }  # fmt: skip
    resolved = {**originals, "password": "hunter2"}
    result = validate_connector(resolved, WORKER, originals=originals)
    text = json.dumps(result.as_json())
    assert "hunter2" not in text
    assert "(password ${env:SECRET})" in text
    originals["password"] = "x-${env:SECRET}/${env:OTHER}"
    resolved["password"] = "x-hunter2/other"
    result = validate_connector(resolved, WORKER, originals=originals)
    assert result.values["table"].errors == ["There is no table missing (password x-${env:SECRET}/${env:OTHER})"]
    assert "hunter2" not in json.dumps(validate_connector(resolved | {"table": "t"}, WORKER).as_json())


def test_validation_error_contains_the_variable_instead_of_the_resolved_value() -> None:
    """The error contains the variable `${file:/run/secrets/db:a}` instead of the password.

    The resolved value of the key `driver.user` is `file`, so `file` is also replaced in error messages. It must not be
    replaced inside the password's variable.
    """
    variables = {"password": "${file:/run/secrets/db:a}", "driver.user": "${file:/u:user}", "driver.db": "${env:DB}"}
    originals = {"name": "c", "connector.class": f"{__name__}:ExampleSource", "table": "missing", **variables}
    values = {"password": "postgres", "driver.user": "file", "driver.db": "missings"}
    result = validate_connector({**originals, **values}, WORKER, originals=originals)
    assert result.values["table"].errors == ["There is no table missing (password ${file:/run/secrets/db:a})"]


def test_missing_or_unknown_connector_class_is_reported_together_with_other_errors() -> None:
    others = {"name": "c", "tasks.max": "0", "transforms": "A", "topic": None}
    for props, error in (
        ({}, 'Missing required configuration "connector.class" which has no default value.'),
        ({"connector.class": " "}, "Invalid value  for configuration connector.class: String must be non-empty"),
        ({"connector.class": "Nope"}, "Invalid value Nope for configuration connector.class: .*"),
    ):
        result = validate_connector({**others, **props}, WORKER)
        errors = {name: value.errors for name, value in result.values.items() if value.errors}
        assert errors.keys() == {"connector.class", "tasks.max", "transforms.A.type", "topic"}
        assert re.fullmatch(error, errors["connector.class"][0])
        assert errors["topic"] == ["Null value can not be supplied as the configuration value."]
        assert (result.type, result.warnings) == ("unknown", [])
        json.dumps(result.as_json())


def test_configuration_without_connector_class_is_validated_with_the_plugin_that_the_request_names() -> None:
    result = validate_connector({"name": "c"}, WORKER, plugin=f"{__name__}:ExampleSource")
    assert {name for name, value in result.values.items() if value.errors} == {"connector.class", "table"}


def test_validation_request_with_an_unknown_plugin_or_a_different_connector_class_is_rejected() -> None:
    with pytest.raises(PluginNotFoundError):
        validate_connector({"name": "c"}, WORKER, plugin="Nope")
    props = {"name": "c", "connector.class": f"{__name__}:ExampleSource"}
    with pytest.raises(ConnectError, match="does not match request type"):
        validate_connector(props, WORKER, plugin=f"{__name__}:ExampleSink")


def test_configuration_keys_of_a_connector_plugin_include_the_framework_keys() -> None:
    """For other plug-ins, such as transforms, only the plug-in's own configuration keys are returned."""
    assert [item["name"] for item in plugin_config("HoistField$Value")] == ["field"]
    assert "schemas.enable" in [item["name"] for item in plugin_config("JsonConverter")]
    names = [item["name"] for item in plugin_config(f"{__name__}:ExampleSource")]
    assert names[:4] == ["table", "password", "name", "connector.class"]
    with pytest.raises(PluginNotFoundError, match="Unknown plugin Nope"):
        plugin_config("Nope")


@pytest.mark.parametrize(
    ("connector", "error"),
    [
        (TasklessSource, "Class TasklessSource has no attribute task_class: set it to a SourceTask"),
        (MixedUpSource, "The task_class of class MixedUpSource is .*SinkTask.*: it must be a SourceTask"),
        (
            MixedUpSink,
            "The task_class of class MixedUpSink is 'SinkTask': it must be a SinkTask or a SelfReadingSinkTask",
        ),
        (NeitherConnector, "Class NeitherConnector is neither a SourceConnector nor a SinkConnector"),
    ],
)
def test_connector_class_without_valid_task_class_is_rejected(connector: type, error: str) -> None:
    topics = {} if issubclass(connector, SourceConnector) else {"topics": "t"}
    result = validate(connector, **topics)
    assert len(result.errors) == 1
    assert re.fullmatch(error, result.errors[0])
    assert result.values["connector.class"].errors == result.errors


def test_validation_reports_errors_in_single_keys_together_with_errors_in_key_combinations() -> None:
    result = validate(
        ExampleSource, table="t", transforms="A,B,C",
        transforms__A__type="InsertField$Value", transforms__A__static__field="f",
        transforms__A__replace__null__with__default="maybe",
        transforms__B__type="SetSchemaMetadata$Value", transforms__B__replace__null__with__default="maybe",
        transforms__C__type="TimestampConverter$Value", transforms__C__format="QQQ",
    )  # fmt: skip
    assert {name for name, value in result.values.items() if value.errors} == {
        "transforms.A.static.value", "transforms.A.replace.null.with.default",
        "transforms.B.type", "transforms.B.replace.null.with.default",
        "transforms.C.target.type", "transforms.C.format",
    }  # fmt: skip


class Untyped(Transformation):
    """A transform that has no configuration model and reads `config.originals`."""


class UntypedConverter(Converter):
    """A converter without a configuration model."""


class TaskKeys(Config):
    depth: int = key("depth", default=1)


class TaskWithKeys(SourceTask[TaskKeys]):
    pass


class PlainSource(SourceConnector):
    task_class = TaskWithKeys


def test_validation_result_for_an_unknown_key_recommends_the_nearest_known_key_and_hides_the_value() -> None:
    result = validate(ExampleSource, table="t", pasword="hunter2", zzz="1")
    assert result.errors == []
    [unknown, other] = [each for each in result.as_json()["configs"] if each["definition"] is None]
    assert unknown["value"] == {
        "name": "pasword", "value": None, "recommended_values": ["password"], "errors": [], "visible": True,
    }  # fmt: skip
    assert (other["value"]["name"], other["value"]["recommended_values"]) == ("zzz", [])


@pytest.mark.parametrize("key", ["transforms", "predicates"])
def test_configuration_with_more_than_1000_transforms_or_predicates_is_rejected(key: str) -> None:
    [text] = validate(ExampleSource, table="t", **{key: ",".join(f"a{number}" for number in range(1001))}).errors
    assert "The list contains 1001 aliases, but at most 1000 are allowed" in text


def test_unknown_keys_have_no_recommendations_if_the_comparison_with_all_known_keys_would_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = importlib.import_module("headrace.api.config_def")  # the package exports a function with this name, too
    monkeypatch.setattr(module, "COMPARISONS_MAX", 1)
    result = validate(ExampleSource, table="t", pasword="hunter2")
    assert result.warnings == ["Unknown configuration key pasword is ignored"]
    assert result.values["pasword"].recommended_values == []


def test_keys_of_plugins_without_a_configuration_model_are_not_reported_as_ignored() -> None:
    result = validate(
        ExampleSource, table="t", transforms="A",
        transforms__A__type=f"{__name__}:Untyped", transforms__A__anything="1",
        value__converter=f"{__name__}:UntypedConverter", value__converter__anything="1",
        key__converter="Nope", key__converter__anything="1",
    )  # fmt: skip
    assert {name for name, value in result.values.items() if value.errors} == {"key.converter"}
    assert result.warnings == []


def test_keys_of_the_configuration_model_of_a_task_are_not_reported_as_ignored() -> None:
    result = validate(PlainSource, depth="2", dept="2")
    assert result.warnings == ["Unknown configuration key dept is ignored; did you mean depth?"]


def test_converter_settings_without_the_converter_class_are_reported_as_ignored() -> None:
    result = validate(ExampleSource, table="t", value__converter__schemas__enable="false")
    assert result.warnings == [
        "Configuration key value.converter.schemas.enable is ignored, because the connector uses the worker's "
        "value.converter and its settings: set value.converter in the connector's configuration too"
    ]


def test_connector_config_is_rejected_if_it_requires_exactly_once_support() -> None:
    """The value `required` of `exactly.once.support` is rejected. The value `requested` is accepted."""
    result = validate(ExampleSource, table="t", exactly__once__support="required")
    assert result.values["exactly.once.support"].errors == [
        "This worker delivers the records of source connectors at least once, not exactly once: "
        "set exactly.once.support=requested"
    ]
    assert validate(ExampleSource, table="t", exactly__once__support="requested").errors == []


def test_connector_config_keys_without_effect_cause_warnings() -> None:
    result = validate(ExampleSource, table="t", transaction__boundary="interval", offsets__storage__topic="own")
    assert result.errors == []
    assert result.warnings == [
        "transaction.boundary=interval has no effect: source tasks write without transactions",
        "offsets.storage.topic=own has no effect: a standalone worker stores the offsets of all source connectors in "
        "offset.storage.file.filename",
    ]
    distributed = {**WORKER, "offset.storage.topic": "connect-offsets"}
    assert validate(ExampleSource, distributed, table="t", offsets__storage__topic="own").warnings == []
