"""Tests that plug-ins that are not installed can be used in processes without the worker's sys.path."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from headrace.plugins import registry
from headrace.runtime.record_access.pipeline import ConfiguredPipeline
from headrace.runtime.record_access.plugin_files import PluginFiles
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins

# The fresh process has only headrace and the installed packages on its sys.path.
_CHILD = """
import json, pickle, sys
from headrace.runtime.record_access.reader import KafkaRecords
from headrace_broker.records.columns import RecordColumns

request = json.load(sys.stdin)
for pickled in request["pipelines"]:
    with pickle.loads(bytes.fromhex(pickled)).open() as pipeline:
        raw = RecordColumns([value.encode() for value in request["values"]], offsets=range(len(request["values"])))
        result = pipeline.apply(KafkaRecords("t", 0, 0, len(raw), raw))
        values = [value for batch in result.batches for value in batch.values]
        print(json.dumps({"values": values, "errors": [error.reason for error in result.errors]}))
print(json.dumps([path for path in sys.path if "headrace-plugins" in path]))
"""


@pytest.fixture(autouse=True)
def plugin_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for plug-ins that only this process has on its sys.path, and a temporary directory of its own."""
    directory, temporary = tmp_path / "plugins", tmp_path / "temporary"
    directory.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    modules, path = set(sys.modules), list(sys.path)
    yield directory
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path
    registry.use_plugin_path(None)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))


def pipeline_of(plugin_path: Path, **config: str) -> ConfiguredPipeline:
    spec = TaskSpec(
        connector="sink",
        number=0,
        config={},
        connector_config={
            "name": "sink",
            "key.converter": "StringConverter",
            "value.converter": "StringConverter",
            **{name.replace("_", "."): text for name, text in config.items()},
        },
        worker={
            "bootstrap.servers": "localhost:1",
            "plugin.path": str(plugin_path),
            "python.transform.enable": "true",
        },
    )
    return ConfiguredPipeline.from_plugins(Plugins(spec), 10, json_texts=False)


def run_elsewhere(values: list[str], *pipelines: ConfiguredPipeline) -> list[Any]:
    """Apply pipelines in a new process, in the directory /, one after the other. Return its output."""
    request = {"values": values, "pipelines": [pickle.dumps(each).hex() for each in pipelines]}
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    found = subprocess.run(
        [sys.executable, "-I", "-c", _CHILD],
        input=json.dumps(request).encode(),
        stdout=subprocess.PIPE,
        cwd="/",
        env=environment,
        check=True,
        timeout=120,
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_transform_in_a_file_on_plugin_path_travels_with_the_modules_that_it_imports(plugin_path: Path) -> None:
    write(plugin_path / "helper_of_shout.py", "def upper(text):\n    return text.upper()\n")
    write(
        plugin_path / "shout_transform.py",
        """
        from headrace.api import Config, SinkRecord, transform
        from helper_of_shout import upper

        @transform
        def shout(config: Config, record: SinkRecord) -> SinkRecord:
            return record.replace(value=upper(record.value))
        """,
    )
    pipeline = pipeline_of(plugin_path, transforms="s", transforms_s_type="shout")
    assert pipeline.files.modules == ("helper_of_shout", "shout_transform")
    result, paths = run_elsewhere(["a", "b"], pipeline)
    assert result == {"values": ["A", "B"], "errors": []}
    assert len(paths) == 1


def test_predicate_in_a_package_on_sys_path_travels_with_all_files_of_the_package(
    plugin_path: Path, tmp_path: Path
) -> None:
    package = tmp_path / "other" / "short_texts"
    write(package / "__init__.py", "")
    write(package / "limit.txt", "2")
    write(
        package / "deep" / "predicates.py",
        """
        from pathlib import Path

        from headrace.api import ConnectRecord, Predicate

        class IsShort(Predicate):
            def test(self, record: ConnectRecord) -> bool:
                return len(record.value) < int((Path(__file__).parent.parent / "limit.txt").read_text())
        """,
    )
    write(package / "deep" / "__init__.py", "")
    sys.path.append(str(package.parent))
    pipeline = pipeline_of(
        plugin_path,
        transforms="drop",
        transforms_drop_type="Filter",
        transforms_drop_predicate="short",
        predicates="short",
        predicates_short_type="short_texts.deep.predicates:IsShort",
    )
    assert pipeline.files.modules == ("short_texts",)
    assert run_elsewhere(["a", "bb"], pipeline)[0] == {"values": ["bb"], "errors": []}


def test_file_of_the_python_transform_travels_and_errors_name_its_path(plugin_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    write(file, "def double(value):\n    return value * 2 if value else 1 / 0\n")
    config = {"transforms": "p", "transforms_p_type": "Python", "transforms_p_function": "double"}
    pipeline = pipeline_of(plugin_path, **config, transforms_p_file=str(file))
    here = run_elsewhere(["a", ""], pipeline)[0]
    assert here["values"] == ["aa"]
    assert f"file {file}, line 2, function double" in here["errors"][0]
    file.unlink()
    assert run_elsewhere(["a"], pipeline)[0] == {"values": ["aa"], "errors": []}


def test_changed_plugin_replaces_the_old_one_in_a_process_that_has_used_it(plugin_path: Path) -> None:
    pipelines = []
    for factor in (2, 3):
        write(
            plugin_path / "repeat_transform.py",
            f"""
            from headrace.api import SinkRecord, Transformation

            class Repeat(Transformation):
                def apply(self, record: SinkRecord) -> SinkRecord:
                    return record.replace(value=record.value * {factor})
            """,
        )
        pipelines.append(pipeline_of(plugin_path, transforms="r", transforms_r_type="repeat_transform:Repeat"))
    assert pipelines[0].files.digest != pipelines[1].files.digest
    first, second, paths = run_elsewhere(["a"], *pipelines)
    assert (first["values"], second["values"]) == (["aa"], ["aaa"])
    assert len(paths) == 1


def test_installed_plugins_are_not_packed(plugin_path: Path) -> None:
    pipeline = pipeline_of(plugin_path, transforms="c", transforms_c_type="Cast$Value", transforms_c_spec="string")
    assert pipeline.files == PluginFiles()


def test_processes_share_the_unpacked_files_but_not_those_of_a_directory_that_others_can_change(
    plugin_path: Path,
) -> None:
    write(plugin_path / "plain_headrace_module.py", "")
    sys.path.append(str(plugin_path))
    __import__("plain_headrace_module")
    module_class = type("X", (), {"__module__": "plain_headrace_module"})
    files = PluginFiles.collect([module_class], [])
    del sys.modules["plain_headrace_module"]
    sys.path.remove(str(plugin_path))
    files.activate()
    shared = Path(sys.path[-1])
    assert (shared / "plain_headrace_module.py").exists()
    assert shared.stat().st_mode & 0o077 == 0
    shared.chmod(0o777)
    assert files._unpack() != shared
    shared.chmod(0o700)
    assert files._unpack() == shared
    (shared / "plain_headrace_module.py").write_text("damaged")
    assert files._unpack() != shared
