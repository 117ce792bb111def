"""The CPU priority of the cleaner process.

The cleaner process normally runs in the idle scheduling class. In a measurement with produce requests at a fixed rate
on two busy CPUs, cleaning at niceness 10 or 19 raised the p99 latency about twice as much as cleaning in the idle
class, and was not faster. On CPUs that are never idle, a process of the idle class receives no CPU time. For this
reason, a log that is overdue (max.compaction.lag.ms) is cleaned at niceness 10.
"""

from __future__ import annotations

import os
import sys

OVERDUE_ARGUMENT = "overdue"
_NICENESS = 10


def lower_priority(argument: str) -> None:
    """Move this process to the idle scheduling class.

    Use niceness 10 instead if `argument` is `OVERDUE_ARGUMENT`, or if the system has no idle class.
    """
    if sys.platform == "linux" and argument != OVERDUE_ARGUMENT:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_NICENESS)
