"""Tests that the examples of README.md and docs/examples.md work as written, except that they use a free REST port."""

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

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


def example(title: str) -> list[str]:
    """Return the commands of the example with the heading `title` in docs/examples.md."""
    examples = (ROOT / "docs" / "examples.md").read_text()
    block = re.search(rf"^## {re.escape(title)}\n.*?^```\n(.*?)^```", examples, re.MULTILINE | re.DOTALL)
    assert block is not None, title
    return block.group(1).splitlines()


def first_screen() -> tuple[str, list[str], str]:
    """Return the first connector file of README.md, the commands that run it, and their output."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return blocks[0], blocks[1].splitlines(), blocks[2]


def without_comments(properties: str) -> str:
    return "".join(line for line in properties.splitlines(keepends=True) if not line.startswith("#"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    return tmp_path


def shell(command: str, directory: Path) -> str:
    return subprocess.check_output(["bash", "-c", command], cwd=directory, env=environment(), text=True, timeout=120)


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


def test_first_screen_of_the_readme_runs_the_connector_file_that_it_shows(tmp_path: Path) -> None:
    """The environment of the tests replaces the first command, which installs headrace in a new environment."""
    properties, (install, init, worker, show), output = first_screen()
    assert install.split("#")[0].rstrip().endswith("pip install .")
    (tmp_path / "clone").mkdir()
    shell(init, tmp_path / "clone")
    directory = tmp_path / "orders"
    assert without_comments((directory / "orders-source.properties").read_text()) == properties
    assert len(properties.splitlines()) == 8
    with foreground(worker, directory, free_port()):
        has_lines(directory / "orders.txt", *output.splitlines())
        assert shell(show, directory) == output
        (directory / "inbox" / "more.csv").write_text("id,item,price,count\n3,sugar,1.5,2\n")
        more = "Struct{id=3,item=sugar,price=1.5,count=2,total=3.0}"
        has_lines(directory / "orders.txt", *output.splitlines(), more)


def test_example_of_a_pipeline_copies_every_line_to_the_sink_file(directory: Path) -> None:
    write, worker, show, append, status = example("A pipeline in one command")
    port = free_port()
    shell(write, directory)
    first = ["Struct{line=foo,data_source=test-file-source}", "Struct{line=bar,data_source=test-file-source}"]
    with foreground(worker, directory, port):
        has_lines(directory / "test.sink.txt", *first)
        assert shell(show, directory).splitlines() == first
        shell(append, directory)
        has_lines(directory / "test.sink.txt", *first, "Struct{line=baz,data_source=test-file-source}")
        assert '"RUNNING"' in shell(status.replace("8083", str(port)), directory)


def test_example_of_a_database_copies_every_row_to_the_sink_file(directory: Path) -> None:
    create, worker, show, insert = example("A database")
    shell(create, directory)
    with foreground(worker, directory, free_port()):
        has_lines(directory / "shop-orders.txt", "Struct{id=1,item=tea}", "Struct{id=2,item=cups}")
        assert shell(show, directory).startswith("Struct{id=1,item=tea}")
        shell(insert, directory)
        has_lines(
            directory / "shop-orders.txt", "Struct{id=1,item=tea}", "Struct{id=2,item=cups}", "Struct{id=3,item=sugar}"
        )


@pytest.mark.slow
def test_example_of_a_lakehouse_loads_the_rows_into_a_delta_table(directory: Path) -> None:
    create, *_ = example("A database")
    worker, show = example("A lakehouse")
    shell(create, directory)
    with foreground(worker, directory, free_port()):
        log = directory / "lakehouse" / "shop-orders" / "_delta_log"
        wait_for(lambda: any(log.glob("*.json")), "the table has a commit", 240)
        shown = shell(show, directory)
    assert "'item': 'tea'" in shown
    assert "'item': 'cups'" in shown


def test_completion_script_is_available_for_each_documented_shell(directory: Path) -> None:
    for name in ("bash", "zsh", "fish"):
        assert "headrace" in shell(f"_HEADRACE_COMPLETE={name}_source headrace", directory)


def test_example_of_a_worker_group_runs_its_connector(directory: Path) -> None:
    first_worker, second_worker, write, create, status = example("A group of workers")
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
