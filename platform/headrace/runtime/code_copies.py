"""Copies the code of functions that tasks call to adjacent memory, so that task processes share more memory.

A call changes memory of the function's code object: its reference count, and the counters of Python's specializing
interpreter (PEP 659). A process that was forked has to copy each page that it changes. After the imports, the code of
the functions that a task calls is spread over many pages, between code that no task calls. `copy_adjacent` gives these
functions copies of their code that are adjacent, in the order in which the functions were called.

Functions, their defaults and their closures remain the same objects. A frame that is running keeps its old code.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

_COPIES = 3
"""The first copies fill the gaps between existing objects, so that the last copies are adjacent."""
_kept: list[list[CodeType]] = []


@contextmanager
def called_code(code: dict[int, CodeType]) -> Iterator[None]:
    """Add the code of all functions that this thread or a new thread calls to `code`, by `id`.

    Code objects are not the keys, because code objects of different functions can be equal.
    """

    def add(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            code.setdefault(id(frame.f_code), frame.f_code)

    threading.setprofile(add)
    sys.setprofile(add)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def copy_adjacent(code: dict[int, CodeType]) -> None:
    """Give the functions whose code is in `code` adjacent copies of it, including the code of nested functions.

    The originals and all copies are kept until the process ends, so that no later object fills the gaps.
    """
    functions = [found for found in _all_functions() if id(found.__code__) in code]
    used = {id(function.__code__) for function in functions}
    originals = [original for key, original in code.items() if key in used]
    copies = [[_copy(original) for original in originals] for _ in range(_COPIES)]
    new_code = {id(original): copy for original, copy in zip(originals, copies[-1], strict=True)}
    for function in functions:
        function.__code__ = new_code[id(function.__code__)]
    _kept.extend([originals, *copies])


def _all_functions() -> list[FunctionType]:
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()  # `gc.get_objects` does not return frozen objects
    functions = [found for found in gc.get_objects() if type(found) is FunctionType]
    if is_frozen:
        gc.freeze()
    return functions


def _copy(code: CodeType) -> CodeType:
    return code.replace(co_consts=tuple(_copy(it) if isinstance(it, CodeType) else it for it in code.co_consts))
