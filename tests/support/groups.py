"""Runs a group shard with a fake clock and an in-memory log (`GroupDriver`).

`MemoryTopic` replaces `__consumer_offsets`.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.join_requests import ClientIdentity
from headrace_broker.coordinator.groups.records import decode_record, encode_record
from headrace_broker.coordinator.groups.shard import GroupShard
from headrace_broker.coordinator.runtime import CoordinatorRecord, CoordinatorResult
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)
from headrace_broker.protocol.messages.join_group import JoinGroupRequestProtocol
from headrace_broker.protocol.messages.leave_group import MemberIdentity
from headrace_broker.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from headrace_broker.protocol.messages.offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup
from headrace_broker.protocol.messages.sync_group import SyncGroupRequestAssignment
from headrace_broker.records.batch import Buffer, patch_offset_and_epoch, read_header

PARTITIONS = 3
FAST = GroupConfig(initial_rebalance_delay_ms=0)


def consumer_subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """Encode a consumer's subscription, version 0."""
    names = b"".join(len(t.encode()).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + len(user_data).to_bytes(4, "big") + user_data


class GroupDriver:
    """A group shard, its log and its clients.

    Every request has a number. `responses[number]` contains the response once the shard has sent it.
    """

    def __init__(self, config: GroupConfig = FAST, group_id: str = "g") -> None:
        self.config = config
        self.group_id = group_id
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.responses: dict[int, Any] = {}
        self.append_error: ErrorCode | None = None
        self._tokens = count()
        self._ids = count(1)
        self.shard = GroupShard(config, lambda: f"id{next(self._ids)}")

    # -- running

    def run(self, result: CoordinatorResult) -> None:
        if result.records and self.append_error is not None:
            after = self.shard.on_append_failed(result, self.append_error, self.now_ms)
        else:
            self.log += [encode_record(record) for record in result.records]
            after = self.shard.on_appended(result, self.now_ms)
        for response in result.responses:
            assert response.token not in self.responses, "a request has two responses"
            self.responses[response.token] = response.response
        if after.records or after.responses:
            self.run(after)

    def advance(self, milliseconds: int) -> None:
        """Advance the clock, and run each timer at its deadline."""
        end_ms = self.now_ms + milliseconds
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.run_due_timers()
        self.now_ms = end_ms

    def run_due_timers(self) -> None:
        """Run the timers whose deadline has passed."""
        for result in self.shard.run_timers(self.now_ms):
            self.run(result)

    def replay_log(self) -> GroupShard:
        """Return a new shard that is built from the encoded records of the log."""
        shard = GroupShard(self.config, lambda: f"id{next(self._ids)}")
        for record in self.records():
            shard.replay(record)
        return shard

    def restart(self) -> None:
        """Replace the shard with a shard that is loaded from the log."""
        self.shard = self.replay_log()
        self.run(self.shard.on_loaded(self.now_ms))

    def records(self) -> list[CoordinatorRecord]:
        decoded = [decode_record(key, value) for key, value in self.log]
        return [record for record in decoded if record is not None]

    # -- requests

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client: str = "client",
    ) -> int:
        offered = {"range": consumer_subscription("t")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in offered.items()],
        )
        token = next(self._tokens)
        self.run(self.shard.join(request, version, ClientIdentity(client, "/127.0.0.1"), token, self.now_ms))
        return token

    def join_new_member(self, **options: Any) -> tuple[str, int]:
        """Join as a new member, which takes two requests. Return the member id and the number of the second request."""
        first = self.responses[self.join(**options)]
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return first.member_id, self.join(first.member_id, **options)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        version: int = 5,
        protocol: tuple[str | None, str | None] = (None, None),
    ) -> int:
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol[0],
            protocol_name=protocol[1],
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in (assignments or {}).items()
            ],
        )
        token = next(self._tokens)
        self.run(self.shard.sync(request, version, token, self.now_ms))
        return token

    def heartbeat(self, member_id: str, generation: int, *, instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group_id, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return ErrorCode(self.shard.heartbeat(request, self.now_ms).error_code)

    def leave(self, *members: str | tuple[str, str], version: int = 5) -> Any:
        """Leave the group. Each item of `members` is a member id, or a pair of member id and instance id."""
        identities = [
            MemberIdentity(member_id=m)
            if isinstance(m, str)
            else MemberIdentity(member_id=m[0], group_instance_id=m[1])
            for m in members
        ]
        request = LeaveGroupRequest(group_id=self.group_id, members=identities)
        if version < 3:
            request = LeaveGroupRequest(group_id=self.group_id, member_id=identities[0].member_id)
        token = next(self._tokens)
        self.run(self.shard.leave(request, version, token, self.now_ms))
        return self.responses[token]

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        metadata: str | None = None,
        leader_epoch: int = -1,
        instance: str | None = None,
        retention_ms: int = -1,
        version: int = 9,
    ) -> list[ErrorCode]:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_leader_epoch=leader_epoch,
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=self.group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        token = next(self._tokens)
        self.run(self.shard.commit(request, version, token, self.now_ms))
        response = self.responses[token]
        return [ErrorCode(part.error_code) for topic in response.topics for part in topic.partitions]

    def fetch(self, group_id: str | None = None) -> dict[tuple[str, int], int]:
        """Return all committed offsets of the group."""
        response = self.shard.fetch(OffsetFetchRequestGroup(group_id=group_id or self.group_id, topics=None))
        return {(t.name, p.partition_index): p.committed_offset for t in response.topics for p in t.partitions}

    def delete_offsets(self, *partitions: tuple[str, int]) -> Any:
        request = OffsetDeleteRequest(
            group_id=self.group_id,
            topics=[
                OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
                for topic, index in partitions
            ],
        )
        token = next(self._tokens)
        self.run(self.shard.delete_offsets(request, token))
        return self.responses[token]

    def delete_group(self, group_id: str | None = None) -> ErrorCode:
        token = next(self._tokens)
        self.run(self.shard.delete_groups([group_id or self.group_id], token))
        return ErrorCode(self.responses[token][0].error_code)

    # -- shortcuts

    def create_stable_group(self, size: int = 1, **options: Any) -> list[str]:
        """Create a group of `size` members in state Stable. Return the member ids, the leader's id first.

        The assignment of each member is its own member id.
        """
        joins = [self.join_new_member(**options) for _ in range(size)]
        self.advance(2 * self.config.initial_rebalance_delay_ms)  # the members extend the initial delay once
        generation = self.responses[joins[0][1]].generation_id
        leader = self.responses[joins[0][1]].leader
        members = sorted((member for member, _ in joins), key=lambda member: member != leader)
        for member in members[1:]:
            self.sync(member, generation)
        self.sync(leader, generation, {member: member.encode() for member in members})
        assert self.group.state == "Stable"
        return members

    @property
    def group(self) -> Any:
        return self.shard.groups[self.group_id]


class MemoryTopic:
    """An in-memory `__consumer_offsets`. Appends advance the high watermark if `advances_high_watermark` is True."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.ends = [0] * PARTITIONS
        self.committed = [0] * PARTITIONS
        self.advances_high_watermark = True
        self.error: ErrorCode | None = None
        self.count = PARTITIONS
        self.missing: set[str] = set()

    def partition_count(self) -> int:
        return self.count

    def topic_exists(self, topic: str) -> bool:
        return topic not in self.missing

    def append(self, partition: int, batch: bytearray) -> int:
        if self.error is not None:
            raise ApiError(self.error)
        patch_offset_and_epoch(batch, 0, self.ends[partition], 0)
        self.batches[partition].append(bytes(batch))
        self.ends[partition] += read_header(batch).records_count
        if self.advances_high_watermark:
            self.committed[partition] = self.ends[partition]
        return self.ends[partition] - 1

    def high_watermark(self, partition: int) -> int:
        return self.committed[partition]

    def read(self, partition: int, offset: int, size_bytes_max: int) -> Buffer | None:
        for batch in self.batches[partition]:
            if read_header(batch).last_offset >= offset:
                return batch
        return None


class Clock:
    """A wall clock in milliseconds that is `offset_ms` ahead of the event loop's clock. Tests change `offset_ms`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.offset_ms = 10_000_000

    def __call__(self) -> int:
        return int(self.loop.time() * 1000) + self.offset_ms
