from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.converters.json_converter import JsonConverter
from headrace.plugins.missing_modules import explain
from headrace.plugins.registry import Kind, PluginNotFoundError, Registry
from headrace_transforms.hoist_field import HoistFieldKey, HoistFieldValue

TRANSFORM = """
from headrace.api.transform import Transformation

class Base(Transformation):
    abstract = True

class {name}(Base):
    java_names = ("com.acme.{name}",)

    def apply(self, record):
        return record.replace(topic=record.topic.upper())
"""


@pytest.fixture
def plugin_path(tmp_path: Path) -> Iterator[Path]:
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        (Kind.TRANSFORM, "org.apache.kafka.connect.transforms.HoistField$Value", HoistFieldValue),
        (Kind.TRANSFORM, "HoistField$Key", HoistFieldKey),
        (Kind.TRANSFORM, "HoistFieldKey", HoistFieldKey),
        (Kind.TRANSFORM, "headrace_transforms.hoist_field:HoistFieldKey", HoistFieldKey),
        (Kind.TRANSFORM, "headrace_transforms.hoist_field.HoistFieldKey", HoistFieldKey),
        (Kind.CONVERTER, "org.apache.kafka.connect.json.JsonConverter", JsonConverter),
        (Kind.CONVERTER, " JsonConverter ", JsonConverter),
        (Kind.CONVERTER, "Json", JsonConverter),
        (Kind.HEADER_CONVERTER, "JsonConverter", JsonConverter),
    ],
)
def test_plugin_is_found_by_simple_name_java_class_or_python_path(kind: Kind, name: str, found: type) -> None:
    assert Registry().find(kind, name) is found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("HoistFeld$Value", "Did you mean HoistField$Value?"),
        ("com.acme.HoistField$Value", "Available transforms: Cast$Key"),
        ("HoistField", "Did you mean HoistField$Key or HoistField$Value?"),
        ("ValueToKy", "Did you mean ValueToKey?"),
        ("nothing.like.it", "Available transforms: Cast$Key, Cast$Value, DropHeaders"),
        ("nope:Class", "cannot be imported: ModuleNotFoundError"),
        ("headrace.data.schema:Schema", "is not a subclass of Transformation"),
        ("headrace.converters.json_converter:JsonConverter", "is not a subclass of Transformation"),
    ],
)
def test_unknown_plugin_name_is_rejected_with_suggestions(name: str, message: str) -> None:
    with pytest.raises(PluginNotFoundError) as caught:
        Registry().find(Kind.TRANSFORM, name)
    assert message in str(caught.value)


def test_suggestions_for_an_unknown_plugin_name_ignore_the_common_suffix_of_names() -> None:
    with pytest.raises(PluginNotFoundError) as caught:
        Registry().find(Kind.CONVERTER, "io.confluent.connect.avro.AvroConverter")
    assert "Did you mean" not in str(caught.value)
    with pytest.raises(PluginNotFoundError, match=r"Did you mean JsonConverter\?"):
        Registry().find(Kind.CONVERTER, "JsnConverter")


def test_all_built_in_plugins_can_be_imported() -> None:
    registry = Registry()
    for kind in (Kind.TRANSFORM, Kind.PREDICATE, Kind.CONVERTER, Kind.HEADER_CONVERTER, Kind.CONFIG_PROVIDER):
        for found in registry.all(kind):
            assert issubclass(found, kind.base)
            assert found.java_names or found.__name__ == "Python", found
            assert registry.find(kind, (*found.java_names, found.__name__)[0]) is found
    assert registry.problems == []
    shown = {info.class_name: info.type for info in registry.describe([Kind.TRANSFORM, Kind.HEADER_CONVERTER])}
    assert shown["org.apache.kafka.connect.transforms.Cast$Key"] == "transformation"
    assert shown["org.apache.kafka.connect.storage.SimpleHeaderConverter"] == "header_converter"


def test_plugins_in_files_and_packages_on_plugin_path_are_found(plugin_path: Path) -> None:
    (plugin_path / "acme_shout.py").write_text(TRANSFORM.format(name="AcmeShout"))
    package = plugin_path / "acme_more"
    package.mkdir()
    (package / "__init__.py").write_text("# for headrace\nfrom acme_more.inner import AcmeWhisper\n")
    (package / "inner.py").write_text(TRANSFORM.format(name="AcmeWhisper"))
    (plugin_path / "acme_library.py").write_text("raise RuntimeError('no plug-in, must not be imported')")
    registry = Registry((str(plugin_path),))
    for name in ("AcmeShout", "com.acme.AcmeShout", "acme_shout.AcmeShout", "acme_shout:AcmeShout", "AcmeWhisper"):
        assert registry.find(Kind.TRANSFORM, name).__name__ in ("AcmeShout", "AcmeWhisper")
    assert registry.problems == []
    with pytest.raises(PluginNotFoundError):
        registry.find(Kind.TRANSFORM, "Base")


def test_plugins_are_found_in_sub_directories_of_plugin_path(plugin_path: Path) -> None:
    bundle = plugin_path / "acme-bundle-1.0"
    (bundle / "acme_bundled").mkdir(parents=True)
    (bundle / "acme_single.py").write_text(TRANSFORM.format(name="AcmeSingle"))
    (bundle / "acme_bundled" / "__init__.py").write_text(TRANSFORM.format(name="AcmeBundled"))
    (plugin_path / "documents").mkdir()
    (plugin_path / "documents" / "acme_readme.py").write_text("raise RuntimeError('no plug-in')")
    registry = Registry((str(plugin_path),))
    assert registry.find(Kind.TRANSFORM, "AcmeSingle").__name__ == "AcmeSingle"
    assert registry.find(Kind.TRANSFORM, "AcmeBundled").__name__ == "AcmeBundled"
    assert registry.problems == []


def test_task_class_without_a_connector_class_is_found_as_a_connector(plugin_path: Path) -> None:
    """The configuration key connector.class can contain the name of such a task class."""
    (plugin_path / "acme_tasks.py").write_text(
        "from headrace.api import Config, SinkTask, SourceConnector, SourceTask, key, source\n"
        "class AcmeConfig(Config):\n    topic: str = key('topic')\n"
        "class AcmeSinkTask(SinkTask[AcmeConfig]):\n    pass\n"
        "class AcmeSourceTask(SourceTask[AcmeConfig]):\n    pass\n"
        "class AcmeSource(SourceConnector[AcmeConfig]):\n    task_class = AcmeSourceTask\n"
        "@source\ndef acme_ticks(config: AcmeConfig, offset):\n    yield\n"
    )
    registry = Registry((str(plugin_path),))
    connector = registry.find(Kind.CONNECTOR, "AcmeSinkTask")
    assert (connector.task_class.__name__, connector.config_model.__name__) == ("AcmeSinkTask", "AcmeConfig")
    assert registry.find(Kind.CONNECTOR, "acme_ticks") is registry.find(Kind.CONNECTOR, "acme_tasks:acme_ticks")
    assert registry.find(Kind.CONNECTOR, "AcmeSource").task_class.__name__ == "AcmeSourceTask"
    with pytest.raises(PluginNotFoundError):
        registry.find(Kind.CONNECTOR, "AcmeSourceTask")


def test_error_for_a_missing_optional_dependency_says_what_to_install(
    plugin_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    (plugin_path / "acme_sql.py").write_text("import headrace, sqlalchemy.engine")
    with pytest.raises(PluginNotFoundError, match=r"sqlalchemy is not installed: pip install 'headrace\[jdbc\]'"):
        Registry((str(plugin_path),)).find(Kind.CONNECTOR, "acme_sql")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("pyspark.sql", "the Python package pyspark is not installed: pip install 'headrace[spark]'"),
        ("acme", "the Python package that contains the module acme is not installed"),
    ],
)
def test_error_for_a_missing_module_names_the_smallest_extra_that_installs_it(module: str, expected: str) -> None:
    error = ValueError("cannot start")
    error.__cause__ = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert explain(error) == expected
    assert explain(ValueError("other")) is None


def test_error_for_a_missing_module_names_the_extra_that_the_connector_requires() -> None:
    error = ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
    assert "headrace[s3]" in str(explain(error))
    assert "headrace[spark]" in str(explain(error, required_extra=lambda: "spark"))
    assert "headrace[s3]" in str(explain(error, required_extra=lambda: "jdbc"))


def test_error_for_a_python_path_whose_module_needs_a_missing_package_says_what_to_install(
    plugin_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "acme_driver", None)
    (plugin_path / "acme_path.py").write_text("import acme_driver")
    registry = Registry((str(plugin_path),))
    with pytest.raises(PluginNotFoundError, match="contains the module acme_driver is not installed"):
        registry.find(Kind.CONNECTOR, "acme_path:Acme")


def test_plugin_file_that_fails_to_import_is_reported_and_other_plugins_are_found(plugin_path: Path) -> None:
    (plugin_path / "acme_broken.py").write_text("import headrace\nraise RuntimeError('boom')")
    (plugin_path / "acme_exits.py").write_text("import headrace, sys\nsys.exit(5)")
    (plugin_path / "acme_fine.py").write_text(TRANSFORM.format(name="AcmeFine"))
    registry = Registry((str(plugin_path), str(plugin_path / "missing")))
    assert registry.find(Kind.TRANSFORM, "AcmeFine").__name__ == "AcmeFine"
    with pytest.raises(PluginNotFoundError, match="boom"):
        registry.find(Kind.TRANSFORM, "AcmeBroken")
    assert any("missing is not a directory" in problem for problem in registry.problems)


def test_directory_on_plugin_path_with_only_java_plugins_is_reported(plugin_path: Path) -> None:
    java, mixed, empty = plugin_path / "java", plugin_path / "mixed", plugin_path / "empty"
    for directory in (java / "acme-connector", mixed, empty):
        directory.mkdir(parents=True)
    (java / "acme-connector" / "acme-1.0.jar").touch()
    (mixed / "acme-1.0.jar").touch()
    (mixed / "acme_beside_jar.py").write_text(TRANSFORM.format(name="AcmeBesideJar"))
    registry = Registry((str(java), str(mixed), str(empty)))
    with pytest.raises(PluginNotFoundError):
        registry.find(Kind.TRANSFORM, "AcmeAbsent")
    [problem] = registry.problems
    assert problem.startswith(
        f"plugin.path: {java} contains no Python plug-ins, only Java plug-ins such as acme-1.0.jar"
    )


def test_simple_name_that_two_plugins_share_is_rejected_as_ambiguous(plugin_path: Path) -> None:
    (plugin_path / "acme_one.py").write_text(TRANSFORM.format(name="AcmeTwice").replace("com.acme", "com.one"))
    (plugin_path / "acme_two.py").write_text(TRANSFORM.format(name="AcmeTwice").replace("com.acme", "com.two"))
    registry = Registry((str(plugin_path),))
    with pytest.raises(PluginNotFoundError, match="ambiguous: use one of acme_one:AcmeTwice, acme_two:AcmeTwice"):
        registry.find(Kind.TRANSFORM, "AcmeTwice")
    assert registry.find(Kind.TRANSFORM, "com.two.AcmeTwice").__module__ == "acme_two"


def test_error_that_was_raised_from_itself_is_searched_once_for_a_missing_package() -> None:
    error = ValueError("x")
    error.__cause__ = error
    assert explain(error) is None
