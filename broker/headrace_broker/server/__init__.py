"""The broker's process: listeners, connections, request routing, purgatory and one handler module per API.

Modules of this package may use sockets, disks and clocks. The broker's logic is in the packages `metadata`, `log`
and `coordinator`, and in the pure modules of this package. One event loop owns all state.
"""
