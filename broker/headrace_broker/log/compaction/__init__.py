"""Log compaction: keeps only the newest record of each key, with the same results as Kafka's log cleaner.

`cleanable` determines which range of a log to clean, and whether to clean the log now. `cleaning` builds the new
segments in two passes over the old segments. It uses `offset_map` (newest offset of each key), `batch_filter` (the
records of a batch to retain), `transactions` (batches of aborted transactions) and `grouping` (the segments to merge).
This package does no I/O, except through the storage object that the caller passes. The broker runs the cleaning in a
separate process (`server.cleaning.cleaner`).
"""

from __future__ import annotations
