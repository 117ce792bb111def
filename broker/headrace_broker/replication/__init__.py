"""Partition replication: the state that a leader keeps per follower, and a follower's handling of fetch responses.

The modules have no I/O: their inputs are offsets, epochs and times, and their outputs are decisions. `server` does the
network and disk I/O.

The high watermark of a partition is computed by `leader.LeaderReplicas.compute_high_watermark`.
"""
