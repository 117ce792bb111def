"""Runs the simulation of a worker group with several seeds. For each failed run, prints a command that repeats it."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys

from support.herder_simulation.mutants import MUTANTS
from support.herder_simulation.world import World


def main() -> int:
    """Run the simulation with each seed. Return 1 if a run fails, and 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m support.herder_simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="disable a rule; stop at the first failing seed")
    parser.add_argument("--statuses", action="store_true", help="check the statuses, too")
    parser.add_argument("--verbose", action="store_true", help="print the history")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        parser.error("set PYTHONHASHSEED=0: the order of sets must be the same in every run")
    logging.disable(logging.CRITICAL)
    if arguments.mutant:
        MUTANTS[arguments.mutant]()
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        world, text = World(seed, checks_statuses=arguments.statuses), ""
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - broken code may fail in any way
            failed += 1
            options = (f" --mutant {arguments.mutant}" if arguments.mutant else "") + (
                " --statuses" if arguments.statuses else ""
            )
            replay = f"PYTHONHASHSEED=0 PYTHONPATH=tests python -m support.herder_simulation --seed {seed}{options}"
            text = f"seed {seed}: {type(error).__name__}: {error}\n  history: {replay} --verbose"
        if arguments.verbose:
            print(*world.kernel.log, sep="\n")
        if text or arguments.count == 1:
            digest = hashlib.sha256("\n".join(world.kernel.log).encode()).hexdigest()[:12]
            print(f"{text or f'seed {seed}: correct'}\n  digest {digest}", flush=True)
        if text and arguments.mutant:
            print(f"{arguments.mutant}: caught by seed {seed}")
            return 1
    print(f"{arguments.count} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
