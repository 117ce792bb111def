"""The options of connect-standalone and connect-distributed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from headrace.cli.exit_codes import USAGE_ERROR
from headrace_broker.help_epilog import read_on
from headrace_broker.version_option import VersionOption


class UsageErrorParser(argparse.ArgumentParser):
    """An argument parser that exits with Kafka Connect's exit code if the usage is wrong."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit."""
        self.print_usage(sys.stderr)
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def add_worker_options(parser: argparse.ArgumentParser, *, default_name: str) -> None:
    """Add the options of Kafka's scripts (-daemon, -name with `default_name`, -loggc), --version and --override.

    The help ends with the names of the documents about workers.
    """
    parser.epilog = read_on(
        "docs/examples.md", "docs/connect.md", "docs/reference/worker.md", "docs/reference/connectors.md"
    )
    parser.add_argument("--version", action=VersionOption)
    parser.add_argument("-daemon", action="store_true", help="run in the background and write output to logs/NAME.out")
    parser.add_argument("-name", default=default_name, help="name of the background process")
    parser.add_argument("-loggc", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        type=_key_value,
        metavar="KEY=VALUE",
        help="override a key of the worker file; can be repeated",
    )


def start_in_background(module: str, options: argparse.Namespace, files: Iterable[Path]) -> int:
    """Start a module with these options and files in a background process, and return the exit code 0 immediately.

    Print how to stop the process: Kafka has no script that stops a worker.
    """
    directory = Path(os.environ.get("LOG_DIR", "logs"))
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", module]
    command += [argument for key, value in options.override for argument in ("--override", f"{key}={value}")]
    log = directory / f"{options.name}.out"
    with open(log, "ab") as output:
        worker = subprocess.Popen(
            [*command, *map(str, files)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    print(f"The worker starts in the background and writes its output to {log}. To stop the worker: kill {worker.pid}")
    return 0


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()
