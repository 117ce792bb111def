"""Runs the benchmarks (`make bench`) and writes tests/benchmarks/results/AREA.md and AREA.json.

The command is `python tests/benchmarks/run.py [AREA...] [--rounds N] [--scale S]`. The areas are startup, broker,
cluster, metadata, compaction, partitions, followers, catch-up, connect, connect-distributed, isolation, jdbc,
jdbc-sink, table-size, s3, elasticsearch, lakehouse and iceberg.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from results import Row, markdown, save  # noqa: E402

AREAS = (
    "startup",
    "broker",
    "cluster",
    "metadata",
    "compaction",
    "partitions",
    "followers",
    "catch-up",
    "connect",
    "connect-distributed",
    "isolation",
    "jdbc",
    "jdbc-sink",
    "table-size",
    "s3",
    "elasticsearch",
    "lakehouse",
    "iceberg",
)


def main() -> int:
    """Run the given areas, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"one of {', '.join(AREAS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="how many times each case is measured (default 3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the size of the loads; 0.1 for a quick run"
    )
    parser.add_argument("--no-save", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    areas = arguments.areas or list(AREAS)
    if unknown := set(areas) - set(AREAS):
        parser.error(f"unknown area: {', '.join(sorted(unknown))}; choose from {', '.join(AREAS)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # child processes use and write bytecode, as after `make .venv`
    started = time.monotonic()

    def report(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {text}", flush=True)

    rows: list[Row] = []
    for area in areas:
        measured = importlib.import_module(f"{area.replace('-', '_')}_bench").run(
            arguments.rounds, arguments.scale, report
        )
        if not arguments.no_save:
            report(f"written to {save(area, measured, 'python ' + ' '.join(sys.argv))}")
        rows += measured
    print("\n" + markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
