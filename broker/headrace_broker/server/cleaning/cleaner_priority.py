"""The CPU priority of the cleaner process.

The cleaner process normally runs in the idle scheduling class. A measurement with produce requests at a fixed rate on
two busy CPUs compared this class with niceness 10 and 19. Both niceness values raised the p99 latency about twice as
much, and the cleaning was not faster. On CPUs that are never idle, a process of the idle class gets no CPU time. For
this reason a log that is overdue (max.compaction.lag.ms) is cleaned at niceness 10.
"""

from __future__ import annotations

import os
import sys

OVERDUE_ARGUMENT = "overdue"
_NICENESS = 10


def lower_priority(argument: str) -> None:
    """Use the idle scheduling class, or niceness 10 for `OVERDUE_ARGUMENT` or on a system without an idle class."""
    if sys.platform == "linux" and argument != OVERDUE_ARGUMENT:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_NICENESS)
