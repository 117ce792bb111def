"""Partition replication: the state that a leader keeps per follower, and a follower's handling of fetch responses.

Pure: the inputs are offsets, epochs and times, the outputs decisions.  `server` does the network and disk IO.

The high watermark of a partition is computed by `leader.LeaderReplicas.compute_high_watermark`.
"""
