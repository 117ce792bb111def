"""The simulated Kafka cluster: compacted topics, and the coordinator of the worker group.

The coordinator follows the classic group protocol: sessions, generations and rebalances. It can move to another broker,
which continues with the last generation that the group leader has synchronized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from support.herder_simulation.kernel import Future, Kernel

TOMBSTONE_RETENTION_MS = 600_000


@dataclass(frozen=True)
class LogRecord:
    """A record of a topic."""

    offset: int
    key: bytes
    value: bytes | None
    time_ms: int
    writer: str


class Topic:
    """A topic with one partition."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.end = 0
        self.records: list[LogRecord] = []
        self.all: list[LogRecord] = []
        """All records, including those that compaction has removed."""
        self.listeners: list[Callable[[], None]] = []

    def append(self, records: Sequence[tuple[bytes, bytes | None]], writer: str) -> int:
        """Append the records of the worker `writer`. Return the offset of the first record."""
        first = self.end
        for key, value in records:
            record = LogRecord(self.end, key, value, self._kernel.now_ms, writer)
            self.records.append(record)
            self.all.append(record)
            self.end += 1
        for listener in self.listeners:
            listener()
        return first

    def read(self, position: int) -> list[LogRecord]:
        """Return the records from offset `position` to the end."""
        return [record for record in self.records if record.offset >= position]

    def compact(self) -> None:
        """Keep the last record of each key, and remove old tombstones."""
        last = {record.key: record.offset for record in self.records}
        expired_ms = self._kernel.now_ms - TOMBSTONE_RETENTION_MS
        self.records = [
            record
            for record in self.records
            if last[record.key] == record.offset and (record.value is not None or record.time_ms > expired_ms)
        ]


@dataclass
class Member:
    """A member of the group."""

    id: str
    protocols: list[tuple[str, bytes]]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    join: Future | None = None
    sync: Future | None = None
    session: int = 0
    """The number of the current session timer."""


@dataclass
class _Saved:
    generation: int = 0
    leader: str = ""
    protocol: str = ""
    assignments: dict[str, bytes] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)


class Coordinator:
    """The group's coordinator. It calls `on_assignments` with the metadata and assignments of each generation."""

    def __init__(self, kernel: Kernel, on_assignments: Callable[[int, Mapping[str, bytes], Mapping[str, bytes]], None]):
        self._kernel = kernel
        self._on_assignments = on_assignments
        self.members: dict[str, Member] = {}
        self.lost_ms: dict[str, int] = {}
        """When the coordinator removed each former member."""
        self.generation = 0
        self.state = "empty"
        self.is_available = True
        self.rebalances = 0
        self._leader = ""
        self._protocol = ""
        self._assignments: dict[str, bytes] = {}
        self._number = 0
        self._round = 0
        self._saved = _Saved()

    # Requests

    def join(self, request: JoinGroupRequest) -> Future:
        """Handle JoinGroup."""
        response = Future()
        if not self.is_available:
            response.set(JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
            return response
        id_ = request.member_id
        if not id_:
            self._number += 1
            response.set(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=f"m{self._number}"))
            return response
        is_new = id_ not in self.members
        if is_new and (id_ in self.lost_ms or int(id_[1:]) > self._number):
            response.set(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return response
        protocols = [(each.name, bytes(each.metadata)) for each in request.protocols]
        known = self.members.get(id_)
        if known is not None and self.state == "stable" and id_ != self._leader and known.protocols == protocols:
            self._keep_alive(known)
            response.set(self._join_response(known))
            return response
        member = Member(id_, protocols, request.session_timeout_ms, request.rebalance_timeout_ms)
        if known is not None:
            member.session = known.session + 1
            if known.join is not None:
                known.join.set(JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        self.members[id_] = member
        member.join = response
        if self.state != "joining":
            self._start_rebalance()
        self._complete_join_if_possible()
        return response

    def sync(self, request: SyncGroupRequest) -> Future:
        """Handle SyncGroup."""
        response = Future()
        code = self._check(request.member_id, request.generation_id)
        if code is ErrorCode.NONE and self.state == "joining":
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is not ErrorCode.NONE:
            response.set(SyncGroupResponse(error_code=code))
            return response
        member = self.members[request.member_id]
        self._keep_alive(member)
        if self.state == "stable":
            response.set(SyncGroupResponse(assignment=self._assignments.get(member.id, b"")))
            return response
        member.sync = response
        if member.id == self._leader:
            self._assignments = {each.member_id: bytes(each.assignment) for each in request.assignments}
            self.state = "stable"
            metadata = {each.id: dict(each.protocols)[self._protocol] for each in self.members.values()}
            self._on_assignments(self.generation, metadata, self._assignments)
            self._saved = _Saved(
                self.generation, self._leader, self._protocol, dict(self._assignments), dict(self.members)
            )
            for each in self.members.values():
                if each.sync is not None:
                    each.sync.set(SyncGroupResponse(assignment=self._assignments.get(each.id, b"")))
                    each.sync = None
        return response

    def heartbeat(self, request: HeartbeatRequest) -> Future:
        """Handle Heartbeat."""
        response = Future()
        code = self._check(request.member_id, request.generation_id)
        if code is ErrorCode.NONE:
            self._keep_alive(self.members[request.member_id])
            if self.state == "joining":
                code = ErrorCode.REBALANCE_IN_PROGRESS
        response.set(int(code))
        return response

    def leave(self, member_id: str) -> Future:
        """Handle LeaveGroup."""
        response = Future()
        if self.is_available and member_id in self.members:
            self._remove(member_id)
        response.set(None)
        return response

    def _check(self, member_id: str, generation: int) -> ErrorCode:
        if not self.is_available:
            return ErrorCode.NOT_COORDINATOR
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    # Rebalances

    def _start_rebalance(self) -> None:
        was_empty = self.state == "empty"
        self.state = "joining"
        self.rebalances += 1
        self._round += 1
        number = self._round
        for member in self.members.values():
            if member.sync is not None:
                member.sync.set(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
                member.sync = None
        timeout_ms = max((each.rebalance_timeout_ms for each in self.members.values()), default=0)
        if was_empty:
            self._kernel.call_later(1_000, lambda: self._complete_join(number))
            self._initial = number
        else:
            self._initial = -1
            self._kernel.call_later(timeout_ms, lambda: self._complete_join(number))

    def _complete_join_if_possible(self) -> None:
        if self._initial != self._round and all(each.join is not None for each in self.members.values()):
            self._complete_join(self._round)

    def _complete_join(self, number: int) -> None:
        if number != self._round or self.state != "joining" or not self.is_available:
            return
        for each in [each for each in self.members.values() if each.join is None]:
            self._forget(each.id)
        self.generation += 1
        if not self.members:
            self.state = "empty"
            self._saved = _Saved(self.generation)
            return
        self.state = "syncing"
        self._assignments = {}
        if self._leader not in self.members:
            self._leader = next(iter(self.members))
        offered = [[name for name, _ in each.protocols] for each in self.members.values()]
        self._protocol = next(name for name in offered[0] if all(name in names for names in offered))
        for each in self.members.values():
            assert each.join is not None
            joined, each.join = each.join, None
            self._keep_alive(each)
            joined.set(self._join_response(each))

    def _join_response(self, member: Member) -> JoinGroupResponse:
        listed = list(self.members.values()) if member.id == self._leader and self.state == "syncing" else []
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name=self._protocol,
            leader=self._leader,
            member_id=member.id,
            members=[
                JoinGroupResponseMember(member_id=each.id, metadata=dict(each.protocols)[self._protocol])
                for each in listed
            ],
            skip_assignment=False,
        )

    def _keep_alive(self, member: Member) -> None:
        member.session += 1
        number, id_ = member.session, member.id
        self._kernel.call_later(member.session_timeout_ms, lambda: self._expire(id_, number))

    def _expire(self, id_: str, number: int) -> None:
        member = self.members.get(id_)
        if self.is_available and member is not None and member.session == number and member.join is None:
            self._kernel.trace(f"coordinator: the session of {id_} expired")
            self._remove(id_)

    def _forget(self, id_: str) -> None:
        self.members.pop(id_, None)
        self.lost_ms.setdefault(id_, self._kernel.now_ms)

    def _remove(self, id_: str) -> None:
        member = self.members[id_]
        self._forget(id_)
        for waiting in (member.join, member.sync):
            if waiting is not None:
                response: Any = JoinGroupResponse if waiting is member.join else SyncGroupResponse
                waiting.set(response(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
        if not self.members:
            self._round += 1
            self.generation += 1
            self.state = "empty"
            self._saved = _Saved(self.generation)
        elif self.state == "joining":
            self._complete_join_if_possible()
        else:
            self._start_rebalance()

    # Moves to another broker

    def stop(self) -> None:
        """Simulate a failure of the coordinator's broker."""
        self.is_available = False
        self._round += 1
        for member in self.members.values():
            if member.join is not None:
                member.join.set(JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
            if member.sync is not None:
                member.sync.set(SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
            member.join = member.sync = None
            member.session += 1

    def start(self) -> None:
        """Make another broker the coordinator. It continues with the last synchronized generation."""
        saved = self._saved
        for id_ in self.members.keys() - saved.members.keys():
            self._forget(id_)
        self.members = dict(saved.members)
        for id_ in self.members:
            self.lost_ms.pop(id_, None)
        self.generation, self._leader, self._protocol = saved.generation, saved.leader, saved.protocol
        self._assignments = dict(saved.assignments)
        self.state = "stable" if self.members else "empty"
        self.is_available = True
        for member in self.members.values():
            member.join = member.sync = None
            self._keep_alive(member)
