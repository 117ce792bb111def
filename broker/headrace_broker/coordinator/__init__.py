"""Coordinators: state machines that live in an internal topic.

`runtime` is the contract of every coordinator shard (handle -> records and replies; replay), `groups` the group
coordinator's shard (classic protocol and offsets), `service` the asyncio face that appends, waits and answers.
Everything but `service` is pure.
"""
