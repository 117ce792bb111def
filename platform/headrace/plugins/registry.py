"""Maps the plug-in names in configurations to Python classes.

Plug-ins are found in entry points (groups ``headrace.connectors``, ``headrace.transforms``, …, see `Kind`) and in the
directories of ``plugin.path``. An entry point's name is the simple name of the class. The module of the class is
imported only when the plug-in is used, so that a worker does not load every installed driver.

A name is one of
- a full Java class name (``io.confluent.connect.jdbc.JdbcSourceConnector``) in the class's `java_names`;
- a simple name, with or without the kind's suffix (``JdbcSourceConnector``, ``JdbcSource``, ``HoistField$Value``);
- a Python path (``package.module:Class``), with or without an entry point.

A simple name that matches two classes is an error. A plug-in that cannot be imported does not affect other plug-ins.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from itertools import chain
from pathlib import Path
from typing import Any

from headrace.api.config_def import nearest
from headrace.api.config_provider import ConfigProvider
from headrace.api.connector import Connector, SourceConnector, connector_for
from headrace.api.converter import Converter, HeaderConverter
from headrace.api.errors import ConnectError
from headrace.api.plugin import Plugin
from headrace.api.predicate import Predicate
from headrace.api.task import Task
from headrace.api.transform import Transformation
from headrace.plugins import missing_modules

logger = logging.getLogger(__name__)


class Kind(Enum):
    """A kind of plug-in: its label, entry-point group, base class, and the suffix that names of plug-ins may omit."""

    CONNECTOR = ("connector", "headrace.connectors", Connector, "Connector")
    TRANSFORM = ("transform", "headrace.transforms", Transformation, "Transformation")
    PREDICATE = ("predicate", "headrace.predicates", Predicate, "Predicate")
    CONVERTER = ("converter", "headrace.converters", Converter, "Converter")
    HEADER_CONVERTER = ("header_converter", "headrace.header_converters", HeaderConverter, "Converter")
    CONFIG_PROVIDER = ("config_provider", "headrace.config_providers", ConfigProvider, "ConfigProvider")

    def __init__(self, label: str, group: str, base: type[Plugin], suffix: str) -> None:
        self.label = label
        self.group = group
        self.base = base
        self.suffix = suffix

    @classmethod
    def from_label(cls, label: str) -> Kind:
        """Return the kind with that label, e.g. ``header_converter``."""
        return next(kind for kind in cls if kind.label == label)


class PluginNotFoundError(ConnectError):
    """No plug-in has that name, or the name is ambiguous. The message suggests similar names."""


@dataclass(slots=True)
class _Entry:
    """A plug-in whose module is imported by the first call of `load`."""

    name: str
    path: str
    load: Callable[[], Any]
    distribution: Callable[[], str] = lambda: ""
    """Returns the name of the plug-in's distribution; reading it takes a millisecond, so only errors call it.

    A file on plugin.path belongs to no distribution.
    """

    def is_bundled(self) -> bool:
        """Return whether headrace's own distribution contains the plug-in."""
        return self.distribution() == "headrace"


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """The description of a plug-in in ``GET /connector-plugins``."""

    class_name: str
    type: str
    version: str


@dataclass(slots=True)
class Registry:
    """All plug-ins of the Python environment and of the directories in `plugin_path`."""

    plugin_path: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)
    _entries: dict[Kind, list[_Entry]] = field(default_factory=dict)
    _classes: dict[tuple[Kind, str], type[Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def find(self, kind: Kind, name: str) -> type[Any]:
        """Return the plug-in class with that name. Raises PluginNotFoundError."""
        with self._lock:
            found = self._classes.get((kind, name))
            if found is None:
                found = self._classes[kind, name] = self._find(kind, name.strip())
            return found

    def all(self, kind: Kind) -> list[type[Any]]:
        """Return all importable plug-ins of a kind, sorted by name."""
        with self._lock:
            classes = []
            for entry in sorted(self._entries_of_kind(kind), key=lambda entry: entry.name):
                try:
                    classes.append(_load(kind, entry))
                except PluginNotFoundError as error:
                    self._report_problem(str(error))
            return list(dict.fromkeys(classes))

    def report_problems(self) -> None:
        """Import all third-party plug-ins, and log those that cannot be imported and the names that several have."""
        with self._lock:
            for kind in Kind:
                for name, paths in sorted(self._import_third_party(kind).items()):
                    if len(paths) > 1:
                        self._report_problem(_ambiguity(kind, name, paths))

    def _import_third_party(self, kind: Kind) -> dict[str, set[str]]:
        """Import third-party plug-ins and report errors. Return the paths of the other plug-ins by name.

        Bundled plug-ins are not imported, because their drivers are optional: using the plug-in says what to install.
        """
        plugins: dict[str, dict[Any, str]] = {}
        for entry in self._entries_of_kind(kind):
            try:
                plugin = entry.path if entry.is_bundled() else _load(kind, entry)
            except PluginNotFoundError as error:
                self._report_problem(str(error))
            else:
                plugins.setdefault(entry.name, {}).setdefault(plugin, entry.path)
        return {name: set(paths.values()) for name, paths in plugins.items()}

    def describe(self, kinds: Iterable[Kind]) -> list[PluginInfo]:
        """Return the descriptions of all importable plug-ins of these kinds."""
        return [
            PluginInfo(cls.display_class(), _rest_type(kind, cls), cls.version)
            for kind in kinds
            for cls in self.all(kind)
        ]

    def _entries_of_kind(self, kind: Kind) -> list[_Entry]:
        if not self._entries:
            self._entries = {
                each: [_from_entry_point(point) for point in _installed_entry_points(each.group)] for each in Kind
            }
            for directory in self.plugin_path:
                count = self._entry_count()
                for each in plugin_directories([directory]):
                    self._scan(Path(each))
                if self._entry_count() == count:
                    self._report_java_plugins(Path(directory))
        return self._entries[kind]

    def _find(self, kind: Kind, name: str) -> type[Any]:
        if ":" in name:
            return self._by_python_path(kind, name)
        simple = name.rpartition(".")[2].replace("$", "")
        entries = self._entries_of_kind(kind)
        for candidate in (simple, simple + kind.suffix):
            found, errors = _select(kind, name, [entry for entry in entries if entry.name == candidate])
            if found is None and errors:
                raise errors[0]
            if found is not None:
                return found
        if "." in name:  # a plug-in's Java name may end with another name than that of its entry point
            found, _ = _select(kind, name, [entry for entry in entries if not entry.is_bundled()])
            if found is not None:
                return found
        raise PluginNotFoundError(self._not_found_message(kind, name))

    def _by_python_path(self, kind: Kind, path: str) -> type[Any]:
        self._entries_of_kind(kind)  # adds the directories of plugin.path to sys.path
        module_name, _, class_name = path.partition(":")
        try:
            found: Any = importlib.import_module(module_name)
            for part in class_name.split("."):
                found = getattr(found, part)
        except (Exception, SystemExit) as error:
            raise PluginNotFoundError(
                f"Class {path} cannot be imported: {_import_error(error, module_name)}"
            ) from error
        if kind is Kind.CONNECTOR:
            found = _connector_or_plugin(found)
        if not (isinstance(found, type) and issubclass(found, kind.base)):
            raise PluginNotFoundError(f"Class {path} is not a subclass of {kind.base.__name__}")
        return found

    def _not_found_message(self, kind: Kind, name: str) -> str:
        names = sorted({entry.name for entry in self._entries_of_kind(kind)})
        simple = name.rpartition(".")[2].replace("$", "")
        guess = _nearest_stem(simple, names, kind.suffix) or _nearest_stem(simple + kind.suffix, names, kind.suffix)
        guesses = [half for half in (simple + "Key", simple + "Value") if half in names] or ([guess] if guess else [])
        hint = f" Did you mean {' or '.join(_config_names(guesses, names))}?" if guesses else ""
        problems = "".join(f" ({problem})" for problem in self.problems)
        return (
            f"Failed to find any class that implements {kind.base.__name__} and which name matches {name}.{hint} "
            f"Available {kind.label}s: {', '.join(_config_names(names, names))}{problems}"
        )

    # ---- plugin.path

    def _scan(self, directory: Path) -> None:
        if not directory.is_dir():
            self._report_problem(f"plugin.path: {directory} is not a directory", _plugin_path_level)
            return
        if str(directory) not in sys.path:
            sys.path.append(str(directory))
        for distribution in distributions(path=[str(directory)]):
            for point in distribution.entry_points:
                for kind in Kind:
                    if point.group == kind.group:
                        self._entries[kind].append(_from_entry_point(point))
        self._import_modules(directory)

    def _entry_count(self) -> int:
        return sum(map(len, self._entries.values()))

    def _report_java_plugins(self, directory: Path) -> None:
        """Report that a directory contains only Java plug-ins, if it or its sub-directories contain .jar files.

        The caller has found no Python plug-ins in the directory.
        """
        jar = next(chain(directory.glob("*.jar"), directory.glob("*/*.jar")), None)
        if jar is not None:
            self._report_problem(
                f"plugin.path: {directory} contains no Python plug-ins, only Java plug-ins such as {jar.name}, which "
                "cannot be used; install plug-ins for headrace, or remove the directory from plugin.path",
                _plugin_path_level,
            )

    def _import_modules(self, directory: Path) -> None:
        for module_name in _standalone_modules(directory):
            try:
                module = importlib.import_module(module_name)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - one broken file must not hide the others
                reason = missing_modules.explain(error) or f"{type(error).__name__}: {error}"
                text = f"plugin.path: {directory / module_name}: {reason}"
                self._report_problem(text, _plugin_path_level)
                continue
            self._add_classes(module)

    def _add_classes(self, module: Any) -> None:
        classes = [cls for cls in vars(module).values() if _is_plugin_of(cls, module)]
        with_connector = {
            cls.task_class for cls in classes if issubclass(cls, Connector) and hasattr(cls, "task_class")
        }
        for cls in classes:
            if issubclass(cls, Task) and cls not in with_connector:
                cls = connector_for(cls)
            for kind in Kind:
                if issubclass(cls, kind.base):
                    self._entries[kind].append(
                        _Entry(cls.__name__, f"{cls.__module__}:{cls.__qualname__}", lambda cls=cls: cls)  # type: ignore[misc]
                    )

    def _report_problem(self, text: str, level: int = logging.WARNING) -> None:
        if text not in self.problems:
            self.problems.append(text)
            logger.log(level, "%s", text)


def _is_plugin_of(cls: Any, module: Any) -> bool:
    """Whether an attribute of a module is a plug-in class that the module or its package defines."""
    return (
        isinstance(cls, type)
        and issubclass(cls, Plugin)
        and not cls.__dict__.get("abstract", False)
        and cls.__module__.partition(".")[0] == module.__name__.partition(".")[0]
    )


def _nearest_stem(name: str, known: list[str], suffix: str) -> str | None:
    """Return the most similar known name. A suffix that all names share does not count as similarity."""
    guess = nearest(name, known)
    if guess is None or not guess.endswith(suffix):
        return guess
    return guess if nearest(name[: -len(suffix)], [guess.removesuffix(suffix)]) else None


def _config_names(names: Iterable[str], known: Sequence[str]) -> Iterator[str]:
    """Convert class names to configuration names, for example ``HoistFieldValue`` to ``HoistField$Value``.

    A name is converted only if the classes for keys and for values (``HoistFieldKey``, ``HoistFieldValue``) are known.
    """
    for name in names:
        half = next((half for half in ("Key", "Value") if name.endswith(half)), "")
        stem = name.removesuffix(half)
        yield f"{stem}${half}" if half and {stem + "Key", stem + "Value"} <= set(known) else name


@cache
def _installed_entry_points(group: str) -> Sequence[EntryPoint]:
    return tuple(entry_points(group=group))


def find_installed() -> None:
    """Read the entry points of all installed plug-ins, without importing the plug-ins.

    Later look-ups of this process and its child processes use the cached entry points.
    """
    for kind in Kind:
        _installed_entry_points(kind.group)


def _from_entry_point(point: EntryPoint) -> _Entry:
    def distribution() -> str:
        return "headrace" if point.dist is None else point.dist.name

    return _Entry(point.name, point.value, lambda: _connector_or_plugin(point.load()), distribution)


def _select(kind: Kind, name: str, entries: Iterable[_Entry]) -> tuple[type[Any] | None, list[PluginNotFoundError]]:
    """Return the class that `name` selects from `entries`, if any, and the errors of those that cannot be imported.

    Raises PluginNotFoundError if the name is ambiguous.
    """
    paths: dict[type[Any], str] = {}
    errors: list[PluginNotFoundError] = []
    for entry in entries:
        try:
            paths.setdefault(_load(kind, entry), entry.path)
        except PluginNotFoundError as error:
            errors.append(error)
    if "." in name:
        paths = {cls: path for cls, path in paths.items() if name in (*cls.java_names, _dotted_path(cls))}
    if len(paths) > 1:
        raise PluginNotFoundError(_ambiguity(kind, name, paths.values()))
    return next(iter(paths), None), errors


def _load(kind: Kind, entry: _Entry) -> type[Any]:
    """Import a plug-in. Raises PluginNotFoundError."""
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:
        missing = missing_modules.explain(error, entry.distribution())
        text = f"{_subject(entry)} cannot be imported: {missing or f'{type(error).__name__}: {error}'}"
        raise PluginNotFoundError(text) from error
    if not (isinstance(found, type) and issubclass(found, kind.base)):
        raise PluginNotFoundError(f"{_subject(entry)} is not a subclass of {kind.base.__name__}")
    return found


def _subject(entry: _Entry) -> str:
    distribution = entry.distribution()
    return f"Plug-in {entry.path}{f' (distribution {distribution})' if distribution not in ('', 'headrace') else ''}"


def _dotted_path(cls: type[Any]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _ambiguity(kind: Kind, name: str, paths: Iterable[str]) -> str:
    return f"The {kind.label} name {name} is ambiguous: use one of {', '.join(sorted(paths))}"


def _import_error(error: BaseException, module_name: str) -> str:
    """Return the reason why a Python path cannot be imported. If a package is missing, the reason names it."""
    is_wrong_path = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
    owner = missing_modules.distribution_of(module_name)
    explanation = None if is_wrong_path else missing_modules.explain(error, owner)
    return explanation or f"{type(error).__name__}: {error}"


def _connector_or_plugin(cls: Any) -> Any:
    """Return the connector class of a task class; return any other class unchanged."""
    return connector_for(cls) if isinstance(cls, type) and issubclass(cls, Task) else cls


def _standalone_modules(directory: Path) -> Iterator[str]:
    """Yield the name of each module or package in a directory if its source mentions headrace."""
    for path in sorted(directory.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        name = path.name if path.is_dir() else path.stem
        if source.suffix == ".py" and name.isidentifier() and source.is_file() and b"headrace" in source.read_bytes():
            yield name


def plugin_directories(plugin_path: Iterable[str]) -> Iterator[str]:
    """Yield the directories of plugin.path, each followed by its sub-directories that contain plug-ins."""
    for directory in plugin_path:
        yield directory
        if Path(directory).is_dir():
            yield from (str(child) for child in sorted(Path(directory).iterdir()) if _is_plugin_directory(child))


def _is_plugin_directory(path: Path) -> bool:
    """Whether `path`, a child of a directory in plugin.path, is a directory with plug-ins.

    As in Kafka Connect, a plug-in may have a directory of its own. Such a directory is not a package itself, and
    contains a distribution, or a module or package that mentions headrace.
    """
    if not path.is_dir() or (path / "__init__.py").exists():
        return False
    if path.name.startswith((".", "__")) or path.suffix in (".dist-info", ".egg-info"):
        return False
    return any(path.glob("*.dist-info")) or next(_standalone_modules(path), None) is not None


def _rest_type(kind: Kind, cls: type[Any]) -> str:
    if kind is Kind.CONNECTOR:
        return "source" if issubclass(cls, SourceConnector) else "sink"
    return "transformation" if kind is Kind.TRANSFORM else kind.label


_default = Registry()
_plugin_path_level = logging.WARNING


def log_plugin_path_problems_at_debug() -> None:
    """Log problems of ``plugin.path`` at DEBUG, because another process of the same worker logs them as warnings."""
    global _plugin_path_level
    _plugin_path_level = logging.DEBUG


def use_plugin_path(directories: str | Iterable[str] | None) -> None:
    """Set ``plugin.path`` (a comma-separated string or directories) for this process; call before the first `find`."""
    global _default
    if isinstance(directories, str):
        directories = directories.split(",")
    path = tuple(text.strip() for text in directories or () if text.strip())
    if path != _default.plugin_path:
        _default = Registry(path)


def default() -> Registry:
    """Return the registry of this process."""
    return _default


def find(kind: str, name: str) -> type[Any]:
    """Return the plug-in class with that name from this process's registry. `kind` is the label of a `Kind`.

    Raises PluginNotFoundError.
    """
    return _default.find(Kind.from_label(kind), name)
