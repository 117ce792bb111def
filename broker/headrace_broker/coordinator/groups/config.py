"""Configuration of the group coordinator, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class GroupConfig:
    """Limits and timeouts of the group coordinator.

    The comment after a field names the field's key in server.properties.
    """

    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    max_size: int = 2**31 - 1  # group.max.size
    new_member_join_timeout_ms: int = 300_000  # no key: the timeout of a new member's first JoinGroup
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms
    batch_size_bytes_max: int = 1_048_588  # max.message.bytes of the internal topic
