"""The option `--version` of the commands that have the names and options of Kafka's commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class VersionOption(argparse.Action):
    """Prints the version of Kafka whose protocol headrace implements, and headrace's version, and exits."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="Show the version.")

    def __call__(self, parser: argparse.ArgumentParser, *ignored: object) -> None:
        """Print the versions and exit."""
        from importlib.metadata import version

        from headrace_broker.protocol import KAFKA_VERSION

        print(f"{KAFKA_VERSION} (headrace {version('headrace')})")
        parser.exit(0)
