"""Partition logs on disk, in Kafka's file formats: segments, indexes, checkpoints, recovery, retention, compaction.

All disk access goes through `storage`. `segment`, `segmented_log` and `log` implement one partition's log: a single
segment, the list of segments, and append and read. `loader` and `recovery` open a log. `directory` manages one log
directory, and `manager` manages all logs of a broker. The other modules support these.
"""

from __future__ import annotations
