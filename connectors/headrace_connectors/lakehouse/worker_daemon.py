"""The daemon that forks Spark's Python workers. It exits as soon as the task's process exits.

Spark runs this module as `python -m <this module> <worker module>`. pyspark's own daemon detects the
exit of the JVM only after it has finished its imports, which take seconds on a busy machine.
"""

from __future__ import annotations

import os

from headrace_connectors.lakehouse.process_watch import exit_with_process

TASK_PID = "HEADRACE_TASK_PID"
"""The environment variable with the id of the task's process. The JVM passes it on to this daemon."""

if __name__ == "__main__":
    exit_with_process(int(os.environ[TASK_PID]))
    from pyspark import daemon

    daemon.manager()
