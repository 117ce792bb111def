"""Deterministic simulation: a whole cluster in one process, with time, network and disks controlled by a seed.

The broker's code runs here unchanged, including its I/O: `loop` is an event loop with a simulated clock, `network`
carries bytes between nodes, `disk` loses unsynced data in a power failure.  The same seed always gives the same run,
so a failed run is reproduced by its seed.
"""
