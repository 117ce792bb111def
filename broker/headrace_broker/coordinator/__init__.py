"""The group coordinator: a replicated state machine whose log is the internal topic `__consumer_offsets`.

- `runtime`: the interface between a shard and its `ShardRunner`. A shard is the state of one
  partition of `__consumer_offsets`. A shard converts requests into records and responses, and is
  rebuilt from the records.
- `groups`: the group coordinator's shard (classic protocol and committed offsets).
- `runner`: `ShardRunner`, which appends a shard's records and sends the responses after the records
  are committed.
- `service`: `GroupCoordinator`, through which the request handlers call the shards of this node.

This package does no I/O, except for `runner` and `service`. The other modules receive the current time as an argument.
"""
