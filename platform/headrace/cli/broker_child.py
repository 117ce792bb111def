"""The embedded broker's process: a broker that lives and dies with its worker.

    python -m headrace.cli.broker_child WORKER_PID [arguments of headrace_broker.server]

SIGINT and SIGTERM, which reach the worker's whole group, are left to the worker; the kernel kills this process when the
worker dies. (Set here, after exec, which may clear the parent-death signal.)
"""

from __future__ import annotations

import signal
import sys

from headrace.runtime import process_tree


def main() -> int:
    """Run the broker; its exit status."""
    process_tree.signal_at_death_of(int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    from headrace_broker.server.main import main as broker

    return broker(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
