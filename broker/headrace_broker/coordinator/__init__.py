"""Coordinators: state machines that live in an internal topic.

`runtime` is the contract of every coordinator shard (handle -> records and replies; replay), `groups` the group
coordinator's shard (classic protocol and offsets), `runner` runs one shard on the event loop (append, wait for the
commit, answer), `service` is the face of them all that handlers ask.  Everything but `runner` and `service` is pure.
"""
