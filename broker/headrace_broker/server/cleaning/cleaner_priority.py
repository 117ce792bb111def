"""How much of the processors the cleaner's process takes.

Beside paced produce requests on two busy processors, niceness 10 or 19 cost their p99 about twice what the idle class
does, and cleaned no more. Where processors are never idle the idle class would starve, so a log that must not wait any
longer (max.compaction.lag.ms) is cleaned at niceness 10.
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
