"""Blocks SIGINT and SIGTERM in child processes until they are ready to handle these signals.

Ctrl-C, for example, signals the worker's whole process group, but only the worker decides when its children stop. A
child ignores these signals once its imports are complete. Until then, the signals are blocked.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def withheld() -> Iterator[None]:
    """Block SIGINT and SIGTERM in processes that the `with` body starts.

    Afterwards, restore this process's signal mask.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
