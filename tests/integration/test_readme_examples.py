"""Tests that the Connect examples of README.md work as written, except that they use a free REST port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.broker import running_broker
from support.ports import free_port
from support.topics import end_offset
from support.worker import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]


def example(title: str) -> list[str]:
    """Return the commands of the README's example with the bold title `title`."""
    readme = (ROOT / "README.md").read_text()
    block = re.search(rf"^\*\*{re.escape(title)}\*\*.*?^```\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert block is not None, title
    return block.group(1).splitlines()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    return tmp_path


def shell(command: str, directory: Path) -> str:
    return subprocess.check_output(["bash", "-c", command], cwd=directory, env=environment(), text=True, timeout=60)


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def foreground(command: str, directory: Path, port: int, **overrides: str) -> Iterator[None]:
    """Run a worker's command that stays in the foreground, with its REST server on `port`. Stop it at the end.

    Each keyword argument becomes an option --override.
    """
    overrides["listeners"] = f"http://127.0.0.1:{port}"
    words = command.partition("#")[0].split()
    words += [word for key, value in overrides.items() for word in ("--override", f"{key}={value}")]
    file = directory / f"worker-{port}.log"
    with open(file, "wb") as log:
        process = subprocess.Popen(words, cwd=directory, env=environment(), stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, file.read_text()
    finally:
        process.terminate()
        process.wait(30)


def has_lines(file: Path, *lines: str) -> None:
    wait_for(lambda: file.exists() and file.read_text().splitlines() == list(lines), f"{file.name} has {lines}", 60)


def test_readme_example_of_a_pipeline_copies_every_line_to_the_sink_file(directory: Path) -> None:
    write, worker, show, append, status = example("A pipeline in one command.")
    port = free_port()
    shell(write, directory)
    first = ["Struct{line=foo,data_source=test-file-source}", "Struct{line=bar,data_source=test-file-source}"]
    with foreground(worker, directory, port):
        has_lines(directory / "test.sink.txt", *first)
        assert shell(show, directory).splitlines() == first
        shell(append, directory)
        has_lines(directory / "test.sink.txt", *first, "Struct{line=baz,data_source=test-file-source}")
        assert '"RUNNING"' in shell(status.replace("8083", str(port)), directory)


def test_readme_example_of_a_database_copies_every_row_to_the_sink_file(directory: Path) -> None:
    create, worker, show, insert = example("A database.")
    shell(create, directory)
    with foreground(worker, directory, free_port()):
        has_lines(directory / "shop-orders.txt", "Struct{id=1,item=tea}", "Struct{id=2,item=cups}")
        assert shell(show, directory).startswith("Struct{id=1,item=tea}")
        shell(insert, directory)
        has_lines(
            directory / "shop-orders.txt", "Struct{id=1,item=tea}", "Struct{id=2,item=cups}", "Struct{id=3,item=sugar}"
        )


def test_completion_script_is_available_for_each_documented_shell(directory: Path) -> None:
    for name in ("bash", "zsh", "fish"):
        assert "headrace" in shell(f"_HEADRACE_COMPLETE={name}_source headrace", directory)


def test_readme_example_of_a_worker_group_runs_its_connector(directory: Path) -> None:
    first_worker, second_worker, write, create, status = example("A group of workers.")
    assert "listeners=http://localhost:8084" in second_worker
    ports = {"8083": str(free_port()), "8084": str(free_port())}
    shell(write, directory)
    with running_broker(directory) as broker:
        brokers = {"bootstrap.servers": broker.address}
        with (
            foreground(first_worker, directory, int(ports["8083"]), **brokers),
            foreground(second_worker, directory, int(ports["8084"]), **brokers),
        ):
            for port in ports.values():
                wait_for(lambda port=port: is_healthy(int(port)), "the worker is healthy", 60)
            assert '"name":"lines"' in shell(create.replace("8084", ports["8084"]), directory)
            show = status.replace("8083", ports["8083"])
            wait_for(lambda: shell(show, directory).count('"RUNNING"') == 2, "the connector and its task run", 60)
            wait_for(lambda: end_offset(broker.address, "lines") == 2, "both lines")


def is_healthy(port: int) -> bool:
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:{port}/health"]
    return subprocess.run(command, capture_output=True, text=True).stdout == "200"
