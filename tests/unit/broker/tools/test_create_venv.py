"""Tests that tests/support/create_venv.sh chooses the newest optimized Python on PATH, or else the newest Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "support" / "create_venv.sh"
PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv") mkdir "$3" && echo {name} > "$3/python" ;;
*) [ -n "{rank}" ] && echo {rank} {version} ;;
esac
"""


def run_script(directory: Path, pythons: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """Run create_venv.sh. Return the name of the Python that the script chose, and the script's output.

    `pythons` maps the name of each fake Python on PATH to the rank and version that this Python prints to the script.
    The script chooses the Python with the highest rank. The rank of an optimized Python is at least 1000.
    """
    tools = directory / "bin"
    tools.mkdir()
    for name in ("mkdir", "dirname", "rm"):
        (tools / name).symlink_to(f"/bin/{name}" if Path(f"/bin/{name}").exists() else f"/usr/bin/{name}")
    for name, (rank, version) in pythons.items():
        (tools / name).write_text(PYTHON.format(name=name, rank=rank, version=version))
        (tools / name).chmod(0o755)
    result = subprocess.run(
        ["/bin/sh", str(SCRIPT), str(directory / "venv")],
        env={**os.environ, "PATH": str(tools)},
        capture_output=True,
        text=True,
        check=True,
    )
    return (directory / "venv" / "python").read_text().strip(), result.stdout


@pytest.mark.parametrize(
    ("pythons", "choice", "description"),
    [
        (
            {"python3": ("13", "3.13.1"), "python3.12": ("1012", "3.12.4"), "python3.11": ("1011", "3.11.2")},
            "python3.12",
            "Python 3.12.4, built with optimizations",
        ),
        (
            {"python3": ("11", "3.11.2"), "python3.13": ("13", "3.13.1"), "python3.12": ("", "")},
            "python3.13",
            "Python 3.13.1, built without optimizations",
        ),
    ],
)
def test_create_venv_prefers_the_newest_optimized_python_even_if_an_unoptimized_python_is_newer(
    pythons: dict[str, tuple[str, str]], choice: str, description: str, tmp_path: Path
) -> None:
    name, output = run_script(tmp_path, pythons)
    assert name == choice
    assert f"using {tmp_path}/bin/{choice} ({description})" in output
