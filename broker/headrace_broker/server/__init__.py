"""The broker's process: listeners, connections, request routing, parked operations and one handler module per API.

Shell of the broker: everything here may touch sockets, disks and clocks; what decides lives in `metadata`, `log`,
`coordinator` and in the pure modules of this package (`parked`, the decoders).  One event loop owns all state.
"""
