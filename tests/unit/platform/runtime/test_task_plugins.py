"""Tests that a task's plug-ins are created from the configurations of the connector and the worker."""

from __future__ import annotations

import pytest

from headrace.api import Config, Converter, Password, SinkTask, Transformation, key
from headrace.api.errors import ConfigErrors
from headrace.metrics import logs
from headrace.plugins import registry
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins, task_class_name

WORKER = {
    "key.converter": "StringConverter",
    "value.converter": "JsonConverter",
    "value.converter.schemas.enable": "false",
}


def plugins(worker: dict[str, str] = WORKER, **props: str) -> Plugins:
    config = {"name": "c", **{name.replace("__", "."): text for name, text in props.items()}}
    return Plugins(TaskSpec(connector="c", number=0, config={}, connector_config=config, worker=worker))


def test_converter_settings_are_read_from_the_configuration_that_sets_the_converter_class() -> None:
    assert plugins().make_converters().value.config.schemas_enable is False
    own = plugins(value__converter="JsonConverter")
    assert own.make_converters().value.config.schemas_enable is True


def test_converter_properties_of_a_task_contain_the_converters_defaults() -> None:
    settings = {
        **WORKER,
        "key.converter.converter.encoding": "UTF-8",
        "value.converter.decimal.format": "BASE64",
        "value.converter.replace.null.with.default": "true",
        "value.converter.schemas.cache.size": "1000",
    }
    assert plugins().converter_properties() == settings
    own = plugins(value__converter="JsonConverter").converter_properties()
    assert own == {**settings, "value.converter.schemas.enable": "true"}


@pytest.mark.parametrize("connector", [{}, {"value__converter": "JsonConverter"}])
def test_configuration_of_a_sink_task_contains_the_settings_of_its_converters(connector: dict[str, str]) -> None:
    name = "value.converter.replace.null.with.default"
    worker = {**WORKER, name: "false"} if not connector else WORKER
    own = {**connector, name.replace(".", "__"): "false"} if connector else {}
    task = _Sink()
    plugins(worker, **own).start_task(task)
    assert task.config.originals[name] == "false"


class _Sink(SinkTask[Config]):
    def start(self, config: Config) -> None:
        pass


class _RegistryConfig(Config):
    user_info: Password = key("basic.auth.user.info")


class _RegistrySink(SinkTask[_RegistryConfig]):
    def start(self, config: _RegistryConfig) -> None:
        pass


class RegistryConverter(Converter[_RegistryConfig]):
    pass


class RegistryTransform(Transformation[_RegistryConfig]):
    pass


def test_passwords_of_worker_task_converter_and_transform_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "secrets", logs.Secrets())
    worker = {
        **WORKER,
        "producer.sasl.jaas.config": "worker-secret",
        "value.converter": f"{__name__}:RegistryConverter",
        "value.converter.basic.auth.user.info": "converter-secret",
    }
    config = {
        "transforms": "own",
        "transforms.own.type": f"{__name__}:RegistryTransform",
        "transforms.own.basic.auth.user.info": "transform-secret",
    }
    task = {"basic.auth.user.info": "task-secret", "topics": "orders"}
    created = Plugins(TaskSpec(connector="c", number=0, config=task, connector_config=config, worker=worker))
    created.make_converters()
    created.make_steps()
    created.start_task(_RegistrySink())
    for text in ("worker-secret", "converter-secret", "transform-secret", "task-secret"):
        assert logs.secrets.mask(f"cannot connect with {text}") == f"cannot connect with {logs.MASK}"
    assert logs.secrets.mask("orders") == "orders"


def test_default_header_converter_is_simple_header_converter() -> None:
    assert type(plugins().make_converters().header).__name__ == "SimpleHeaderConverter"


def test_error_for_a_missing_converter_class_names_the_configuration_key() -> None:
    with pytest.raises(ConfigErrors, match=r"value\.converter"):
        plugins({"key.converter": "StringConverter"}).make_converters()


def test_transforms_are_created_in_the_configured_order_with_their_predicates() -> None:
    steps = plugins(
        transforms="b, a",
        transforms__a__type="HoistField$Value",
        transforms__a__field="f",
        transforms__a__predicate="p",
        transforms__a__negate="TRUE",
        transforms__b__type="Filter",
        predicates="p",
        predicates__p__type="TopicNameMatches",
        predicates__p__pattern="x",
    ).make_steps()
    assert [step.class_name.rpartition(".")[2] for step in steps] == ["Filter", "HoistField$Value"]
    assert [(step.predicate is not None, step.negate) for step in steps] == [(False, False), (True, True)]


def test_transform_whose_predicate_is_not_configured_is_reported_with_its_key() -> None:
    with pytest.raises(ConfigErrors) as caught:
        plugins(transforms="a", transforms__a__type="Filter", transforms__a__predicate="p").make_steps()
    assert [str(error) for error in caught.value.errors] == [
        "Invalid value p for configuration transforms.a.predicate: No such alias in predicates"
    ]


def test_transform_with_an_unknown_or_missing_class_is_reported_with_its_key() -> None:
    with pytest.raises(ConfigErrors) as caught:
        plugins(transforms="a,b", transforms__a__type="Nope").make_steps()
    assert [error.key for error in caught.value.errors] == ["transforms.a.type", "transforms.b.type"]


FILE_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
FILE_SOURCE_TASK = "org.apache.kafka.connect.file.FileStreamSourceTask"


@pytest.mark.parametrize(
    ("configured", "task_class"),
    [
        (FILE_SOURCE, FILE_SOURCE_TASK),
        ("FileStreamSource", FILE_SOURCE_TASK),
        (
            "headrace_connectors.file.source:FileStreamSourceConnector",
            "headrace_connectors.file.source:FileStreamSourceTask",
        ),
    ],
)
def test_task_class_name_is_the_java_class_unless_the_connector_is_configured_with_its_python_path(
    configured: str, task_class: str
) -> None:
    connector = registry.find("connector", configured)
    assert task_class_name(connector, configured) == task_class
    spec = TaskSpec(
        connector="c",
        number=0,
        config={"task.class": task_class},
        connector_config={"connector.class": configured},
        worker=WORKER,
    )
    assert type(Plugins(spec).make_task()) is connector.task_class
