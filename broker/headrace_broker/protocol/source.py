"""Builds the Python source code of encoders and decoders.

A `Source` stores each generated line with the message field that the line reads or writes. When a
line of the compiled function raises, `where` maps the line number to the field. Errors can therefore
name the field, and the processing of valid messages takes no extra time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any


class Source:
    """The lines of a generated function, the names that it uses, and the path of the current field.

    `run` is a list of the fixed-size values that the next generated call packs or unpacks. Each item is a
    tuple (format character of the module `struct`, code for the value, path of the field).
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
        """The dotted path of the current field."""
        return ".".join(self._path)

    def line(self, text: str, about: str | None = None) -> None:
        """Add one line of code at the current indentation depth.

        If the line raises, the error names `about`, or the current field if `about` is None.
        """
        self._lines.append("    " * self._depth + text)
        self._paths.append(self.path if about is None else about)

    def defer(self, letter: str, expression: str) -> None:
        """Add a fixed-size value to `run`. The next generated call packs or unpacks it.

        `letter` is the value's format character of the module `struct`. `expression` is the code for the value.
        """
        self.run.append((letter, expression, self.path))

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Add the line `header`, which opens a block. Lines added inside this context are indented."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def field(self, name: str) -> Iterator[None]:
        """Associate the lines added inside this context with the field `name`, so that errors name this field."""
        self._path.append(name)
        yield
        self._path.pop()

    def fresh(self, prefix: str) -> str:
        """Return an unused variable name."""
        self._counter += 1
        return f"{prefix}{self._counter}"

    def name(self, prefix: str, value: object) -> str:
        """Return a name that refers to `value` in the generated function."""
        for known, present in self.names.items():
            if present is value:
                return known
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def where(self, trace: TracebackType | None) -> str:
        """Return the dotted path of the field at which the compiled function raised an error with traceback `trace`."""
        if trace is None or not 0 < trace.tb_lineno <= len(self._paths):
            return ""
        return self._paths[trace.tb_lineno - 1]

    def compile(self, function: str) -> Callable[..., Any]:
        """Compile the lines and return the function that has the name `function`."""
        exec(compile("\n".join(self._lines), self._filename, "exec"), self.names)
        compiled: Callable[..., Any] = self.names[function]
        return compiled

    def __str__(self) -> str:
        return "\n".join(self._lines)
