"""Spark's daemon of Python workers, which ends with the task even while it still starts.

Spark runs it as `python -m <this module> <worker module>`. pyspark's own daemon looks for the end of its JVM only after
its imports, seconds on a busy machine.
"""

from __future__ import annotations

import os

from headrace_connectors.lakehouse.lifeline import die_with

TASK_PID = "HEADRACE_TASK_PID"
"""The environment variable by which the task's process id comes here, through the JVM."""

if __name__ == "__main__":
    die_with(int(os.environ[TASK_PID]))
    from pyspark import daemon

    daemon.manager()
