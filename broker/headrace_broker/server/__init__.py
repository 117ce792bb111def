"""The broker's process: listeners, connections, request routing, purgatory and one handler module per API.

Modules here may use sockets, disks and clocks. The decisions are made by `metadata`, `log`, `coordinator`, and by the
pure modules of this package. One event loop owns all state.
"""
