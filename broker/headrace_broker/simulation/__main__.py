"""`python -m headrace_broker.simulation --seed N [N ...] [--count M] [--verbose]`: run seeds, and repeat one."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time


def main() -> int:
    """Run the seeds; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m headrace_broker.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=[0], nargs="+", help="the seeds")
    parser.add_argument("--count", type=int, default=1, help="how many, one after the other, from each of them on")
    parser.add_argument("--faults", default="", help="only these kinds of fault, separated by commas")
    parser.add_argument("--topics", default="", help="only these topics beside the one that keeps everything: c,r,u")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="set a key for every node")
    parser.add_argument("--events", type=int, default=30, help="how much of what happened is told of a failure")
    parser.add_argument("--verbose", action="store_true", help="print what happens and what the nodes log")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of the history
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "headrace_broker.simulation", *sys.argv[1:]])
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from headrace_broker.simulation.run import run_seed

    gc.collect()
    gc.freeze()  # each run buries its world; what was imported need not be looked through for that
    failed = 0
    faults = tuple(arguments.faults.split(",")) if arguments.faults else ()
    topics = tuple(arguments.topics.split(",")) if arguments.topics else ()
    properties = dict(item.split("=", 1) for item in arguments.property)
    seeds = [seed for first in arguments.seed for seed in range(first, first + arguments.count)]
    for seed in seeds:
        began = time.perf_counter()
        try:
            summary = run_seed(
                seed,
                faults=faults,
                topics=topics,
                verbose=arguments.verbose,
                prepare=lambda world: world.properties.update(properties),
            )
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the seed repeats it
            failed += 1
            notes = "".join(f"\n    {line}" for line in getattr(error, "__notes__", ())[-arguments.events :])
            print(f"seed {seed}: {type(error).__name__}: {error}{notes}")
            more = "".join(f" --property {item}" for item in arguments.property)
            more += f" --faults {arguments.faults}" if faults else ""
            more += f" --topics {arguments.topics}" if topics else ""
            print(f"  again: python -m headrace_broker.simulation --seed {seed}{more} --verbose", flush=True)
            continue
        took = time.perf_counter() - began
        print(
            f"seed {seed}: {summary.records} records, {summary.simulated_ms} ms, {summary.callbacks} callbacks, "
            f"digest {summary.digest:x}, {took:.2f} s",
            flush=True,
        )
    print(f"{len(seeds) - failed} of {len(seeds)} seeds passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
