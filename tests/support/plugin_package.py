"""Installs small third-party packages with plug-ins and commands into a directory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""


def install_package(
    directory: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str], target: Path
) -> None:
    """Build a wheel in `directory` and install it into `target`, as `pip install --target` does.

    The names of the groups in `entry_points` have no prefix `headrace.`. `modules` contains the text of each module of
    the distribution's package.
    """
    package = name.replace("-", "_")
    groups = [
        "\n".join(
            [f'[project.entry-points."headrace.{group}"]', *(f'{key} = "{path}"' for key, path in points.items())]
        )
        for group, points in entry_points.items()
    ]
    (directory / package).mkdir(parents=True)
    (directory / "pyproject.toml").write_text("\n\n".join([_PROJECT.format(name=name, package=package), *groups]))
    for module, text in {"__init__": "", **modules}.items():
        (directory / package / f"{module}.py").write_text(text)
    _run(directory, "-c", "import hatchling.build; hatchling.build.build_wheel('dist')")
    [wheel] = (directory / "dist").glob("*.whl")
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    _run(directory, "-m", "pip", "install", *options, "--target", str(target), str(wheel))


def write_distribution(
    target: Path, name: str, entry_points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]
) -> None:
    """Write the files of a distribution that `install_package` would install, without building a wheel.

    `modules` contains the text of each module; `acme.__init__` is the module of the package `acme`.
    """
    metadata = target / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, points in entry_points.items()
        for line in (f"[headrace.{group}]", *(f"{key} = {path}" for key, path in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    for module, text in modules.items():
        file = target / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def _run(directory: Path, *command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
