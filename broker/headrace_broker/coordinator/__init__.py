"""The group coordinator: a replicated state machine whose log is the internal topic `__consumer_offsets`.

- `runtime`: the contract between a shard and its `ShardRunner`.  A shard is the state of one partition of
  `__consumer_offsets`: it converts requests into records and responses, and replaying the records rebuilds it.
- `groups`: the group coordinator's shard (classic protocol and committed offsets).
- `runner`: the `ShardRunner`, which appends a shard's records and sends its responses after the commit.
- `service`: `GroupCoordinator`, the interface of all shards of this node for the request handlers.

All modules except `runner` and `service` are pure: they do no I/O and receive the current time as an argument.
"""
