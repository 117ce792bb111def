"""Tests that a process that keeps freed memory reuses the memory of its buffers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.runtime import malloc

_COUNT_FAULTS = """
import resource
from headrace.runtime import malloc

malloc.keep_freed_memory()
buffers = [bytearray(1_000_000) for _ in range(3)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    buffers.clear()
    buffers += [bytearray(1_000_000) for _ in range(3)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(malloc.mallopt() is None, reason="the C library has no mallopt")
def test_process_that_keeps_freed_memory_reuses_it_for_new_buffers() -> None:
    shown = subprocess.run([sys.executable, "-c", _COUNT_FAULTS], capture_output=True, text=True, check=True).stdout
    assert int(shown) < 3_000  # with new pages for each buffer, there are about 46,000 page faults
