"""Python source under construction: indented lines, each of which knows which field of the message it is about.

The encoder's and the decoder's generators write into a `Source`. When a line of the compiled function raises, `where`
tells the field from the line's number, so that good errors cost nothing while all goes well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any


class Source:
    """Lines of a function, the names it uses, and the path of the field that is being written.

    `run` holds the fixed-size values (struct letter, expression, path) that wait to be packed or unpacked together.
    """

    def __init__(self, filename: str) -> None:
        self.names: dict[str, Any] = {}
        self.run: list[tuple[str, str, str]] = []
        self._filename = filename
        self._lines: list[str] = []
        self._paths: list[str] = []
        self._depth = 0
        self._path: list[str] = []
        self._counter = 0

    @property
    def path(self) -> str:
        """The dotted path of the field that is being written."""
        return ".".join(self._path)

    def line(self, text: str, about: str | None = None) -> None:
        """Add one line at the present depth, about the present field if nothing else is said."""
        self._lines.append("    " * self._depth + text)
        self._paths.append(self.path if about is None else about)

    def defer(self, letter: str, expression: str) -> None:
        """Put a fixed-size value into the run."""
        self.run.append((letter, expression, self.path))

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add a line that opens a block; what is added inside is indented."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def field(self, name: str) -> Iterator[None]:
        """Say that the lines added inside are about the field `name` of the present struct."""
        self._path.append(name)
        yield
        self._path.pop()

    def fresh(self, prefix: str) -> str:
        """Return a variable name that nothing else uses."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name(self, prefix: str, value: object) -> str:
        """Return a name under which the function finds `value`."""
        for known, present in self.names.items():
            if present is value:
                return known
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def where(self, trace: TracebackType | None) -> str:
        """Return the dotted path of the field at which the compiled function raised."""
        if trace is None or not 0 < trace.tb_lineno <= len(self._paths):
            return ""
        return self._paths[trace.tb_lineno - 1]

    def compile(self, function: str) -> Callable[..., Any]:
        """Return the function of that name out of the lines."""
        exec(compile("\n".join(self._lines), self._filename, "exec"), self.names)
        compiled: Callable[..., Any] = self.names[function]
        return compiled

    def __str__(self) -> str:
        return "\n".join(self._lines)
