"""The command `headrace new KIND NAME`: generates a package with a plug-in, its tests and its entry point.

The files are generated from the templates in `headrace/cli/templates`.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from string import Template

ENTRY_POINT_GROUPS = {
    "source": "headrace.connectors",
    "sink": "headrace.connectors",
    "transform": "headrace.transforms",
    "converter": "headrace.converters",
}
"""The kinds of plug-ins that can be generated, with the group of their entry points."""

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


class PackageError(Exception):
    """The package cannot be generated. The message says why and what to do."""


def create_package(kind: str, name: str, directory: Path) -> Path:
    """Generate a package in a new sub-directory of `directory`; return the sub-directory. Raises PackageError."""
    variables = _variables(kind, name)
    root = directory / variables["distribution"]
    try:
        root.mkdir(parents=True)
        for path, text in _rendered(kind, variables):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise PackageError(f"{error.filename} already exists: choose another name, or another --dir") from None
    except OSError as error:
        raise PackageError(f"{error.filename or root} cannot be created: {error.strerror}") from None
    return root


def _variables(kind: str, name: str) -> dict[str, str]:
    """Return the variables of the templates. Raises PackageError if the name is invalid or already used."""
    if not _NAME.fullmatch(name):
        raise PackageError(
            f"{name!r} is not a package name: use lower-case letters and digits, separated by hyphens, and start with "
            "a letter, for example weather-source"
        )
    package = name.replace("-", "_")
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise PackageError(f"{name} is a Python keyword: choose another name, for example {name}-{kind}")
    if package in sys.stdlib_module_names or importlib.util.find_spec(package) is not None:
        raise PackageError(
            f"the module {package} already exists in this Python environment: choose another name, for example "
            f"{name}-{kind}"
        )
    class_name = "".join(part.capitalize() for part in package.split("_"))
    return {
        "kind": kind,
        "group": ENTRY_POINT_GROUPS[kind],
        "distribution": name.replace("_", "-"),
        "package": package,
        "class_name": class_name,
        "plugin": class_name if kind == "converter" else package,
    }


def _rendered(kind: str, variables: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file of the package."""
    package = variables["package"]
    usage = _render(f"{kind}/usage.md", variables)
    yield "pyproject.toml", _render("common/pyproject.toml", variables)
    yield "README.md", _render("common/README.md", {**variables, "usage": usage})
    yield f"src/{package}/__init__.py", _render("common/init.py", variables)
    yield f"src/{package}/plugin.py", _render(f"{kind}/plugin.py", variables)
    yield f"src/{package}/py.typed", ""
    yield f"tests/test_{package}.py", _render(f"{kind}/test.py", variables)


def _render(template: str, variables: dict[str, str]) -> str:
    path = files("headrace.cli") / "templates" / f"{template}.template"
    return Template(path.read_text(encoding="utf-8")).substitute(variables)
