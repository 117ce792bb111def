"""Tests that the example in the README of the file connectors works. The test changes only the worker's REST port."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.ports import free_port
from support.worker import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
README = ROOT / "connectors" / "headrace_connectors" / "file" / "README.md"
ROWS = [
    "Struct{id=1,item=tea,price=2.5,count=4,total=10.0}",
    "Struct{id=2,item=cups,price=9.0,count=1,total=9.0}",
    "Struct{id=3,item=sugar,price=1.5,count=2,total=3.0}",
]


def test_example_in_the_readme_of_the_file_connector_copies_csv_files_and_moves_them(tmp_path: Path) -> None:
    block = re.search(r"^```\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    write, worker, show, append, listing = block[1].splitlines()
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def shell(command: str) -> list[str]:
        output = subprocess.check_output(["bash", "-c", command], cwd=tmp_path, env=path, text=True, timeout=120)
        return output.splitlines()

    def has_rows(count: int) -> None:
        file, log = tmp_path / "orders.txt", tmp_path / "worker.log"
        wait_for(lambda: file.exists() and shell(show) == ROWS[:count], f"{count} rows", 60, log.read_text)

    shell(write)
    words = [*worker.partition("#")[0].split(), "--override", f"listeners=http://127.0.0.1:{free_port()}"]
    with (tmp_path / "worker.log").open("wb") as output:
        process = subprocess.Popen(words, cwd=tmp_path, env=path, stdout=output, stderr=output)
    try:
        has_rows(2)
        shell(append)
        has_rows(3)
    finally:
        process.terminate()
        process.wait(30)
    assert shell(listing) == ["finished:", "monday.csv", "tuesday.csv.gz", "", "inbox:"]
