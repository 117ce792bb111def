"""Tests that the examples in the README of the JDBC connectors work as written, except that they use free ports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import postgres
from support.ports import free_port
from support.worker import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
README = ROOT / "connectors" / "headrace_connectors" / "jdbc" / "README.md"
TWO_ROWS = "[(1, 'tea'), (2, 'cups')]"


class Shell:
    """Runs the commands of an example in a directory with a copy of `configs`."""

    def __init__(self, directory: Path, replacements: dict[str, str]) -> None:
        self._directory = directory
        self._replacements = replacements
        self._environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        shutil.copytree(ROOT / "configs", directory / "configs")
        for file in (directory / "configs").glob("*.properties"):
            file.write_text(self._replaced(file.read_text()))

    def _replaced(self, text: str) -> str:
        for old, new in self._replacements.items():
            text = text.replace(old, new)
        return text

    def run(self, command: str, *, may_fail: bool = False) -> str:
        """Run a command and return its output without line breaks at the end."""
        done = subprocess.run(
            ["bash", "-c", self._replaced(command)], cwd=self._directory, env=self._environment,
            text=True, timeout=60, capture_output=True, check=False,
        )  # fmt: skip
        assert may_fail or done.returncode == 0, done.stderr
        return done.stdout.strip()

    @contextmanager
    def worker(self, command: str) -> Iterator[Path]:
        """Run a worker in the background with a free REST port. Yields the file with the worker's output."""
        command = f"exec env {command.partition('#')[0]} --override listeners=http://127.0.0.1:{free_port()}"
        log = self._directory / "worker.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=self._directory, env=self._environment, stdout=output, stderr=output
            )
        try:
            yield log
        finally:
            process.terminate()
            process.wait(30)


def _examples() -> list[list[str]]:
    """Return the commands of each example."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    return [text.splitlines() for language, text in blocks if not language]


def test_example_copies_rows_from_one_sqlite_database_to_another(tmp_path: Path) -> None:
    create, worker, show, insert = _examples()[0]
    shell = Shell(tmp_path, {})
    shell.run(create)
    assert TWO_ROWS in show
    with shell.worker(worker) as log:
        wait_for(lambda: shell.run(show, may_fail=True) == TWO_ROWS, "both rows are copied", 60, log.read_text)
        shell.run(insert)
        wait_for(lambda: "(3, 'sugar')" in shell.run(show), "the new row is copied", 60, log.read_text)


@pytest.mark.postgres
@pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or "")
def test_example_copies_rows_from_postgresql_to_sqlite(tmp_path: Path) -> None:
    create_database, create_table, worker, show = _examples()[1]
    with postgres.running() as server:
        shell = Shell(
            tmp_path,
            {
                "sudo -u postgres psql": f"psql -h 127.0.0.1 -p {server.port} -U postgres",
                "psql -h localhost": f"psql -h 127.0.0.1 -p {server.port}",
                "localhost:5432": f"127.0.0.1:{server.port}",
            },
        )
        shell.run(create_database)
        shell.run(create_table)
        assert TWO_ROWS in show
        with shell.worker(worker) as log:
            wait_for(lambda: shell.run(show, may_fail=True) == TWO_ROWS, "both rows are copied", 60, log.read_text)
