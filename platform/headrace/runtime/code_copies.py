"""Copies the code of functions that tasks call to adjacent memory, so that task processes share more memory.

A call changes memory of the function's code object: its reference count, and the counters of Python's specializing
interpreter (PEP 659). A process that was forked has to copy each page that it changes. After the imports, the code of
the functions that a task calls is spread over many pages, between code that no task calls. `CodeCopies` gives these
functions copies of their code that are adjacent, in the order in which the functions were called.

Functions, their defaults and their closures remain the same objects. A frame that is running keeps its old code.
"""

from __future__ import annotations

import gc
import sys
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

_COPIES = 3
"""The first copies fill the gaps between existing objects, so that the last copies are adjacent."""
_kept: list[Any] = []


class CodeCopies:
    """Records the functions that are called, and then copies their code."""

    def __init__(self) -> None:
        """Find all functions.

        The fork server creates this object before it forks. A later search would change the reference counts of all
        objects, so that no child could share their memory.
        """
        self._functions = _find_functions()
        self._code_ids = array("Q", (id(function.__code__) for function in self._functions))
        self._called: dict[int, CodeType] = {}  # by id, because code objects of different functions can be equal

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the functions that this thread and new threads call."""
        threading.setprofile(self._record)
        sys.setprofile(self._record)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _record(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            self._called.setdefault(id(frame.f_code), frame.f_code)

    def copy(self) -> None:
        """Give the functions that were recorded adjacent copies of their code, including that of nested functions.

        This object, the old code and all copies are kept until the process ends, so that no later object fills gaps.
        """
        functions = self._called_functions()
        used = {id(function.__code__) for function in functions}
        originals = [code for key, code in self._called.items() if key in used]
        copies = [[_copy(code) for code in originals] for _ in range(_COPIES)]
        new_code = {id(original): copy for original, copy in zip(originals, copies[-1], strict=True)}
        for function in functions:
            function.__code__ = new_code[id(function.__code__)]
        _kept.append((self, copies))

    def _called_functions(self) -> list[FunctionType]:
        known = [self._functions[at] for at, code_id in enumerate(self._code_ids) if code_id in self._called]
        new = [function for function in _find_functions() if id(function.__code__) in self._called]
        return list({id(function): function for function in known + new}.values())


def _find_functions() -> list[FunctionType]:
    """Return all functions that are not hidden by `gc.freeze`."""
    return [found for found in gc.get_objects() if type(found) is FunctionType]


def _copy(code: CodeType) -> CodeType:
    return code.replace(co_consts=tuple(_copy(it) if isinstance(it, CodeType) else it for it in code.co_consts))
