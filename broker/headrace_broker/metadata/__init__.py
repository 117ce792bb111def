"""The cluster metadata (KRaft): the controller writes records, and replaying the records builds the metadata image.

- `image` is the immutable state that every request handler reads.
- `delta` defines how each record changes the image.
- `snapshots` converts an image to snapshot records and back.
- Each kind of request has a module (`topics`, `brokers`, `isr`, `reassignment`, `elections`, `configs`, `features`,
  `producer_ids`). Its functions read an image and return a `ControllerResult`: the records to append, and the response
  to send once the records are committed.
- `partition_changes` computes the new state of one partition. `leadership` selects the partitions to change after a
  broker or a config has changed.
- `controller` applies these functions to the newest image, which may contain uncommitted records.

This package does no I/O.
"""
