"""Tests of plug-ins that the registry finds through the entry points of a distribution on plugin.path."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.converters.json_converter import JsonConverter
from headrace.plugins.registry import Kind, PluginNotFoundError, Registry
from support.plugin_package import write_distribution

CONVERTER = """
from headrace.api import Converter, HeaderConverter, Predicate

class {name}(Converter):
    java_names = ("io.acme.{java_name}",)

class Header{name}(HeaderConverter):
    pass

class Is{name}(Predicate):
    pass
"""


@pytest.fixture
def plugin_path(tmp_path: Path) -> Iterator[Path]:
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_converter_header_converter_and_predicate_are_found_by_their_entry_points(plugin_path: Path) -> None:
    groups = {
        "converters": {"AvroConverter": "acme.plugin:AvroConverter"},
        "header_converters": {"HeaderAvroConverter": "acme.plugin:HeaderAvroConverter"},
        "predicates": {"IsAvroConverter": "acme.plugin:IsAvroConverter"},
    }
    modules = {"acme.__init__": "", "acme.plugin": CONVERTER.format(name="AvroConverter", java_name="AvroConverter")}
    write_distribution(plugin_path, "acme-connect", groups, modules)
    registry = Registry((str(plugin_path),))
    for name in ("AvroConverter", "Avro", "io.acme.AvroConverter", "acme.plugin:AvroConverter"):
        assert registry.find(Kind.CONVERTER, name).__name__ == "AvroConverter"
    assert registry.find(Kind.HEADER_CONVERTER, "HeaderAvro").__name__ == "HeaderAvroConverter"
    assert registry.find(Kind.PREDICATE, "IsAvroConverter").__name__ == "IsAvroConverter"
    registry.report_problems()
    assert registry.problems == []


def test_plugin_is_found_by_a_java_class_name_that_differs_from_the_name_of_the_entry_point(plugin_path: Path) -> None:
    modules = {"acme.__init__": "", "acme.plugin": CONVERTER.format(name="Avro", java_name="AvroConverter")}
    groups = {"converters": {"Avro": "acme.plugin:Avro", "Broken": "acme.broken:Broken"}}
    write_distribution(plugin_path, "acme-connect", groups, modules)
    registry = Registry((str(plugin_path),))
    assert registry.find(Kind.CONVERTER, "io.acme.AvroConverter").__name__ == "Avro"
    with pytest.raises(PluginNotFoundError, match=r"name matches io\.other\.AvroConverter"):
        registry.find(Kind.CONVERTER, "io.other.AvroConverter")


@pytest.mark.parametrize("text", ["raise RuntimeError('boom')", "import sys; sys.exit('boom')"])
def test_entry_point_that_cannot_be_imported_is_reported_and_the_other_plugins_are_found(
    plugin_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    groups = {"converters": {"JsonConverter": "acme_broken:JsonConverter"}}
    write_distribution(plugin_path, "acme-connect", groups, {"acme_broken": text})
    registry = Registry((str(plugin_path),))
    assert JsonConverter in registry.all(Kind.CONVERTER)
    for name in ("org.apache.kafka.connect.json.JsonConverter", "JsonConverter", "Json"):
        assert registry.find(Kind.CONVERTER, name) is JsonConverter
    with caplog.at_level(logging.WARNING):
        registry.report_problems()
    assert "Plug-in acme_broken:JsonConverter (distribution acme-connect) cannot be imported: " in registry.problems[0]
    assert "boom" in registry.problems[0]
    with pytest.raises(PluginNotFoundError, match="boom"):
        registry.find(Kind.CONVERTER, "acme_broken:JsonConverter")


def test_entry_point_in_the_wrong_group_is_rejected_and_reported(plugin_path: Path) -> None:
    modules = {"acme_avro": CONVERTER.format(name="Avro", java_name="Avro")}
    write_distribution(plugin_path, "acme-connect", {"header_converters": {"Avro": "acme_avro:Avro"}}, modules)
    registry = Registry((str(plugin_path),))
    text = "Plug-in acme_avro:Avro (distribution acme-connect) is not a subclass of HeaderConverter"
    with pytest.raises(PluginNotFoundError) as caught:
        registry.find(Kind.HEADER_CONVERTER, "Avro")
    assert str(caught.value) == text
    registry.report_problems()
    assert registry.problems == [text]


def test_class_with_an_entry_point_in_its_package_is_not_ambiguous(plugin_path: Path) -> None:
    """The registry finds the class in the package's `__init__.py`, too, with another Python path."""
    modules = {
        "acme.__init__": "# for headrace\nfrom acme.plugin import Avro\n",
        "acme.plugin": CONVERTER.format(name="Avro", java_name="Avro"),
    }
    write_distribution(plugin_path, "acme-connect", {"converters": {"Avro": "acme:Avro"}}, modules)
    registry = Registry((str(plugin_path),))
    assert registry.find(Kind.CONVERTER, "Avro").__module__ == "acme.plugin"
    registry.report_problems()
    assert registry.problems == []


def test_names_that_several_plugins_share_are_reported(plugin_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for directory, name in (("one", "AvroConverter"), ("two", "AvroConverter"), ("three", "StringConverter")):
        text = CONVERTER.format(name=name, java_name=f"{directory}.{name}")
        modules = {f"acme_{directory}.__init__": "", f"acme_{directory}.plugin": text}
        groups = {"converters": {name: f"acme_{directory}.plugin:{name}"}}
        write_distribution(plugin_path / directory, f"acme-{directory}", groups, modules)
    registry = Registry((str(plugin_path),))
    with caplog.at_level(logging.WARNING):
        registry.report_problems()
    expected = [
        "The converter name AvroConverter is ambiguous: use one of acme_one.plugin:AvroConverter, "
        "acme_two.plugin:AvroConverter",
        "The converter name StringConverter is ambiguous: use one of acme_three.plugin:StringConverter, "
        "headrace.converters.string_converter:StringConverter",
    ]
    assert registry.problems == expected
    assert caplog.messages == expected
    with pytest.raises(PluginNotFoundError, match=r"The converter name Avro is ambiguous: use one of acme_one\."):
        registry.find(Kind.CONVERTER, "Avro")
    java_name = "org.apache.kafka.connect.storage.StringConverter"
    assert registry.find(Kind.CONVERTER, java_name).__module__ == "headrace.converters.string_converter"
