"""Simulates a whole cluster in one process. A seed determines the behavior of time, network and disks.

The broker's code runs unchanged, including its I/O. The module `loop` is an event loop with a simulated clock,
`network` carries bytes between nodes, and `disk` loses unsynced data in a power failure. The same seed always produces
the same run, so the seed reproduces a failed run.
"""
