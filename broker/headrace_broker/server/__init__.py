"""The broker's process: listeners, connections, request routing, purgatory and one handler module per API.

Modules of this package may use sockets, disks and clocks. The packages `metadata`, `log` and `coordinator` and the pure
modules of this package make the decisions. One event loop owns all state.
"""
