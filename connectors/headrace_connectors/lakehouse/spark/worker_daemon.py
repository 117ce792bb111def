"""The daemon that forks Spark's Python workers. When the process of the Connect task exits, the daemon exits, too.

Spark runs this module as `python -m <this module> <worker module>`. The unmodified daemon of pyspark would detect only
the exit of Spark's JVM, and only after the daemon has finished its imports. On a busy machine, these imports take
seconds.
"""

from __future__ import annotations

import os

from headrace_connectors.lakehouse.spark.process_watch import exit_with_process

TASK_PID = "HEADRACE_TASK_PID"
"""The environment variable with the id of the task's process. The JVM passes it on to this daemon."""

if __name__ == "__main__":
    exit_with_process(int(os.environ[TASK_PID]))
    from pyspark import daemon

    daemon.manager()
