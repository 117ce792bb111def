"""Children that Ctrl-C does not touch before they are ready for it.

SIGINT and SIGTERM reach the worker's whole group, and the worker alone decides what follows. A child says so itself,
but only once it has imported what it needs; until then, the signals wait.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

GROUP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def withheld() -> Iterator[None]:
    """Processes started within have SIGINT and SIGTERM blocked; this one gets its own when it leaves."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
