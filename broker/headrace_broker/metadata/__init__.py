"""The cluster's metadata as KRaft keeps it: decisions become records, replayed records become the image.

`image` is the immutable state that every handler reads; the modules named after a subject (`topics`, `configs`,
`producer_ids`, `cluster`) decide: they read an image and return an `Outcome`, the records to append and the response
to send once those are committed.  `controller` binds them to the newest, maybe uncommitted, image.
Pure: no clock, no random numbers, no disk.
"""
