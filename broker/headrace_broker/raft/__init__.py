"""The metadata quorum (KRaft: KIP-595, KIP-630, KIP-996): leader election and replication of the metadata log.

This package does no I/O. `core.Raft` is a state machine. The caller passes in the random number generator. The
inputs of `core.Raft` are requests, responses and the current time. Its outputs are `effects`, which `server.kraft`
executes in order. A `Persist` completes before any later effect is executed, so a vote is on disk before its response
is sent.

The roles are in three modules: `follower` (voters and observers that know the leader), `nominees` (Unattached,
Prospective, Candidate) and `leader`. The high watermark advances in `leader.Leader._maybe_advance_high_watermark` and
`follower.Follower._advance_high_watermark`; both call `core.Raft.advance_high_watermark`.
"""
