"""Packs the source files of plug-ins that are not installed, so that other machines can import the plug-ins.

The archive contains the modules and packages of the plug-ins, and all modules that were imported from the same
directories, for example helper modules. It also contains the files that the configuration of a plug-in names.
A process in which a module cannot be imported unpacks the archive into a temporary directory, which all processes of
the user on this machine share, and adds the directory to sys.path.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import logging
import os
import shutil
import site
import stat
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

log = logging.getLogger(__name__)

_INSTALLED_EVERYWHERE = frozenset(
    {"__main__", "headrace", "headrace_broker", "headrace_connectors", "headrace_transforms", *sys.stdlib_module_names}
)
_LARGE_BYTES = 16 << 20
_FILES_FOLDER = "__headrace_files__"
_TIME = (1980, 1, 1, 0, 0, 0)
_unpacked: dict[str, Path] = {}
"""The directories into which this process has unpacked archives, by digest."""


@dataclass(frozen=True, slots=True)
class PluginFiles:
    """An archive with the files of plug-ins. Picklable. `modules` are the names of the modules without a dot."""

    modules: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    """The names in the archive of the files that configurations name, by their paths."""
    digest: str = ""
    archive: bytes = field(default=b"", repr=False)

    @classmethod
    def collect(cls, classes: Iterable[type[Any]], paths: Iterable[str]) -> Self:
        """Return the files of these classes' modules that are not installed, and the files at these paths."""
        roots: dict[str, set[str]] = {}
        for each in classes:
            name = each.__module__.partition(".")[0]
            root = _root_of(name)
            if root is not None:
                roots.setdefault(root, set()).add(name)
        imported = {name.partition(".")[0] for name in list(sys.modules)}
        modules = sorted(
            {*(name for name in imported if _root_of(name) in roots), *(n for r in roots.values() for n in r)}
        )
        named = {path: f"{_FILES_FOLDER}/{index}/{Path(path).name}" for index, path in enumerate(sorted(set(paths)))}
        files = {name: path for module in modules for name, path in _files_of(module)}
        files |= {name: Path(path) for path, name in named.items()}
        if not files:
            return cls()
        archive = _zip(files)
        if len(archive) > _LARGE_BYTES:
            log.warning(
                "Plug-ins: modules %s are not installed. Their files, %d MB, are sent to each process that uses "
                "them; install the plug-ins on all machines instead",
                ", ".join(modules),
                len(archive) >> 20,
            )
        return cls(tuple(modules), named, hashlib.sha256(archive).hexdigest(), archive)

    def activate(self) -> None:
        """Make the modules importable in this process."""
        if all(_is_importable(name, self.digest) for name in self.modules):
            return
        directory = str(self._directory())
        others = {str(path) for digest, path in _unpacked.items() if digest != self.digest}
        _forget_modules(self.modules, others)
        sys.path[:] = [path for path in sys.path if path not in others]
        if directory not in sys.path:
            sys.path.append(directory)
        importlib.invalidate_caches()

    def path_of(self, path: str) -> str:
        """Return a path of this machine at which the file is that was packed from `path`."""
        name = self.paths[path]
        with zipfile.ZipFile(io.BytesIO(self.archive)) as archive:
            content = archive.read(name)
        original = Path(path)
        if original.is_file() and original.read_bytes() == content:
            return path
        return str(self._directory() / name)

    def _directory(self) -> Path:
        """Return the directory with the unpacked archive. Unpack the archive if necessary."""
        known = _unpacked.get(self.digest)
        if known is None or not self._is_complete(known):
            known = _unpacked[self.digest] = self._unpack()
        return known

    def _unpack(self) -> Path:
        shared = Path(tempfile.gettempdir()) / f"headrace-plugins-{_user()}-{self.digest[:32]}"
        if _is_private(shared) and self._is_complete(shared):
            return shared
        own = Path(tempfile.mkdtemp(prefix=f"{shared.name}-"))
        with zipfile.ZipFile(io.BytesIO(self.archive)) as archive:
            archive.extractall(own)
        try:
            own.rename(shared)
        except OSError:  # another process was faster, or the directory belongs to another user or is damaged
            if not (_is_private(shared) and self._is_complete(shared)):
                return own
            shutil.rmtree(own, ignore_errors=True)
        log.debug("Plug-ins: unpacked modules %s into %s", ", ".join(self.modules), shared)
        return shared

    def _is_complete(self, directory: Path) -> bool:
        """Whether the directory has all files of the archive. Systems remove old files from temporary directories."""
        with zipfile.ZipFile(io.BytesIO(self.archive)) as archive:
            return all(_size(directory / info.filename) == info.file_size for info in archive.infolist())


def _root_of(name: str) -> str | None:
    """Return the directory that contains a module or package without a dot in its name, or None if it is installed."""
    if name in _INSTALLED_EVERYWHERE:
        return None
    files = _sources_of(name)
    if not files:
        return None
    root = files[0].parent
    is_installed = root.name in ("site-packages", "dist-packages") or str(root) in _installation_directories()
    return None if is_installed else str(root)


def _sources_of(name: str) -> list[Path]:
    """Return the directories of a package, or the file of a module. Empty if it is not in the file system."""
    module = sys.modules.get(name)
    found = list(getattr(module, "__path__", ())) or [getattr(module, "__file__", None)]
    return [Path(each).absolute() for each in found if isinstance(each, str) and Path(each).exists()]


def _installation_directories() -> set[str]:
    paths = sysconfig.get_paths()
    found = {paths[key] for key in ("purelib", "platlib", "stdlib", "platstdlib")}
    return {str(Path(path).absolute()) for path in (*found, *site.getsitepackages(), site.getusersitepackages())}


def _files_of(module: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a module or package with their names in the archive."""
    for source in _sources_of(module):
        if source.is_file():
            yield source.name, source
            continue
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(Path(source.name, path.relative_to(source))), path


def _zip(files: Mapping[str, Path]) -> bytes:
    """Return a zip archive. Equal files result in equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, path in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _TIME), path.read_bytes(), zipfile.ZIP_DEFLATED, 1)
    return buffer.getvalue()


def _is_importable(name: str, digest: str) -> bool:
    """Whether a module can be imported. A module of another archive does not count: it may be an older version."""
    others = {str(path) for other, path in _unpacked.items() if other != digest}
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    if found is None:
        return False
    places = [*(found.submodule_search_locations or ()), found.origin or ""]
    return not any(str(Path(place).parent) in others for place in places)


def _forget_modules(modules: Iterable[str], directories: set[str]) -> None:
    """Remove modules that were imported from these directories, so that they are imported again."""
    names = set(modules)
    for name in [each for each in sys.modules if each.partition(".")[0] in names]:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(file, str) and any(file.startswith(directory + os.sep) for directory in directories):
            del sys.modules[name]


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _is_private(directory: Path) -> bool:
    """Whether only this user can write into the directory: another user could have created it with other content."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return stat.S_ISDIR(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
