"""How much of the processors the cleaner's process takes.

Measured beside paced produce requests on two busy processors: niceness 10 or 19 doubles their p99, the idle class
leaves it as it is (1.06x) and cleans as much. Where processors are never idle the idle class would starve, so a log
that must not wait any longer (max.compaction.lag.ms) is cleaned at niceness 10.
"""

from __future__ import annotations

import os
import sys

OVERDUE = "overdue"
_NICENESS = 10


def take_back_seat(word: str) -> None:
    """Run when nobody else wants to; with the word `OVERDUE`, or where there is no such class, after the others."""
    if sys.platform == "linux" and word != OVERDUE:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_NICENESS)
