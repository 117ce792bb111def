"""Tests that workers and the command line find the plug-ins and commands of an installed third-party package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.plugin_package import install_package
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

PLUGINS = """
from headrace.api import NO_VALUE, Converter, HeaderConverter, Predicate, SchemaAndValue, Transformation

class AcmeConverter(Converter):
    java_names = ("io.acme.serialization.AcmeConverter",)

    def from_connect(self, topic, schema, value):
        return None if value is None else b"acme:" + value.encode()

    def to_connect(self, topic, data):
        return NO_VALUE if data is None else SchemaAndValue(None, data.removeprefix(b"acme:").decode())

class AcmeHeaders(HeaderConverter):
    java_names = ("io.acme.serialization.HeaderConverter",)

    def from_connect_header(self, topic, key, schema, value):
        return b"acme-header:" + value.encode()

    def to_connect_header(self, topic, key, data):
        return SchemaAndValue(None, data.removeprefix(b"acme-header:").decode())

class AcmeIsEmpty(Predicate):
    def test(self, record):
        return record.value == ""

class AcmeAppendHeader(Transformation):
    def apply(self, record):
        return record.replace(value=f"{record.value} {record.headers.last('origin').value}")
"""
COMMANDS = """
import click

@click.group()
def acme():
    "Manage Acme's schemas."

@acme.command()
@click.argument("name")
def show(name):
    click.echo(f"schema {name}")
"""
ENTRY_POINTS = {
    "converters": {"AcmeConverter": "acme_plugins.plugins:AcmeConverter", "Bad": "acme_plugins.bad:Bad"},
    "header_converters": {"AcmeHeaders": "acme_plugins.plugins:AcmeHeaders"},
    "predicates": {"AcmeIsEmpty": "acme_plugins.plugins:AcmeIsEmpty"},
    "transforms": {"AcmeAppendHeader": "acme_plugins.plugins:AcmeAppendHeader"},
    "commands": {"acme": "acme_plugins.commands:acme"},
}
BROKEN = "Plug-in acme_plugins.bad:Bad (distribution acme-plugins) cannot be imported: RuntimeError: no licence"
SOURCE = {
    "connector.class": "FileStreamSource",
    "topic": "lines",
    "value.converter": "io.acme.serialization.AcmeConverter",
    "transforms": "origin,drop",
    "transforms.origin.type": "org.apache.kafka.connect.transforms.InsertHeader",
    "transforms.origin.header": "origin",
    "transforms.origin.value.literal": "factory",
    "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.drop.predicate": "empty",
    "predicates": "empty",
    "predicates.empty.type": "AcmeIsEmpty",
}
SINK = {
    "connector.class": "FileStreamSink",
    "topics": "lines",
    "transforms": "append",
    "transforms.append.type": "AcmeAppendHeader",
}
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which the package is installed. Its parent contains no other file."""
    directory = tmp_path_factory.mktemp("package")
    modules = {"plugins": PLUGINS, "commands": COMMANDS, "bad": "raise RuntimeError('no licence')"}
    target = directory / "target" / "acme"
    install_package(directory / "source", "acme-plugins", ENTRY_POINTS, modules, target)
    return target


@pytest.mark.parametrize("place", ["environment", "plugin.path", "sub-directory of plugin.path"])
def test_plugins_of_an_installed_package_are_found_by_the_worker_its_validation_and_its_tasks(
    place: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"value.converter": "AcmeConverter", "header.converter": "AcmeHeaders"}
    if place == "environment":
        monkeypatch.setenv("PYTHONPATH", str(package))
    else:
        settings["plugin.path"] = str(package if place == "plugin.path" else package.parent)
    lines, decoded, encoded = (tmp_path / name for name in ("lines.txt", "decoded.txt", "encoded.txt"))
    lines.write_text("one\n\ntwo\n")
    source = {**SOURCE, "name": "source", "file": str(lines)}
    with Worker(tmp_path, settings) as worker:
        result = worker.request("PUT", "/connector-plugins/FileStreamSource/config/validate", source)
        assert [item["value"] for item in result["configs"] if item["value"]["errors"]] == []
        plugins = worker.request("GET", "/connector-plugins?connectorsOnly=false")
        found = {each["class"]: each["type"] for each in plugins}
        assert found["io.acme.serialization.AcmeConverter"] == "converter"
        assert found["io.acme.serialization.HeaderConverter"] == "header_converter"
        assert found["acme_plugins.plugins:AcmeIsEmpty"] == "predicate"
        worker.create("source", source)
        worker.create(
            "decoded", {**SINK, "file": str(decoded), "header.converter": "io.acme.serialization.HeaderConverter"}
        )
        worker.create(
            "encoded", {**SINK, "file": str(encoded), "value.converter": STRINGS, "header.converter": STRINGS}
        )
        for file, text in (
            (decoded, "one factory\ntwo factory\n"),
            (encoded, "acme:one acme-header:factory\nacme:two acme-header:factory\n"),
        ):
            wait_for(lambda file=file, text=text: file.exists() and file.read_text() == text, text, 60, worker.log)
        wait_for(lambda: BROKEN in worker.log(), BROKEN, 60, worker.log)


def test_validate_command_finds_the_plugins_of_an_installed_package(package: Path, tmp_path: Path) -> None:
    worker, connector = tmp_path / "worker.properties", tmp_path / "source.properties"
    settings = {"key.converter": STRINGS, "value.converter": "AcmeConverter", "plugin.path": package}
    worker.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    source = {**SOURCE, "name": "source", "file": "lines.txt"}
    connector.write_text("".join(f"{key}={value}\n" for key, value in source.items()))
    command = [sys.executable, "-m", "headrace.cli.main", "validate", "--worker", str(worker), str(connector)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_command_of_an_installed_package_is_a_command_of_headrace(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(package))
    headrace = [sys.executable, "-m", "headrace.cli.main"]
    shown = subprocess.run(
        [*headrace, "acme", "show", "orders"], capture_output=True, text=True, timeout=60, check=True
    )
    assert shown.stdout == "schema orders\n"
    listed = subprocess.run([*headrace, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "Manage Acme's schemas." in listed.stdout
