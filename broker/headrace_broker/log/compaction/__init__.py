"""Compaction: of a topic's records only the newest per key stay, in Kafka's way, offset by offset the same.

`choice` says which log is cleaned next and up to where, `cleaning` makes the new segments in two passes over the old
ones, with `key_map` (newest offset per key), `batch_filter` (what stays of a batch), `transactions` (what an aborted
transaction takes with it) and `grouping` (which segments become one). Everything here is pure, or works on the storage
port it is given; the broker runs it in a process of its own (`server.cleaning.cleaner`).
"""

from __future__ import annotations
