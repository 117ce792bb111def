"""Partition logs on disk, in Kafka's file formats: segments, indexes, checkpoints, recovery, retention, compaction.

Every module accesses the disk through `storage`. Three modules implement the log of one partition: `segment` implements
a single segment, `segmented_log` the list of segments, and `log` appends and reads records. `loader` and `recovery`
open a log. `directory` manages one log directory, and `manager` manages all logs of a broker. The other modules contain
the parts that these modules use, for example indexes and checkpoints.
"""

from __future__ import annotations
