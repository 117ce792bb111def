"""Replication at work: what the image says of each partition, what followers fetch, and who is in sync.

For a partition that this broker leads it keeps a `LeaderReplicas` and moves the high watermark; for one that it follows
it has a `ReplicaFetcher` of the leader fetch it.  Changes of the in-sync replicas go to the controller together, one
request at a time.  Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from headrace_broker.metadata.image import MetadataImage, PartitionImage
from headrace_broker.metadata.partition_changes import RECOVERED
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from headrace_broker.protocol.messages.fetch import FetchPartition
from headrace_broker.replication.leader import IsrProposal, LeaderReplicas
from headrace_broker.replication.read_replica import SELECTORS, ReplicaView
from headrace_broker.replication.throttle import Throttle
from headrace_broker.server.network.controller_channel import NoControllerError
from headrace_broker.server.replicas.partitions import Partition
from headrace_broker.server.replicas.replica_fetcher import ReplicaFetcher
from headrace_broker.server.telling import Telling

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

logger = logging.getLogger(__name__)

_ALTER_TIMEOUT_MS = 30_000
_RETRY_S = 0.05


class Replication:
    """Owner of every partition's replication state on this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._config = broker.config
        self._loop = asyncio.get_running_loop()
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self._following: dict[Partition, int] = {}
        self._proposals: dict[Partition, IsrProposal] = {}
        self._proposing: asyncio.Task[None] | None = None
        self._unchanged = Telling()
        self.isr_shrinks = 0
        self.isr_expands = 0
        self._low_watermark_moved = asyncio.Event()
        self._selector = SELECTORS.get(self._config.replica_selector_class or "")
        samples, sample_ms = (
            self._config.replication_quota_window_num,
            self._config.replication_quota_window_size_seconds * 1000,
        )
        self.leader_throttle = Throttle(samples, sample_ms)
        self.follower_throttle = Throttle(samples, sample_ms)

    def now_ms(self) -> int:
        """The clock of lag: monotonic."""
        return int(self._loop.time() * 1000)

    # -- following the image -----------------------------------------------------------------------------------------

    def follow(self, partition: Partition, image: PartitionImage, *, is_new_epoch: bool) -> None:
        """Take up what the image says of a partition held here."""
        self._low_watermark_moved.set()
        if image.leader == self._broker.node_id:
            self._stop_fetching(partition)
            self._lead(partition, image, is_new_epoch=is_new_epoch)
            return
        if partition.replicas is not None or is_new_epoch:
            partition.replicas = None
            partition.uncommitted.clear()
            self._proposals.pop(partition, None)
            self._broker.waiting.disturbed(partition)
            self._broker.waiting.disturbed(partition.end)
            self._broker.fetch_sessions.disturbed(partition)
        if image.leader < 0:
            self._stop_fetching(partition)
        elif is_new_epoch or self._following.get(partition) != image.leader:
            self._stop_fetching(partition)
            self._following[partition] = image.leader
            self._fetcher(image.leader).add(partition, image.leader_epoch)

    def _lead(self, partition: Partition, image: PartitionImage, *, is_new_epoch: bool) -> None:
        replicas = partition.replicas
        if replicas is not None and not is_new_epoch:
            before = len(replicas.isr)
            replicas.image_changed(image, self.now_ms())
            self._count_isr_change(before, len(replicas.isr))
        elif len(image.replicas) > 1:
            log = partition.log
            partition.replicas = LeaderReplicas(
                self._broker.node_id,
                image,
                log_end_offset=log.log_end_offset,
                min_insync_replicas=log.config.min_insync_replicas,
                lag_time_max_ms=self._config.replica_lag_time_max_ms,
                now_ms=self.now_ms(),
            )
            partition.uncommitted.clear()
        elif replicas is not None:  # the others were taken away
            partition.replicas = None
        if is_new_epoch:
            self._broker.waiting.disturbed(partition.end)
            self._broker.fetch_sessions.disturbed(partition)
        self._advance(partition)
        if partition.replicas is not None and partition.replicas.lacks_nothing_but_membership(
            partition.log.log_end_offset
        ):
            self._propose(partition, may_shrink=False)  # it caught up while another change was under way

    def config_changed(self, partition: Partition) -> None:
        """The topic's config is another: min.insync.replicas counts from now on, as it does for the controller."""
        if partition.replicas is not None:
            partition.replicas.min_insync_replicas = partition.log.config.min_insync_replicas
            self._advance(partition)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self.fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self.fetchers[leader_id] = ReplicaFetcher(self._broker, leader_id)
        return fetcher

    def _stop_fetching(self, partition: Partition) -> None:
        leader = self._following.pop(partition, None)
        if leader is not None:
            self.fetchers[leader].remove(partition)

    def look_at(self, leaders: Collection[int]) -> None:
        """Suspect those of these leaders whose connection has just been closed from their side."""
        for leader_id, fetcher in self.fetchers.items():
            if leader_id in leaders and fetcher.leader_has_gone():
                self._broker.departures.lost(leader_id, self._broker.image)

    def forget(self, partition: Partition) -> None:
        """The partition is not held any more."""
        self._low_watermark_moved.set()
        self._stop_fetching(partition)
        self._proposals.pop(partition, None)
        partition.replicas = None

    # -- the leader's side -------------------------------------------------------------------------------------------

    def check_min_isr(self, partition: Partition) -> None:
        """Raises ApiError NOT_ENOUGH_REPLICAS when acks=all could not be kept."""
        replicas = partition.replicas
        if replicas is not None and replicas.is_under_min_isr:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{partition.topic}-{partition.index} has {len(replicas.isr)} replicas in sync, "
                f"min.insync.replicas={replicas.min_isr_in_force}",
            )

    def appended(self, partition: Partition, base_offset: int, size_bytes: int) -> None:
        """Records were appended as leader: followers that wait for them are answered."""
        assert partition.replicas is not None
        partition.replicas.appended(base_offset, self.now_ms())
        log = partition.log
        partition.uncommitted.append((log.log_end_offset, size_bytes))
        if self._broker.waiting.waiting_for(partition.end):
            self._broker.waiting.advanced(partition.end, log.log_end_offset, size_bytes)
        if partition.sessions:
            is_throttled = self.leader_throttle.holds_for(partition.topic, partition.index)
            is_held_back = partial(self.holds_back, partition) if is_throttled else None
            self._broker.fetch_sessions.appended(partition, size_bytes, is_held_back)
        if len(partition.replicas.maximal_isr) == 1:  # nobody else is waited for, unless it keeps up
            self._advance(partition)

    def fetched(self, partition: Partition, replica: int, broker_epoch: int, wanted: FetchPartition) -> None:
        """A follower asks for more: it has what comes before.  Raises ApiError for a stranger."""
        replicas = partition.replicas
        if replicas is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._check_incarnation(replica, broker_epoch)
        log = partition.log
        known = replicas.followers.get(replica)
        if known is not None and wanted.log_start_offset > known.log_start_offset:
            self._low_watermark_moved.set()
        replicas.fetched(
            replica,
            wanted.fetch_offset,
            log_start_offset=wanted.log_start_offset,
            broker_epoch=broker_epoch,
            leader_end_offset=log.log_end_offset,
            now_ms=self.now_ms(),
        )
        if wanted.fetch_offset > log.high_watermark:
            self._advance(partition)
        if replica not in replicas.isr:
            self._propose(partition, may_shrink=False)

    # -- consumers at followers --------------------------------------------------------------------------------------

    def read_replica(self, partition: Partition, offset: int, rack: str, listener: str) -> int | None:
        """The follower that a consumer of that rack is to read from, which is then kept up to date; None = here."""
        replicas = partition.replicas
        if self._selector is None or replicas is None:
            return None
        now_ms, brokers = self.now_ms(), self._broker.image.brokers
        followers = [
            ReplicaView(replica, brokers[replica].rack, state.log_end_offset, now_ms - state.last_caught_up_ms)
            for replica, state in replicas.readable_at(offset)
            if self._is_live(replica) and brokers[replica].endpoint(listener) is not None
        ]
        leader = ReplicaView(self._broker.node_id, self._config.rack, partition.log.log_end_offset)
        chosen = self._selector(rack, leader, followers)
        if chosen is not None:
            replicas.followers[chosen].serves_consumers = True
        return chosen

    def learned(self, partition: Partition, high_watermark: int) -> None:
        """The leader has told how far it is committed what is held here: consumers that wait here are answered."""
        if high_watermark > partition.log.high_watermark:
            self._broker.readable(partition, _move_high_watermark(partition, high_watermark))

    # -- throttles ---------------------------------------------------------------------------------------------------

    def throttle(self, image: MetadataImage, topics: Iterable[str]) -> None:
        """Take up the rates that the brokers' configs say, and the throttled replicas of these topics."""
        for throttle, side in ((self.leader_throttle, "leader"), (self.follower_throttle, "follower")):
            name, broker_id = f"{side}.replication.throttled", self._broker.node_id
            rate = {**image.broker_configs(), **image.broker_configs(broker_id)}.get(f"{name}.rate")
            throttle.bytes_per_s = None if rate is None else int(rate)
            for topic in topics:
                throttle.hold_for(topic, image.topic_configs(topic).get(f"{name}.replicas", ""), broker_id)

    def holds_back(self, partition: Partition, replica: int, more_bytes: int = 0) -> bool:
        """Whether a follower that is not in sync has to wait for its records, after `more_bytes` for others."""
        throttle, replicas = self.leader_throttle, partition.replicas
        return (
            throttle.holds_for(partition.topic, partition.index)
            and (replicas is None or replica not in replicas.isr)
            and throttle.is_exceeded(self.now_ms(), more_bytes)
        )

    def waits_as_follower(self, partition: Partition) -> bool:
        """Whether the replica here is held back while the rate is exceeded: it is throttled, and not in sync."""
        topic = self._broker.image.topics.get(partition.topic)
        return (
            topic is not None
            and self.follower_throttle.holds_for(partition.topic, partition.index)
            and self._broker.node_id not in topic.partitions[partition.index].isr
        )

    # -- deleted records ---------------------------------------------------------------------------------------------

    def low_watermark(self, partition: Partition) -> int:
        """Where the log begins on every live replica."""
        log, replicas = partition.log, partition.replicas
        return log.log_start_offset if replicas is None else replicas.low_watermark(log.log_start_offset, self._is_live)

    async def deleted_everywhere(self, starts: Mapping[Partition, int], timeout_ms: int) -> None:
        """Wait until every live replica has dropped what lies before these offsets, or the time is over; for those of
        partitions that this broker leads no more nobody waits."""
        for partition in starts:
            if partition.replicas is not None:
                self._broker.fetch_sessions.disturbed(partition)
                self._broker.waiting.disturbed(partition.end)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while any(self.low_watermark(partition) < start for partition, start in starts.items()):
                    self._low_watermark_moved.clear()
                    await self._low_watermark_moved.wait()
        except TimeoutError:
            pass  # the caller looks at what was reached

    def _is_live(self, replica: int) -> bool:
        broker = self._broker.image.brokers.get(replica)
        return broker is not None and not broker.fenced

    def _check_incarnation(self, replica: int, broker_epoch: int) -> None:
        """An earlier incarnation of the follower may have had more on its disk (KIP-903), and who names none, or one
        that is not known here, is nobody yet: a client that says it were a replica would have records committed that
        no replica has."""
        if not self.is_registered(replica, broker_epoch):
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {replica} is not known at epoch {broker_epoch}")

    def is_registered(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that is a broker's present incarnation, by the image here."""
        broker = self._broker.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    def _advance(self, partition: Partition) -> None:
        """Move the high watermark, and answer who waited for that."""
        log, replicas = partition.log, partition.replicas
        if replicas is None:
            committed: int | None = log.log_end_offset
        else:
            committed = replicas.committed_offset(log.log_end_offset, self.now_ms(), self._is_eligible)
        if committed is None or committed <= log.high_watermark:
            return
        self._broker.committed(partition, _move_high_watermark(partition, committed))

    def _is_eligible(self, replica: int, broker_epoch: int | None) -> bool:
        broker = self._broker.image.brokers.get(replica)
        return (
            broker is not None
            and not broker.fenced
            and not broker.in_controlled_shutdown
            and broker_epoch is not None
            and broker_epoch in (-1, broker.epoch)
        )

    # -- in-sync replicas --------------------------------------------------------------------------------------------

    def check_lag(self) -> None:
        """Propose to drop followers that do not keep up; call it every replica.lag.time.max.ms / 2."""
        for partition in self._broker.partitions:
            if partition.replicas is not None:
                self._propose(partition, may_shrink=True)

    def brokers_changed(self) -> None:
        """Brokers came or went: who has everything and was only fenced may join, and who waited for the dead goes on.

        Nothing else would say so of a partition to which nothing is written: its followers have nothing to ask.
        """
        self._low_watermark_moved.set()
        for partition in self._broker.partitions:
            replicas = partition.replicas
            if replicas is not None and len(replicas.isr) < len(replicas.replicas):
                self._advance(partition)
                self._propose(partition, may_shrink=False)

    def _propose(self, partition: Partition, *, may_shrink: bool) -> None:
        replicas = partition.replicas
        assert replicas is not None
        proposal = replicas.propose(
            high_watermark=partition.log.high_watermark,
            log_end_offset=partition.log.log_end_offset,
            now_ms=self.now_ms(),
            is_eligible=self._is_eligible,
            may_shrink=may_shrink,
        )
        if proposal is not None:
            self._proposals[partition] = proposal
            if self._proposing is None:
                self._proposing = self._loop.create_task(self._send_proposals())

    async def _send_proposals(self) -> None:
        try:
            while self._proposals:
                proposals, self._proposals = self._proposals, {}
                try:
                    request = self._alter_request(proposals)
                    response = await self._broker.node.own_channel.request(request, _ALTER_TIMEOUT_MS)
                except NoControllerError as error:
                    self._tell_unchanged(error.message)
                    self._again(proposals)
                    continue
                except Exception:  # what is under way would be so for ever
                    logger.exception("in-sync replicas cannot be changed")
                    self._again(proposals)
                    await asyncio.sleep(_RETRY_S)
                    continue
                if not self._take_answers(proposals, response):
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._proposing = None

    def _tell_unchanged(self, why: str) -> None:
        if self._unchanged.is_due(self._loop.time()):
            logger.warning("in-sync replicas cannot be changed: %s", why)

    def _again(self, proposals: dict[Partition, IsrProposal]) -> None:
        for partition, proposal in proposals.items():
            if partition.replicas is not None and partition.replicas.proposal is proposal:
                self._proposals.setdefault(partition, proposal)

    def _alter_request(self, proposals: dict[Partition, IsrProposal]) -> AlterPartitionRequest:
        topics: dict[bytes, AlterPartitionRequestTopicData] = {}
        for partition, proposal in proposals.items():
            topic = topics.setdefault(
                partition.topic_id, AlterPartitionRequestTopicData(topic_id=partition.topic_id, partitions=[])
            )
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition.index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        BrokerState(
                            broker_id=replica,
                            broker_epoch=self._broker.lifecycle.epoch if replica == self._broker.node_id else epoch,
                        )
                        for replica, epoch in proposal.isr
                    ],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._broker.node_id, broker_epoch=self._broker.lifecycle.epoch, topics=list(topics.values())
        )

    def _take_answers(self, proposals: dict[Partition, IsrProposal], response: AlterPartitionResponse) -> bool:
        """False when something is to be asked again."""
        if response.error_code != ErrorCode.NONE:
            self._tell_unchanged(ErrorCode.of(response.error_code).name)
            self._again(proposals)
            return False
        if self._unchanged.is_over():
            logger.warning("in-sync replicas can be changed again")
        answers = {
            (topic.topic_id, item.partition_index): item for topic in response.topics for item in topic.partitions
        }
        settled = True
        for partition, proposal in proposals.items():
            answer = answers.get((partition.topic_id, partition.index))
            if answer is not None and not self._take_answer(partition, proposal, answer):
                self._again({partition: proposal})
                settled = False
        return settled

    def _take_answer(
        self, partition: Partition, proposal: IsrProposal, answer: AlterPartitionResponsePartitionData
    ) -> bool:
        replicas = partition.replicas
        if replicas is None or replicas.proposal is not proposal:
            return True  # the image has overtaken it
        code = ErrorCode.of(answer.error_code)
        if code is not ErrorCode.NONE:
            is_due_again = replicas.proposal_refused(code)
            self._advance(partition)  # who is not to join is not waited for
            return not is_due_again
        if answer.leader_epoch == replicas.leader_epoch:
            before = len(replicas.isr)
            replicas.proposal_confirmed(answer.isr, answer.partition_epoch)
            self._count_isr_change(before, len(replicas.isr))
            self._advance(partition)
        return True

    def _count_isr_change(self, before: int, after: int) -> None:
        self.isr_shrinks += after < before
        self.isr_expands += after > before

    def close(self) -> None:
        """Fetch nothing more, propose nothing more."""
        for fetcher in self.fetchers.values():
            fetcher.close()
        if self._proposing is not None:
            self._proposing.cancel()


def _move_high_watermark(partition: Partition, offset: int) -> int:
    """Raise the high watermark; returns how many bytes that commits, about, and one at least."""
    before = partition.log.high_watermark
    partition.log.high_watermark = offset
    committed = 0
    uncommitted = partition.uncommitted
    while uncommitted and before < offset:
        end, size_bytes = uncommitted.popleft()
        if end > offset:  # a follower gets many batches at once
            part = size_bytes * (offset - before) // (end - before)
            uncommitted.appendleft((end, size_bytes - part))
            size_bytes = part
        committed += size_bytes
        before = max(before, end)
    return max(committed, 1)
