"""The log of a partition on disk, in Kafka's own format: segments, indexes, checkpoints, recovery, retention.

All disk access goes through `storage`. `segment`, `segmented_log` and `log` implement one partition's log, from the
single file up to append and read. `loader` and `recovery` open it. `directory` manages one log directory, `manager` all
logs of a broker. The other modules are pure functions and data structures.
"""

from __future__ import annotations
