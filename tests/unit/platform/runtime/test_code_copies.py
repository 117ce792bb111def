"""Tests of `code_copies`, which copies the code objects of all functions that were called.

The copies are next to each other in memory. The functions use the copies, and behave as before.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from headrace.runtime.code_copies import CodeCopies

_MEASURES_PAGES = """
import gc
from headrace.runtime.code_copies import CodeCopies

def pages(functions):
    return {id(function.__code__) // 4096 for function in functions}

functions = []
for number in range(2000):
    namespace = {}
    exec(f"def function(): return {number}", namespace)
    functions.append(namespace["function"])
called = functions[::20]
copies = CodeCopies()
gc.collect()
gc.freeze()
with copies.recording():
    for function in called:
        function()
before = len(pages(called))
copies.copy()
after = len(pages(called))
assert [function() for function in functions] == list(range(2000))
assert after < before / 4, (before, after)
"""


def _new_counter() -> Callable[..., Callable[[], list[int]]]:
    """Return a new function: an older one may be frozen (`gc.freeze`), and would not be found."""

    def counter(start: int, step: int = 2) -> Callable[[], list[int]]:
        total = start

        def count() -> list[int]:
            nonlocal total
            total += step
            return [total + extra for extra in (0, 1)]

        return count

    return counter


def _copy_code_of(call: Callable[[], Any]) -> None:
    copies = CodeCopies()
    with copies.recording():
        call()
    copies.copy()


def test_code_objects_of_called_functions_are_copied_to_fewer_memory_pages() -> None:
    subprocess.run([sys.executable, "-c", _MEASURES_PAGES], check=True, timeout=120)


def test_function_with_new_code_keeps_its_closure_and_its_defaults_and_its_nested_functions() -> None:
    counter = _new_counter()
    count = counter(10)
    old = (count.__code__, counter.__code__)
    _copy_code_of(lambda: (count(), counter(1)))
    assert count.__code__ is not old[0], "the closure has its old code"
    assert counter.__code__ is not old[1], "the function has its old code"
    assert count() == [14, 15]
    assert counter(20)() == [22, 23]


def test_functions_that_a_new_thread_calls_get_copies_of_their_code_objects() -> None:
    count = _new_counter()(0)
    old = count.__code__

    def call_in_thread() -> None:
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()

    _copy_code_of(call_in_thread)
    assert count.__code__ is not old
    assert count() == [4, 5]


def test_function_that_is_not_called_keeps_its_code() -> None:
    counter = _new_counter()
    old = counter.__code__
    _copy_code_of(lambda: None)
    assert counter.__code__ is old
