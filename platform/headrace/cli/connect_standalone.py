"""The command `connect-standalone worker.properties [connector1.properties connector2.json …]`.

The exit codes are Kafka Connect's: 1 for wrong usage, 2 if the worker failed to start, 3 if a connector failed to
start.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headrace.cli.exit_codes import INTERRUPTED
from headrace.cli.worker_options import UsageErrorParser, add_worker_options, start_in_background


def main(arguments: list[str] | None = None) -> int:
    """Run a standalone worker until it is stopped by a signal."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if options.daemon:
        return start_in_background("headrace.cli.connect_standalone", options, [options.worker, *options.connectors])
    from headrace.cli import standalone_worker

    return standalone_worker.run(options.worker, options.connectors, dict(options.override))


def entry() -> None:
    """Run `main` as a console script, and exit with its exit code."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = UsageErrorParser(
        prog="connect-standalone", description="Run a standalone Connect worker.", allow_abbrev=False
    )
    add_worker_options(parser, default_name="connectStandalone")
    parser.add_argument("worker", type=Path, metavar="worker.properties")
    parser.add_argument("connectors", type=Path, nargs="*", default=[], metavar="connector.properties|json")
    return parser.parse_intermixed_args(arguments)  # options are permitted between files


if __name__ == "__main__":
    entry()
