"""Whole clusters in one process, with time, network and disks that a seed decides.

The broker runs here unchanged, shells included: `loop` is an event loop whose clock is a number, `network` carries
bytes between nodes, `disk` forgets what was not synced.  One seed, one history: a run that fails is run again by its
seed.
"""
