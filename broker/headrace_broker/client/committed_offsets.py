"""Commits a consumer's offsets, manually or automatically, and looks up the committed offsets of its group.

It runs on the consumer's event loop. A group member commits with its generation, so that the coordinator can reject
commits from removed members. The coordinator accepts a commit without a generation while the group is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headrace_broker.client import offsets as offset_api
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import BrokerError, ClientError, CommitFailedError
from headrace_broker.client.membership import GroupMembership
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition

logger = logging.getLogger(__name__)


_MEMBER_ERRORS = frozenset(
    (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
    )
)


class CommittedOffsets:
    """The committed offsets of the consumer's group. `membership` is set while the consumer is subscribed."""

    def __init__(self, cluster: Cluster, config: ClientConfig) -> None:
        self.membership: GroupMembership | None = None
        self.auto_commit_enabled = config.enable_auto_commit and bool(config.group_id)
        self._cluster = cluster
        self._config = config
        self._last_commit_ms = cluster.now_ms()
        self._commits = 0

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Commit the offsets; retry while `is_wanted` returns True.

        Raises CommitFailedError if the group rebalanced without this member, otherwise BrokerError or TimedOutError.
        """
        group_id = self._group_id("commit")
        if not offsets:
            return
        self._commits += 1
        offsets = {item: self._with_epoch(item, offset) for item, offset in offsets.items()}
        generation = None
        if self.membership is not None:
            generation = self.membership.generation
            if generation.generation_id < 0:
                raise CommitFailedError(
                    f"group {group_id}: the offsets were not committed, "
                    "because this consumer is not a member of the group"
                )

        async def attempt() -> None:
            if not is_wanted():
                return
            codes = await offset_api.commit_offsets(
                self._cluster,
                group_id,
                offsets,
                generation=generation,
                group_instance_id=self._config.group_instance_id,
            )
            for (topic, partition), code in codes.items():
                if code != ErrorCode.NONE:
                    raise self._commit_error(
                        f"group {group_id}: cannot commit the offset of {topic}-{partition}", group_id, code
                    )

        await self._cluster.retry(attempt, self._config.default_api_timeout_ms, f"committing for group {group_id}")

    def _with_epoch(self, topic_partition: TopicPartition, offset: OffsetAndMetadata) -> OffsetAndMetadata:
        """Add the partition's current leader epoch to an offset without a leader epoch (KIP-320).

        A consumer that starts at this offset then does not fetch from a stale leader.
        """
        leader = self._cluster.view.leader(*topic_partition)
        return (
            offset if leader is None or offset.leader_epoch >= 0 else replace(offset, leader_epoch=leader.leader_epoch)
        )

    async def auto_commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit a consumer's positions. If the commit fails, log the error and do not raise it.

        The commit is not retried after a later commit has started, because the retry would reset the committed offsets
        to older positions.
        """
        number = self._commits + 1
        try:
            await self.commit(offsets_of_positions(positions), is_wanted=lambda: number == self._commits)
        except ClientError as error:
            logger.warning("Group %s: auto-commit failed: %s", self._config.group_id, error)

    def restart_interval_if_due(self, now_ms: float) -> bool:
        """Return whether auto.commit.interval.ms has passed. If so, restart the interval."""
        if not self.auto_commit_enabled or now_ms - self._last_commit_ms < self._config.auto_commit_interval_ms:
            return False
        self._last_commit_ms = now_ms
        return True

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offset of each partition, or None for a partition without a committed offset."""
        return await offset_api.fetch_offsets(self._cluster, self._group_id("committed"), partitions)

    def _group_id(self, method: str) -> str:
        if not self._config.group_id:
            raise ClientError(f"{method}: group.id is not configured")
        return self._config.group_id

    def _commit_error(self, subject: str, group_id: str, code: ErrorCode) -> ClientError:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._cluster.forget_coordinator(group_id)
        if code not in _MEMBER_ERRORS:
            return BrokerError(code, subject)
        if self.membership is not None:
            self.membership.handle_commit_error(code)
        failed = CommitFailedError(f"{subject}: {code.name}: {code.message}")
        failed.code = code
        return failed


def offsets_of_positions(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Convert consumer positions to the OffsetAndMetadata objects that a commit needs."""
    return {topic_partition: OffsetAndMetadata(offset) for topic_partition, offset in positions.items()}
