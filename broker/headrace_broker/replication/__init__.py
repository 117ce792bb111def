"""Partition replication: the state that a leader keeps per follower, and a follower's handling of fetch responses.

This package does no I/O: its inputs are offsets, epochs and times, and its outputs are decisions. `server` does the
network and disk I/O.

The high watermark of a partition is computed by `leader.LeaderReplicas.compute_high_watermark`.
"""
