"""The command `connect-distributed worker.properties`.

The exit codes are the same as in Kafka Connect: 1 for wrong usage, 2 if the worker failed to start.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headrace.cli.exit_codes import INTERRUPTED
from headrace.cli.worker_options import UsageErrorParser, add_worker_options, start_in_background


def main(arguments: list[str] | None = None) -> int:
    """Run a distributed worker until it is stopped by a signal."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if options.daemon:
        return start_in_background("headrace.cli.connect_distributed", options, [options.worker])
    from headrace.cli import distributed_worker

    return distributed_worker.run(options.worker, dict(options.override))


def entry() -> None:
    """Run `main` as a console script, and exit with its exit code."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = UsageErrorParser(
        prog="connect-distributed", description="Run a distributed Connect worker.", allow_abbrev=False
    )
    add_worker_options(parser, default_name="connectDistributed")
    parser.add_argument("worker", type=Path, metavar="worker.properties")
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    entry()
