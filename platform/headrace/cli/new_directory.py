"""The command `headrace init [DIRECTORY]`: writes files of a broker, of workers and of connectors that run unchanged.

The files are those of `headrace/cli/starter`. Files with the same name in `configs` of the repository are links to
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

RUN = "connect-standalone connect-standalone.properties orders-source.properties orders-sink.properties"
"""The command that runs the example."""


class DirectoryError(Exception):
    """The files cannot be written. The message says why and what to do."""


def write_files(directory: Path) -> list[str]:
    """Write the files to an empty directory, and return their paths relative to it. Raises DirectoryError.

    If the directory does not exist, it is created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise DirectoryError(
                f"the directory {directory.resolve()} is not empty: choose another directory, for example "
                "headrace init orders"
            )
        paths = []
        for path, text in _starter_files(files("headrace.cli") / "starter"):
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text, encoding="utf-8")
            paths.append(path)
    except FileExistsError:
        raise DirectoryError(f"{directory} is a file: choose another directory") from None
    except OSError as error:
        raise DirectoryError(f"{error.filename or directory} cannot be written: {error.strerror}") from None
    return paths


def _starter_files(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the relative path and the text of each file, in the order of the paths."""
    for entry in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _starter_files(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_text(encoding="utf-8")
