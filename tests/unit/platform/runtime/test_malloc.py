"""Tests that a process reuses freed memory for new buffers if `malloc` does not return this memory to the kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.runtime import malloc

_COUNT_FAULTS = """
import resource
import sys
from headrace.runtime import malloc

malloc.keep_freed_memory()
sizes = [int(size) for size in sys.argv[1:]]
buffers = [bytearray(size) for size in sizes]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    buffers.clear()
    buffers += [bytearray(size) for size in sizes]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(malloc.mallopt() is None, reason="the C library has no mallopt")
@pytest.mark.parametrize("sizes", [["1000000", "1000000", "1000000"], ["4000000"]])
def test_process_that_keeps_freed_memory_reuses_it_for_new_buffers(sizes: list[str]) -> None:
    command = [sys.executable, "-c", _COUNT_FAULTS, *sizes]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(shown) < 500  # with new pages for each buffer, there would be about 50,000 page faults
