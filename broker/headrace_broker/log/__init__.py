"""A partition's log on storage, in Kafka's own format: segments, indexes, checkpoints, recovery, retention.

`storage` is the only door to the disk; `segment`, `segmented_log` and `log` are a partition's log from the file up,
`loader` and `recovery` open it, `directory` and `manager` hold all of them.  The arithmetic beside them is pure.
"""

from __future__ import annotations
