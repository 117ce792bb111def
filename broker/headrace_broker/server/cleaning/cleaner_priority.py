"""The CPU priority of the cleaner process.

The default is the idle scheduling class. Measured with paced produce requests on two busy CPUs, niceness 10 or 19
raised the p99 latency by about twice as much as the idle class did, and cleaned no faster. But on CPUs that are never
idle, a process of the idle class would starve, so an overdue log (max.compaction.lag.ms) is cleaned at niceness 10.
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
