"""The command `connect-standalone worker.properties [connector1.properties connector2.json …]`.

The exit codes are those of Kafka Connect: 1 wrong usage, 2 the worker failed to start, 3 a connector failed to start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from headrace.cli.exit_codes import INTERRUPTED, USAGE_ERROR


def main(arguments: list[str] | None = None) -> int:
    """Run a standalone worker until it is stopped by a signal."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    if options.daemon:
        return _start_in_background(options)
    from headrace.cli import standalone_worker

    return standalone_worker.run(options.worker, options.connectors, dict(options.override))


def entry() -> None:
    """Run `main` as a console script, and exit with its exit code."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


class _UsageErrorParser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _UsageErrorParser(
        prog="connect-standalone", description="Run a standalone Connect worker.", allow_abbrev=False
    )
    parser.add_argument("-daemon", action="store_true", help="run in the background and write output to logs/NAME.out")
    parser.add_argument("-name", default="connectStandalone", help="name of the background process")
    parser.add_argument("-loggc", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        help="override a key of the worker file; can be repeated",
    )
    parser.add_argument("worker", type=Path, metavar="worker.properties")
    parser.add_argument("connectors", type=Path, nargs="*", default=[], metavar="connector.properties|json")
    return parser.parse_intermixed_args(arguments)  # options are permitted between files


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def _start_in_background(options: argparse.Namespace) -> int:
    directory = Path(os.environ.get("LOG_DIR", "logs"))
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace.cli.connect_standalone"]
    command += [argument for key, value in options.override for argument in ("--override", f"{key}={value}")]
    with open(directory / f"{options.name}.out", "ab") as output:
        subprocess.Popen(
            [*command, str(options.worker), *map(str, options.connectors)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return 0


if __name__ == "__main__":
    entry()
