"""Runs the simulation once with each of the given seeds.

The command is `python -m headrace_broker.simulation --seed N [N ...] [--count M] [--verbose]`.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time


def main() -> int:
    """Run the simulation with each seed, and return the exit status: 1 if a run failed, otherwise 0."""
    parser = argparse.ArgumentParser(prog="python -m headrace_broker.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=[0], nargs="+", help="the seeds to run")
    parser.add_argument("--count", type=int, default=1, help="the number of seeds to run, from each --seed on")
    parser.add_argument("--faults", default="", help="inject only these kinds of fault, separated by commas")
    parser.add_argument("--topics", default="", help="create only these topics in addition to topic t: c,r,u")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="override a node config")
    parser.add_argument("--events", type=int, default=30, help="the number of events to print for a failure")
    parser.add_argument("--verbose", action="store_true", help="print all events and the nodes' logs")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the iteration order of sets must be the same in every run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "headrace_broker.simulation", *sys.argv[1:]])
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from headrace_broker.simulation.run import run_seed

    gc.collect()
    gc.freeze()  # the garbage collection at the end of each run need not scan the imported modules
    failed = 0
    faults = tuple(arguments.faults.split(",")) if arguments.faults else ()
    topics = tuple(arguments.topics.split(",")) if arguments.topics else ()
    properties = dict(item.split("=", 1) for item in arguments.property)
    seeds = [seed for first in arguments.seed for seed in range(first, first + arguments.count)]
    for seed in seeds:
        start = time.perf_counter()
        try:
            summary = run_seed(
                seed,
                faults=faults,
                topics=topics,
                verbose=arguments.verbose,
                prepare=lambda cluster: cluster.properties.update(properties),
            )
        except Exception as error:  # noqa: BLE001 - the failure is printed, and the next seed runs
            failed += 1
            notes = "".join(f"\n    {line}" for line in getattr(error, "__notes__", ())[-arguments.events :])
            print(f"seed {seed}: {type(error).__name__}: {error}{notes}")
            options = "".join(f" --property {item}" for item in arguments.property)
            options += f" --faults {arguments.faults}" if faults else ""
            options += f" --topics {arguments.topics}" if topics else ""
            print(f"  reproduce: python -m headrace_broker.simulation --seed {seed}{options} --verbose", flush=True)
            continue
        elapsed_s = time.perf_counter() - start
        print(
            f"seed {seed}: {summary.records} records, {summary.simulated_ms} ms, {summary.callbacks} callbacks, "
            f"digest {summary.digest:x}, {elapsed_s:.2f} s",
            flush=True,
        )
    print(f"{len(seeds) - failed} of {len(seeds)} seeds passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
