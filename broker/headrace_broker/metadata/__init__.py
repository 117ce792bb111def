"""The cluster's metadata as KRaft keeps it: decisions become records, replayed records become the image.

`image` is the immutable state that every handler reads, `delta` what each record does to it, `snapshots` the way from
an image back to records.  The modules named after a subject (`topics`, `brokers`, `isr`, `reassignment`, `elections`,
`configs`, `features`, `producer_ids`) decide: they read an image and return an `Outcome`, the records to append and
the response to send once those are committed.  What becomes of a partition is worked out in `partition_changes` alone,
of which brokers and partitions in `leadership`.  `controller` binds them to the newest, maybe uncommitted, image.
Pure: no clock, no random numbers, no disk.
"""
