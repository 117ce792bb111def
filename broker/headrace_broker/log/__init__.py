"""A partition's log on storage, in Kafka's own format: segments, indexes, checkpoints, recovery, retention.

The shell is `storage`, `segment`, `log`, `loader`, `directory` and `manager`; the arithmetic beside it is pure.
"""

from __future__ import annotations
