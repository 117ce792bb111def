"""The main program of the embedded broker, which runs in a child process of a standalone worker.

    python -m headrace.cli.broker_child WORKER_PID [arguments of headrace_broker.server]

This process blocks SIGINT and SIGTERM, because they are sent to the worker's whole process group and only the worker
handles them. The kernel kills this process when the worker dies. This process itself requests the parent-death signal,
because exec may clear a request that was made before exec.
"""

from __future__ import annotations

import signal
import sys

from headrace.runtime import process_tree


def main() -> int:
    """Run the broker; return its exit status."""
    process_tree.signal_at_death_of(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    from headrace_broker.server.main import main as broker

    return broker(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
