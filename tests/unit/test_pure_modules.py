from __future__ import annotations

from pathlib import Path

import pytest

from support.pure_modules import violations

PROMISE = '"""Decides something. This module does no I/O."""\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that depends on nothing else."""
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "acme_rules"
    path.mkdir()
    (path / "__init__.py").write_text('"""The rules of Acme."""\n')
    return path


def check(package: Path, exceptions: list[tuple[str, str]] | None = None) -> list[str]:
    return list(violations({package.name: package.parent}, exceptions or []))


@pytest.mark.parametrize(
    "text",
    [
        "import socket\n",
        "def connect():\n    from socket import create_connection\n",
        "import os.path\n",
        "import importlib\nsocket = importlib.import_module('socket')\n",
        "from importlib import import_module\n",
    ],
)
def test_module_that_promises_to_do_no_io_must_not_import_a_module_that_does(package: Path, text: str) -> None:
    (package / "core.py").write_text(PROMISE + text)
    [line] = check(package)
    assert line.startswith("acme_rules.core promises to do no I/O, but imports ")


def test_imports_of_io_through_other_modules_are_reported_with_the_chain(package: Path) -> None:
    (package / "core.py").write_text(PROMISE + "from acme_rules.shell.loop import Loop\n")
    (package / "shell").mkdir()
    (package / "shell" / "__init__.py").write_text("import threading\n")
    (package / "shell" / "loop.py").write_text("from acme_rules.driver import Driver\n")
    (package / "driver.py").write_text("import time\n")
    [line] = check(package)
    assert line == "acme_rules.core promises to do no I/O, but imports acme_rules.shell -> threading"
    (package / "shell" / "__init__.py").write_text("")
    [line] = check(package)
    assert (
        line == "acme_rules.core promises to do no I/O, but imports acme_rules.shell.loop -> acme_rules.driver -> time"
    )


def test_promise_of_a_package_applies_to_all_its_modules_without_an_exemption(package: Path) -> None:
    (package / "__init__.py").write_text('"""Decides\neverything. This\npackage does no I/O."""\n')
    (package / "core.py").write_text("import random\n")
    (package / "shell.py").write_text('"""Reads files. This module does I/O."""\nimport os\n')
    (package / "log.py").write_text("import logging, json, datetime\n")
    assert check(package) == ["acme_rules.core promises to do no I/O, but imports random"]


@pytest.mark.parametrize(
    "call", ["open('file')", "__import__('os')", "datetime.now(UTC)", "file.read_text()", "uuid4()"]
)
def test_module_that_promises_to_do_no_io_must_not_read_a_file_or_the_clock(package: Path, call: str) -> None:
    (package / "core.py").write_text(PROMISE + f"value = {call}\n")
    [line] = check(package)
    assert line == f"acme_rules.core promises to do no I/O, but line 2 uses {call.rpartition('(')[0]}"


@pytest.mark.parametrize("function", ["uuid4", "datetime.now"])
def test_module_that_promises_to_do_no_io_must_not_pass_on_a_function_that_does(package: Path, function: str) -> None:
    (package / "core.py").write_text(PROMISE + f"value = field(default_factory={function})\n")
    [line] = check(package)
    assert line == f"acme_rules.core promises to do no I/O, but line 2 uses {function}"


def test_imports_for_type_checkers_do_not_break_the_promise(package: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from random import Random\n"
    (package / "core.py").write_text(PROMISE + text)
    assert check(package) == []


def test_promise_in_other_words_is_reported(package: Path) -> None:
    (package / "core.py").write_text('"""Decides something. No I/O."""\nimport socket\n')
    [line] = check(package)
    assert line.startswith("acme_rules.core: write the promise of the docstring as")


def test_exception_that_is_no_longer_necessary_is_reported(package: Path) -> None:
    (package / "core.py").write_text(PROMISE + "import signal\n")
    assert check(package, [("acme_rules.core", "signal")]) == []
    (package / "core.py").write_text(PROMISE)
    assert check(package, [("acme_rules.core", "signal")]) == [
        "acme_rules.core does not import signal: remove this exception"
    ]
