"""The group coordinator: a replicated state machine whose log is the internal topic `__consumer_offsets`.

- `runtime`: the contract between a shard and its runner.  A shard is the state of one partition: it turns requests into
  records and responses, and it is rebuilt by replaying records.
- `groups`: the group coordinator's shard (classic protocol and committed offsets).
- `runner`: runs one shard on the event loop: appends its records, and sends its responses after the commit.
- `service`: the interface for request handlers, over all shards of this node.

All modules except `runner` and `service` are pure: they do no I/O and receive the current time as an argument.
"""
