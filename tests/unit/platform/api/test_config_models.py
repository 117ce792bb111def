from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pydantic
import pytest

from headrace.api.config import Config, ConfigType, Importance, Password, Width, config_def, key
from headrace.api.config_def import ConfigDef, ConfigKey, parse_value, to_text
from headrace.api.connector import SourceConnector
from headrace.api.errors import ConfigError, ConfigErrors, RecordErrors
from headrace.api.task import SourceTask


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Example(Config):
    passthrough_prefixes = ("driver.",)

    topic: str = key("topic", doc="Where to.", importance=Importance.HIGH, group="G", width=Width.LONG)
    size: int = key("batch.size", default=2000, at_least=1, at_most=5000, group="G")
    big: int = key("big", default=0, type=ConfigType.LONG)
    ratio: float | None = key("ratio", default=None)
    on: bool = key("is.on", default=False)
    names: list[str] = key("names", default=[])
    secret: Password | None = key("secret", default=None)
    colour: Colour = key("colour", default=Colour.RED)
    mode: Literal["a", "b"] = key("mode", default="a")

    @pydantic.model_validator(mode="after")
    def _not_both(self) -> Example:
        if self.on and self.mode == "b":
            raise ValueError("mode b cannot be on")
        return self

    @pydantic.field_validator("names")
    @classmethod
    def _short(cls, names: list[str]) -> list[str]:
        if any(len(name) > 3 for name in names):
            raise ValueError("names have three letters at most")
        return names


def test_configuration_values_are_parsed_to_the_types_of_their_fields() -> None:
    config = Example.parse(
        {"topic": " t ", "batch.size": " 7 ", "big": "-5000000000", "ratio": "1.5e1", "is.on": "TRUE",
         "names": " a , b,", "secret": " s3 ", "colour": "blue", "driver.x": "1", "other": "2"}
    )  # fmt: skip
    assert (config.topic, config.size, config.big, config.ratio, config.on) == ("t", 7, -5_000_000_000, 15.0, True)
    assert (config.names, config.colour, config.mode) == (["a", "b", ""], Colour.BLUE, "a")
    assert config.secret == Password("s3")
    assert "s3" not in repr(config)
    assert config.originals["topic"] == " t "
    assert config.originals_with_prefix("driver.") == {"x": "1"}
    with pytest.raises(pydantic.ValidationError):
        config.size = 1  # type: ignore[misc]


def test_only_whitespace_that_java_trims_is_removed_from_configuration_values() -> None:
    found = parse_value("topic", "\t\u00a0t\u2028 ", ConfigType.STRING)
    assert found == "\u00a0t\u2028"
    assert parse_value("names", "\u00a0 , b ", ConfigType.LIST) == ["\u00a0", "b"]


def test_all_errors_of_a_config_model_are_reported_together() -> None:
    with pytest.raises(ConfigErrors) as caught:
        Example.parse({"batch.size": "0", "big": "1.5", "is.on": "yes", "colour": "green", "mode": "c", "ratio": "x"})
    assert str(caught.value).splitlines() == [
        'Missing required configuration "topic" which has no default value.',
        "Invalid value 0 for configuration batch.size: Value must be at least 1",
        "Invalid value 1.5 for configuration big: Not a number of type LONG",
        "Invalid value x for configuration ratio: Not a number of type DOUBLE",
        "Invalid value yes for configuration is.on: Expected value to be either true or false",
        "Invalid value green for configuration colour: String must be one of red, blue",
        "Invalid value c for configuration mode: String must be one of a, b",
    ]


def test_errors_raised_by_pydantic_validators_of_a_config_model_are_reported() -> None:
    (error,) = Example.errors({"topic": "t", "names": "toolong"})
    assert (error.key, error.reason) == ("names", "names have three letters at most")
    (error,) = Example.errors({"topic": "t", "is.on": "true", "mode": "b"})
    assert str(error) == "mode b cannot be on"


def test_warning_about_an_unknown_configuration_key_suggests_a_similar_known_key() -> None:
    assert Example.warnings({"topic": "t", "batch.sise": "1", "driver.y": "2", "zzz": "3"}) == [
        "Unknown configuration key batch.sise is ignored; did you mean batch.size?",
        "Unknown configuration key zzz is ignored",
    ]


def test_config_def_is_derived_from_the_config_model() -> None:
    keys = config_def(Example).keys
    assert list(keys) == ["topic", "batch.size", "big", "ratio", "is.on", "names", "secret", "colour", "mode"]
    assert keys["topic"].as_json() == {
        "name": "topic",
        "type": "STRING",
        "required": True,
        "default_value": None,
        "importance": "HIGH",
        "documentation": "Where to.",
        "group": "G",
        "width": "LONG",
        "display_name": "topic",
        "dependents": [],
        "order": 1,
        "order_in_group": 1,
    }
    assert {name: (each.type.value, to_text(each.default)) for name, each in keys.items() if not each.required} == {
        "batch.size": ("INT", "2000"),
        "big": ("LONG", "0"),
        "ratio": ("DOUBLE", None),
        "is.on": ("BOOLEAN", "false"),
        "names": ("LIST", ""),
        "secret": ("PASSWORD", None),
        "colour": ("STRING", "red"),
        "mode": ("STRING", "a"),
    }
    assert keys["batch.size"].order == 2
    assert keys["mode"].recommended == ("a", "b")


def test_validation_results_do_not_contain_passwords() -> None:
    value = config_def(Example).validate({"topic": "t", "secret": "s3"})["secret"]
    assert value.as_json()["value"] == "[hidden]"


def test_embedding_a_config_def_adds_the_given_prefix_and_group_to_its_keys() -> None:
    inner = ConfigDef([ConfigKey("a", order=0, dependents=("b",)), ConfigKey("b", default="x", order=1)])
    outer = inner.embedded("p.", "Group", 3)
    assert [(item.name, item.group, item.order, item.dependents) for item in outer.keys.values()] == [
        ("p.a", "Group", 3, ("p.b",)),
        ("p.b", "Group", 4, ()),
    ]
    merged = ConfigDef([ConfigKey("p.b", default="mine")]).merged(outer)
    assert (merged.keys["p.b"].default, list(merged.keys)) == ("mine", ["p.b", "p.a"])


@pytest.mark.parametrize(
    ("type_", "text"),
    [(ConfigType.INT, "2147483648"), (ConfigType.SHORT, "40000"), (ConfigType.INT, "1_000"), (ConfigType.INT, ""),
     (ConfigType.INT, "9" * 5000),
     (ConfigType.LONG, "9223372036854775808"), (ConfigType.DOUBLE, ""), (ConfigType.BOOLEAN, "1")],
)  # fmt: skip
def test_configuration_values_that_java_rejects_are_rejected(type_: ConfigType, text: str) -> None:
    with pytest.raises(ConfigError):
        parse_value("k", text, type_)


def test_config_model_with_a_field_declared_without_the_key_function_is_rejected() -> None:
    class Bad(Config):
        plain: Any = 1

    with pytest.raises(TypeError, match=r"Bad\.plain"):
        config_def(Bad)


def test_record_errors_exception_names_the_first_failed_record_in_its_message() -> None:
    error = RecordErrors({5: ValueError("x"), 2: ValueError("y")})
    assert list(error.errors) == [2, 5]
    assert str(error) == "record 2: y (and 1 more records)"


class _Compatible(Config):
    without_effect: ClassVar[Mapping[str, str]] = {"buffer": "there is no buffer", "pool.": "there is no pool"}


class _CompatibleSource(SourceConnector[_Compatible]):
    task_class = SourceTask


def test_connector_warns_about_each_set_key_that_has_no_effect() -> None:
    config = _Compatible.parse({"pool.size": "1", "buffer": "2", "buffer.size": "3", "pool": "4"})
    assert _CompatibleSource().warnings(config) == [
        "Configuration buffer has no effect: there is no buffer",
        "Configuration pool.size has no effect: there is no pool",
    ]
    assert _CompatibleSource().warnings(_Compatible.parse({})) == []


def test_config_error_with_an_own_text_keeps_its_key() -> None:
    error = ConfigError.with_text("url", "The server does not respond")
    assert (error.key, str(error)) == ("url", "The server does not respond")
