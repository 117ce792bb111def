"""Replication of this broker's partitions: leaders and followers, high watermarks and in-sync replicas.

For each partition that this broker leads, `Replication` has a `LeaderReplicas` and advances the high watermark. The
partitions that this broker follows are fetched by one `ReplicaFetcher` per leader. ISR changes of all partitions are
sent to the controller together, in one AlterPartition request at a time. All methods run on the event loop.
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
from headrace_broker.replication.throttle import ReplicationThrottle
from headrace_broker.server.log_throttle import LogThrottle
from headrace_broker.server.network.controller_channel import NoControllerError
from headrace_broker.server.replicas.partitions import Partition
from headrace_broker.server.replicas.replica_fetcher import ReplicaFetcher

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker

logger = logging.getLogger(__name__)

_ALTER_TIMEOUT_MS = 30_000
_RETRY_S = 0.05


class Replication:
    """Replication state of all partitions on this broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._config = broker.config
        self._loop = asyncio.get_running_loop()
        self.fetchers: dict[int, ReplicaFetcher] = {}
        self._fetched_from: dict[Partition, int] = {}
        self._proposals: dict[Partition, IsrProposal] = {}
        self._sending: asyncio.Task[None] | None = None
        self._alter_failure_throttle = LogThrottle()
        self.isr_shrinks = 0
        self.isr_expands = 0
        self._low_watermark_moved = asyncio.Event()
        self._selector = SELECTORS.get(self._config.replica_selector_class or "")
        samples, sample_ms = (
            self._config.replication_quota_window_num,
            self._config.replication_quota_window_size_seconds * 1000,
        )
        self.leader_throttle = ReplicationThrottle(samples, sample_ms)
        self.follower_throttle = ReplicationThrottle(samples, sample_ms)

    def now_ms(self) -> int:
        """Return the monotonic time that is used to measure replica lag, in milliseconds."""
        return int(self._loop.time() * 1000)

    # -- following the image -----------------------------------------------------------------------------------------

    def on_partition_change(self, partition: Partition, image: PartitionImage, *, is_new_epoch: bool) -> None:
        """Apply the image of a partition: become its leader or follower, or update its ISR."""
        self._low_watermark_moved.set()
        if image.leader == self._broker.node_id:
            self._stop_fetching(partition)
            self._lead(partition, image, is_new_epoch=is_new_epoch)
            return
        if partition.replicas is not None or is_new_epoch:
            partition.replicas = None
            partition.uncommitted.clear()
            self._proposals.pop(partition, None)
            self._broker.purgatory.force_complete(partition)
            self._broker.purgatory.force_complete(partition.end_key)
            self._broker.fetch_sessions.force_complete(partition)
        if image.leader < 0:
            self._stop_fetching(partition)
        elif is_new_epoch or self._fetched_from.get(partition) != image.leader:
            self._stop_fetching(partition)
            self._fetched_from[partition] = image.leader
            self._fetcher(image.leader).add(partition, image.leader_epoch)

    def _lead(self, partition: Partition, image: PartitionImage, *, is_new_epoch: bool) -> None:
        replicas = partition.replicas
        if replicas is not None and not is_new_epoch:
            before = len(replicas.isr)
            replicas.on_image_changed(image, self.now_ms())
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
        elif replicas is not None:  # the partition has no other replicas any more
            partition.replicas = None
        if is_new_epoch:
            self._broker.purgatory.force_complete(partition.end_key)
            self._broker.fetch_sessions.force_complete(partition)
        self._maybe_advance_high_watermark(partition)
        if partition.replicas is not None and partition.replicas.has_caught_up_follower_outside_isr(
            partition.log.log_end_offset
        ):
            self._propose(partition, may_shrink=False)  # a follower caught up while another ISR change was pending

    def on_config_change(self, partition: Partition) -> None:
        """Apply a changed min.insync.replicas immediately, as the controller does."""
        if partition.replicas is not None:
            partition.replicas.min_insync_replicas = partition.log.config.min_insync_replicas
            self._maybe_advance_high_watermark(partition)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self.fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self.fetchers[leader_id] = ReplicaFetcher(self._broker, leader_id)
        return fetcher

    def _stop_fetching(self, partition: Partition) -> None:
        leader = self._fetched_from.pop(partition, None)
        if leader is not None:
            self.fetchers[leader].remove(partition)

    def suspect_disconnected_leaders(self, leaders: Collection[int]) -> None:
        """Mark each of these leaders as suspected dead if it has closed its connection to this broker's fetcher."""
        for leader_id, fetcher in self.fetchers.items():
            if leader_id in leaders and fetcher.has_leader_disconnected():
                self._broker.suspected_brokers.suspect(leader_id, self._broker.image)

    def remove(self, partition: Partition) -> None:
        """Stop replicating a partition that was removed from this broker."""
        self._low_watermark_moved.set()
        self._stop_fetching(partition)
        self._proposals.pop(partition, None)
        partition.replicas = None

    # -- leader ------------------------------------------------------------------------------------------------------

    def check_min_isr(self, partition: Partition) -> None:
        """Raise ApiError NOT_ENOUGH_REPLICAS if the ISR is too small for acks=all."""
        replicas = partition.replicas
        if replicas is not None and replicas.is_under_min_isr:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"Partition {partition.topic}-{partition.index} has {len(replicas.isr)} in-sync replicas, but "
                f"min.insync.replicas requires {replicas.effective_min_isr}.",
            )

    def on_append(self, partition: Partition, base_offset: int, size_bytes: int) -> None:
        """Update the replication state after an append as leader, and complete delayed fetches of followers.

        The leader has appended `size_bytes` of records, which begin at `base_offset`.
        """
        assert partition.replicas is not None
        partition.replicas.on_appended(base_offset, self.now_ms())
        log = partition.log
        partition.uncommitted.append((log.log_end_offset, size_bytes))
        if self._broker.purgatory.is_watched(partition.end_key):
            self._broker.purgatory.try_complete(partition.end_key, log.log_end_offset, size_bytes)
        if partition.sessions:
            is_throttled = self.leader_throttle.is_throttled(partition.topic, partition.index)
            is_follower_throttled = partial(self.is_follower_throttled, partition) if is_throttled else None
            self._broker.fetch_sessions.on_append(partition, size_bytes, is_follower_throttled)
        if len(partition.replicas.maximal_isr) == 1:  # only the leader is in the ISR: records may be committed already
            self._maybe_advance_high_watermark(partition)

    def on_follower_fetch(self, partition: Partition, replica: int, broker_epoch: int, wanted: FetchPartition) -> None:
        """Update a follower's state from its fetch: the follower has all records before the fetch offset.

        Raises ApiError if this broker is not the leader, or the follower is not a registered replica.
        """
        replicas = partition.replicas
        if replicas is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._check_broker_epoch(replica, broker_epoch)
        log = partition.log
        known = replicas.followers.get(replica)
        if known is not None and wanted.log_start_offset > known.log_start_offset:
            self._low_watermark_moved.set()
        replicas.update_fetch_state(
            replica,
            wanted.fetch_offset,
            log_start_offset=wanted.log_start_offset,
            broker_epoch=broker_epoch,
            leader_end_offset=log.log_end_offset,
            now_ms=self.now_ms(),
        )
        if wanted.fetch_offset > log.high_watermark:
            self._maybe_advance_high_watermark(partition)
        if replica not in replicas.isr:
            self._propose(partition, may_shrink=False)

    # -- consumers that fetch from followers (KIP-392) ---------------------------------------------------------------

    def read_replica(self, partition: Partition, offset: int, rack: str, listener: str) -> int | None:
        """Return the follower from which a consumer in `rack` should read.

        Returns None if the consumer should read from this leader. `offset` is the consumer's fetch offset. The
        follower's log must contain this offset. `listener` is the consumer's listener. The follower must have an
        endpoint for this listener. After this method has returned a follower, this leader immediately sends each new
        high watermark to this follower.
        """
        replicas = partition.replicas
        if self._selector is None or replicas is None:
            return None
        now_ms, brokers = self.now_ms(), self._broker.image.brokers
        followers = [
            ReplicaView(replica, brokers[replica].rack, state.log_end_offset, now_ms - state.last_caught_up_ms)
            for replica, state in replicas.in_sync_followers_with_offset(offset)
            if self._is_live(replica) and brokers[replica].endpoint(listener) is not None
        ]
        leader = ReplicaView(self._broker.node_id, self._config.rack, partition.log.log_end_offset)
        chosen = self._selector(rack, leader, followers)
        if chosen is not None:
            replicas.followers[chosen].serves_consumers = True
        return chosen

    def on_leader_high_watermark(self, partition: Partition, high_watermark: int) -> None:
        """Advance this follower's high watermark to the leader's high watermark.

        This also completes delayed fetches of consumers.
        """
        if high_watermark > partition.log.high_watermark:
            self._broker.complete_delayed_reads(partition, _advance_high_watermark(partition, high_watermark))

    # -- throttles ---------------------------------------------------------------------------------------------------

    def update_throttles(self, image: MetadataImage, topics: Iterable[str]) -> None:
        """Apply the throttle configs.

        The broker configs contain the throttle rates. The topic configs of `topics` contain the throttled replicas.
        """
        for throttle, side in ((self.leader_throttle, "leader"), (self.follower_throttle, "follower")):
            name, broker_id = f"{side}.replication.throttled", self._broker.node_id
            rate = {**image.broker_configs(), **image.broker_configs(broker_id)}.get(f"{name}.rate")
            throttle.bytes_per_s = None if rate is None else int(rate)
            for topic in topics:
                throttle.set_throttled_replicas(
                    topic, image.topic_configs(topic).get(f"{name}.replicas", ""), broker_id
                )

    def is_follower_throttled(self, partition: Partition, replica: int, more_bytes: int = 0) -> bool:
        """Whether the throttle now withholds the partition's records from the follower `replica`.

        `more_bytes` is the number of bytes of throttled partitions that are already in the response.
        """
        throttle, replicas = self.leader_throttle, partition.replicas
        return (
            throttle.is_throttled(partition.topic, partition.index)
            and (replicas is None or replica not in replicas.isr)
            and throttle.is_exceeded(self.now_ms(), more_bytes)
        )

    def is_throttled_as_follower(self, partition: Partition) -> bool:
        """Whether the follower throttle applies to this broker's replica.

        True if the partition's replica on this broker is configured as throttled and is not in the ISR.
        """
        topic = self._broker.image.topics.get(partition.topic)
        return (
            topic is not None
            and self.follower_throttle.is_throttled(partition.topic, partition.index)
            and self._broker.node_id not in topic.partitions[partition.index].isr
        )

    # -- deleted records ---------------------------------------------------------------------------------------------

    def low_watermark(self, partition: Partition) -> int:
        """Return the lowest log start offset of the partition's live replicas."""
        log, replicas = partition.log, partition.replicas
        return log.log_start_offset if replicas is None else replicas.low_watermark(log.log_start_offset, self._is_live)

    async def wait_until_deleted(self, starts: Mapping[Partition, int], timeout_ms: int) -> None:
        """Wait until all live replicas have deleted the records before the offsets in `starts`, or until the timeout.

        Does not wait for replicas of partitions that this broker no longer leads.
        """
        for partition in starts:
            if partition.replicas is not None:
                self._broker.fetch_sessions.force_complete(partition)
                self._broker.purgatory.force_complete(partition.end_key)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while any(self.low_watermark(partition) < start for partition, start in starts.items()):
                    self._low_watermark_moved.clear()
                    await self._low_watermark_moved.wait()
        except TimeoutError:
            pass  # the caller checks the low watermarks

    def _is_live(self, replica: int) -> bool:
        broker = self._broker.image.brokers.get(replica)
        return broker is not None and not broker.fenced

    def _check_broker_epoch(self, replica: int, broker_epoch: int) -> None:
        """Raise ApiError unless the fetch comes from the follower's current incarnation (KIP-903).

        A fetch of an earlier incarnation is rejected. Its fetch offset may be above the log end offset of the current
        incarnation. A fetch without a registered broker epoch is rejected, too. Otherwise, a client that claims to be a
        replica could advance the high watermark past records that no follower has.
        """
        if not self.is_registered(replica, broker_epoch):
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {replica} sent broker epoch {broker_epoch}, but is not registered with this epoch",
            )

    def is_registered(self, broker_id: int, broker_epoch: int) -> bool:
        """Return whether the image contains the broker with this broker epoch."""
        broker = self._broker.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    def _maybe_advance_high_watermark(self, partition: Partition) -> None:
        """Advance a leader's high watermark if more records are committed.

        Also complete the requests that wait for the new high watermark.
        """
        log, replicas = partition.log, partition.replicas
        if replicas is None:
            committed: int | None = log.log_end_offset
        else:
            committed = replicas.compute_high_watermark(log.log_end_offset, self.now_ms(), self._is_eligible)
        if committed is None or committed <= log.high_watermark:
            return
        self._broker.on_high_watermark_advanced(partition, _advance_high_watermark(partition, committed))

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
        """Ask the controller to remove lagging followers from the ISR.

        Call this method every replica.lag.time.max.ms / 2.
        """
        for partition in self._broker.partitions:
            if partition.replicas is not None:
                self._propose(partition, may_shrink=True)

    def on_brokers_change(self) -> None:
        """Re-evaluate the ISR and the high watermark of partitions after brokers were fenced, unfenced or registered.

        A caught-up follower that was unfenced may join the ISR, and a fenced follower no longer delays the high
        watermark. Partitions without new records need this call, because their followers send no fetch that would
        update the leader's state.
        """
        self._low_watermark_moved.set()
        for partition in self._broker.partitions:
            replicas = partition.replicas
            if replicas is not None and len(replicas.isr) < len(replicas.replicas):
                self._maybe_advance_high_watermark(partition)
                self._propose(partition, may_shrink=False)

    def _propose(self, partition: Partition, *, may_shrink: bool) -> None:
        replicas = partition.replicas
        assert replicas is not None
        proposal = replicas.propose_isr_change(
            high_watermark=partition.log.high_watermark,
            log_end_offset=partition.log.log_end_offset,
            now_ms=self.now_ms(),
            is_eligible=self._is_eligible,
            may_shrink=may_shrink,
        )
        if proposal is not None:
            self._proposals[partition] = proposal
            if self._sending is None:
                self._sending = self._loop.create_task(self._send_proposals())

    async def _send_proposals(self) -> None:
        try:
            while self._proposals:
                proposals, self._proposals = self._proposals, {}
                try:
                    request = self._alter_request(proposals)
                    response = await self._broker.node.own_channel.request(request, _ALTER_TIMEOUT_MS)
                except NoControllerError as error:
                    self._log_alter_failure(error.message)
                    self._requeue(proposals)
                    continue
                except Exception:  # retry, because otherwise the ISR changes would stay pending forever
                    logger.exception("AlterPartition request failed with an unexpected error, retrying")
                    self._requeue(proposals)
                    await asyncio.sleep(_RETRY_S)
                    continue
                if not self._handle_alter_response(proposals, response):
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._sending = None

    def _log_alter_failure(self, reason: str) -> None:
        if self._alter_failure_throttle.should_log(self._loop.time()):
            logger.warning(
                "AlterPartition request failed, so in-sync replicas cannot change until a retry succeeds: %s", reason
            )

    def _requeue(self, proposals: dict[Partition, IsrProposal]) -> None:
        for partition, proposal in proposals.items():
            if partition.replicas is not None and partition.replicas.pending_proposal is proposal:
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

    def _handle_alter_response(self, proposals: dict[Partition, IsrProposal], response: AlterPartitionResponse) -> bool:
        """Handle the response to the AlterPartition request for the ISR changes in `proposals`.

        Return False if an ISR change has to be requested again.
        """
        if response.error_code != ErrorCode.NONE:
            self._log_alter_failure(ErrorCode.from_code(response.error_code).name)
            self._requeue(proposals)
            return False
        if self._alter_failure_throttle.reset():
            logger.warning("AlterPartition request succeeded after failures, so in-sync replicas can change again")
        results = {
            (topic.topic_id, item.partition_index): item for topic in response.topics for item in topic.partitions
        }
        is_complete = True
        for partition, proposal in proposals.items():
            result = results.get((partition.topic_id, partition.index))
            if result is not None and not self._handle_alter_result(partition, proposal, result):
                self._requeue({partition: proposal})
                is_complete = False
        return is_complete

    def _handle_alter_result(
        self, partition: Partition, proposal: IsrProposal, result: AlterPartitionResponsePartitionData
    ) -> bool:
        replicas = partition.replicas
        if replicas is None or replicas.pending_proposal is not proposal:
            return True  # a newer image has made the ISR change obsolete
        code = ErrorCode.from_code(result.error_code)
        if code is not ErrorCode.NONE:
            should_retry = replicas.on_proposal_rejected(code)
            # the high watermark does not wait for the rejected replica any more
            self._maybe_advance_high_watermark(partition)
            return not should_retry
        if result.leader_epoch == replicas.leader_epoch:
            before = len(replicas.isr)
            replicas.on_proposal_accepted(result.isr, result.partition_epoch)
            self._count_isr_change(before, len(replicas.isr))
            self._maybe_advance_high_watermark(partition)
        return True

    def _count_isr_change(self, before: int, after: int) -> None:
        self.isr_shrinks += after < before
        self.isr_expands += after > before

    def close(self) -> None:
        """Stop all fetchers, and cancel the AlterPartition request in flight."""
        for fetcher in self.fetchers.values():
            fetcher.close()
        if self._sending is not None:
            self._sending.cancel()


def _advance_high_watermark(partition: Partition, offset: int) -> int:
    """Advance the partition's high watermark to `offset`.

    Return the approximate size of the newly committed records, at least 1.
    """
    before = partition.log.high_watermark
    partition.log.advance_high_watermark(offset)
    committed = 0
    uncommitted = partition.uncommitted
    while uncommitted and before < offset:
        end, size_bytes = uncommitted.popleft()
        if end > offset:  # on a follower, one entry contains all batches of a response
            part = size_bytes * (offset - before) // (end - before)
            uncommitted.appendleft((end, size_bytes - part))
            size_bytes = part
        committed += size_bytes
        before = max(before, end)
    return max(committed, 1)
