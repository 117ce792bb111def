"""The cluster metadata (KRaft): the controller writes records, and replaying the records builds the metadata image.

- `image`: the immutable state that every request handler reads; `delta`: how each record changes it; `snapshots`:
  conversion of an image to snapshot records and back.
- One module per kind of request (`topics`, `brokers`, `isr`, `reassignment`, `elections`, `configs`, `features`,
  `producer_ids`): each function reads an image and returns a `ControllerResult`, the records to append and the response
  to send once they are committed.
- `partition_changes` computes the new state of one partition. `leadership` selects the partitions to change after a
  broker or a config has changed.
- `controller` applies all of these to the newest image, which may not be committed yet.

No module of this package uses a clock, random numbers or the disk.
"""
