"""From a name in somebody's file to a plug-in class.

Plug-ins come from entry points (groups ``headrace.connectors``, ``headrace.transforms``, …, see `Kind`) and from the
directories of ``plugin.path``. An entry point's name is the class's simple name; the module behind it is imported when
the plug-in is asked for and not before, so that a worker does not load every driver there is.

A name may be
- a full Java class name (``io.confluent.connect.jdbc.JdbcSourceConnector``), checked against the class's `java_names`;
- a simple name, with or without the kind's suffix (``JdbcSourceConnector``, ``JdbcSource``, ``HoistField$Value``);
- a Python path (``package.module:Class``), known to an entry point or not.

A simple name that two classes have means neither.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Any

from headrace.api.config_def import nearest
from headrace.api.connector import Connector, SourceConnector
from headrace.api.converter import Converter, HeaderConverter
from headrace.api.errors import ConnectError
from headrace.api.plugin import Plugin
from headrace.api.predicate import Predicate
from headrace.api.transform import Transformation
from headrace.plugins.config_providers import ConfigProvider

logger = logging.getLogger(__name__)


class Kind(Enum):
    """A kind of plug-in: its entry-point group, base class, and the suffix that a name may lack."""

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
    def of(cls, label: str) -> Kind:
        """The kind of that name, e.g. ``header_converter``."""
        return next(kind for kind in cls if kind.label == label)


class PluginNotFoundError(ConnectError):
    """No plug-in has that name, or two have; the text names the nearest ones."""


@dataclass(slots=True)
class _Entry:
    """A plug-in that is known by name; `load` imports it."""

    name: str
    path: str
    load: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What ``GET /connector-plugins`` shows of a plug-in."""

    class_name: str
    type: str
    version: str


@dataclass(slots=True)
class Registry:
    """Every plug-in that the environment and some directories offer."""

    plugin_path: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)
    _entries: dict[Kind, list[_Entry]] = field(default_factory=dict)
    _found: dict[tuple[Kind, str], type[Any]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def find(self, kind: Kind, name: str) -> type[Any]:
        """The class of that name. Raises PluginNotFoundError."""
        with self._lock:
            found = self._found.get((kind, name))
            if found is None:
                found = self._found[kind, name] = self._find(kind, name.strip())
            return found

    def all(self, kind: Kind) -> list[type[Any]]:
        """Every plug-in of a kind that can be imported, by name."""
        with self._lock:
            classes = []
            for entry in sorted(self._of(kind), key=lambda entry: entry.name):
                try:
                    classes.append(entry.load())
                except Exception as error:  # noqa: BLE001 - one broken plug-in must not hide the others
                    self._problem(f"Plug-in {entry.path} cannot be imported: {type(error).__name__}: {error}")
            return list(dict.fromkeys(classes))

    def describe(self, kinds: Iterable[Kind]) -> list[PluginInfo]:
        """What to show of every plug-in of these kinds."""
        return [
            PluginInfo(cls.display_class(), _type(kind, cls), cls.version) for kind in kinds for cls in self.all(kind)
        ]

    def _of(self, kind: Kind) -> list[_Entry]:
        if not self._entries:
            self._entries = {each: [_from_entry_point(point) for point in _installed(each.group)] for each in Kind}
            for directory in self.plugin_path:
                self._scan(Path(directory))
        return self._entries[kind]

    def _find(self, kind: Kind, name: str) -> type[Any]:
        if ":" in name:
            return self._by_python_path(kind, name)
        simple = name.rpartition(".")[2].replace("$", "")
        for candidate in (simple, simple + kind.suffix):
            entries = {entry.path: entry for entry in self._of(kind) if entry.name == candidate}
            classes = [self._loaded(entry) for entry in entries.values()]
            if "." in name:
                classes = [cls for cls in classes if name in (*cls.java_names, f"{cls.__module__}.{cls.__qualname__}")]
            if len(classes) == 1:
                return classes[0]
            if len(classes) > 1:
                raise PluginNotFoundError(
                    f"The {kind.label} name {name} is ambiguous: use one of {', '.join(sorted(entries))}"
                )
        raise PluginNotFoundError(self._not_found(kind, name))

    def _loaded(self, entry: _Entry) -> type[Any]:
        try:
            return entry.load()  # type: ignore[no-any-return]
        except Exception as error:
            raise PluginNotFoundError(
                f"Plug-in {entry.path} cannot be imported: {type(error).__name__}: {error}"
            ) from error

    def _by_python_path(self, kind: Kind, path: str) -> type[Any]:
        self._of(kind)  # puts the directories of plugin.path where imports look
        module_name, _, class_name = path.partition(":")
        try:
            found: Any = importlib.import_module(module_name)
            for part in class_name.split("."):
                found = getattr(found, part)
        except Exception as error:
            raise PluginNotFoundError(f"Class {path} cannot be imported: {type(error).__name__}: {error}") from error
        if not (isinstance(found, type) and issubclass(found, kind.base)):
            raise PluginNotFoundError(f"Class {path} is no {kind.base.__name__}")
        return found

    def _not_found(self, kind: Kind, name: str) -> str:
        names = sorted({entry.name for entry in self._of(kind)})
        simple = name.rpartition(".")[2].replace("$", "")
        guess = _nearest_stem(simple, names, kind.suffix) or _nearest_stem(simple + kind.suffix, names, kind.suffix)
        guesses = [half for half in (simple + "Key", simple + "Value") if half in names] or ([guess] if guess else [])
        hint = f" Did you mean {' or '.join(_as_written(guesses, names))}?" if guesses else ""
        problems = "".join(f" ({problem})" for problem in self.problems)
        return (
            f"Failed to find any class that implements {kind.base.__name__} and which name matches {name}.{hint} "
            f"Available {kind.label}s: {', '.join(_as_written(names, names))}{problems}"
        )

    # ---- plugin.path

    def _scan(self, directory: Path) -> None:
        if not directory.is_dir():
            self._problem(f"plugin.path: {directory} is not a directory", _plugin_path_level)
            return
        if str(directory) not in sys.path:
            sys.path.append(str(directory))
        for distribution in distributions(path=[str(directory)]):
            for point in distribution.entry_points:
                for kind in Kind:
                    if point.group == kind.group:
                        self._entries[kind].append(_from_entry_point(point))
        for module_name in _loose_modules(directory):
            try:
                module = importlib.import_module(module_name)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - one broken file must not hide the others
                text = f"plugin.path: {directory / module_name}: {type(error).__name__}: {error}"
                self._problem(text, _plugin_path_level)
                continue
            self._add_classes(module)

    def _add_classes(self, module: Any) -> None:
        for cls in list(vars(module).values()):
            if not isinstance(cls, type) or not issubclass(cls, Plugin) or cls.__dict__.get("abstract", False):
                continue
            if cls.__module__.partition(".")[0] != module.__name__.partition(".")[0]:
                continue
            for kind in Kind:
                if issubclass(cls, kind.base):
                    self._entries[kind].append(
                        _Entry(cls.__name__, f"{cls.__module__}:{cls.__qualname__}", lambda cls=cls: cls)  # type: ignore[misc]
                    )

    def _problem(self, text: str, level: int = logging.WARNING) -> None:
        if text not in self.problems:
            self.problems.append(text)
            logger.log(level, "%s", text)


def _nearest_stem(name: str, known: list[str], suffix: str) -> str | None:
    """The nearest known name; the suffix that all share is no likeness."""
    guess = nearest(name, known)
    if guess is None or not guess.endswith(suffix):
        return guess
    return guess if nearest(name[: -len(suffix)], [guess.removesuffix(suffix)]) else None


def _as_written(names: Iterable[str], known: Sequence[str]) -> Iterator[str]:
    """The names as files have them: ``HoistField$Value``, where ``HoistFieldKey`` and ``HoistFieldValue`` are known."""
    for name in names:
        half = next((half for half in ("Key", "Value") if name.endswith(half)), "")
        stem = name.removesuffix(half)
        yield f"{stem}${half}" if half and {stem + "Key", stem + "Value"} <= set(known) else name


def _installed(group: str) -> Sequence[EntryPoint]:
    return tuple(entry_points(group=group))


def _from_entry_point(point: EntryPoint) -> _Entry:
    return _Entry(point.name, point.value, point.load)


def _loose_modules(directory: Path) -> Iterator[str]:
    """The modules and packages right in a directory that speak of headrace: others are libraries, left alone."""
    for path in sorted(directory.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        name = path.name if path.is_dir() else path.stem
        if source.suffix == ".py" and name.isidentifier() and source.is_file() and b"headrace" in source.read_bytes():
            yield name


def _type(kind: Kind, cls: type[Any]) -> str:
    if kind is Kind.CONNECTOR:
        return "source" if issubclass(cls, SourceConnector) else "sink"
    return "transformation" if kind is Kind.TRANSFORM else kind.label


_default = Registry()
_plugin_path_level = logging.WARNING


def leave_plugin_path_to_others() -> None:
    """Log what is wrong in ``plugin.path`` for debugging only: another process of the same worker warns of it."""
    global _plugin_path_level
    _plugin_path_level = logging.DEBUG


def use_plugin_path(directories: str | Iterable[str] | None) -> None:
    """Set ``plugin.path`` (comma-separated text or directories) for this process; before the first `find`."""
    global _default
    if isinstance(directories, str):
        directories = directories.split(",")
    path = tuple(text.strip() for text in directories or () if text.strip())
    if path != _default.plugin_path:
        _default = Registry(path)


def default() -> Registry:
    """This process's registry."""
    return _default


def find(kind: str, name: str) -> type[Any]:
    """The class of that name in this process's registry; `kind` as in `Kind.of`. Raises PluginNotFoundError."""
    return _default.find(Kind.of(kind), name)
