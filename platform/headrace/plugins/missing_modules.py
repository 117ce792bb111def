"""Explains errors that a missing Python package causes: the explanation names the extra that installs the package.

The extras are read from the metadata of the distribution that contains the plug-in. An error of a third-party plug-in
therefore names an extra of the plug-in's own distribution. If several extras install the package, the explanation names
the connector's `required_extra`, so that one installation is sufficient.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"])?")


def explain(
    error: BaseException, distribution_name: str = "headrace", required_extra: Callable[[], str] = lambda: ""
) -> str | None:
    """Return a text that says what to install, or None if no ModuleNotFoundError is among the error and its causes.

    If an extra of the distribution `distribution_name` installs the missing package, the text names this extra. If
    there are several, it names the result of `required_extra`, or else the smallest one.
    """
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:  # a plug-in may raise an error from itself
        if isinstance(found, ModuleNotFoundError) and found.name:
            return _what_to_install(found.name.partition(".")[0], distribution_name, required_extra())
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def add_note(error: BaseException, plugin: type, required_extra: Callable[[], str]) -> None:
    """If a missing package caused a plug-in's error, add a note to the error. The note says what to install.

    `required_extra` returns the connector's `required_extra`. It is called only if a package is missing.
    """
    explanation = explain(error, distribution_of(plugin.__module__), required_extra)
    if explanation is not None:
        error.add_note(f"{plugin.__name__}: {explanation}")


def distribution_of(module_name: str) -> str:
    """Return the name of the distribution that has an entry point in a module's top-level package.

    If no distribution has such an entry point, return the name of the package.
    """
    package = module_name.partition(".")[0]
    for found in distributions():
        for point in found.entry_points:
            if point.group.startswith("headrace.") and point.module.partition(".")[0] == package:
                return found.name
    return package


def _what_to_install(module: str, distribution_name: str, required_extra: str) -> str:
    try:
        extras = _extras_with(distribution(distribution_name), module)
    except PackageNotFoundError:
        extras = []
    if not extras:
        return f"the Python package that contains the module {module} is not installed"
    extra = required_extra if required_extra in extras else extras[0]
    return f"the Python package {module} is not installed: pip install '{distribution_name}[{extra}]'"


def _extras_with(found: Distribution, module: str) -> list[str]:
    """Return the distribution's extras that install a package with the module's name, the smallest extra first."""
    packages: dict[str, list[str]] = {}
    for text in found.requires or ():
        match = _REQUIREMENT.match(text)
        if match is not None and match["extra"]:
            packages.setdefault(match["extra"], []).append(_normalized(match["name"]))
    matching = [extra for extra, names in packages.items() if _normalized(module) in names]
    return sorted(matching, key=lambda extra: (len(packages[extra]), extra))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
