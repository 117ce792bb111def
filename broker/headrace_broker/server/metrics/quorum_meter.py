"""Measures the metadata quorum and leader elections for the metrics page.

`QuorumMeter` replaces the quorum's `append`, its log's `append_as_follower` and `sync`, and the `send` of `Peers` with
functions that also measure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from headrace_broker.metadata.delta import MetadataDelta
from headrace_broker.metadata.image import MetadataImage, PartitionImage
from headrace_broker.protocol.metadata_records import MetadataRecord
from headrace_broker.protocol.notation import Request, Response
from headrace_broker.server.kraft.peers import OnResponse
from headrace_broker.server.metrics.meter import Latencies
from headrace_broker.server.metrics.sampled_rates import Average, Rate

if TYPE_CHECKING:
    from headrace_broker.server.node import Node


class QuorumMeter:
    """The quorum metrics of one node since it started. All methods run on the event loop, except `record_flush`."""

    def __init__(self, node: Node) -> None:
        now_s = perf_counter()
        self.appended, self.fetched = Rate(now_s), Rate(now_s)
        self.requests, self.responses = Rate(now_s), Rate(now_s)
        self.commit_ms = Average(now_s)
        self.commit_ms_max = 0.0
        self.flushes = Latencies()
        self.unclean_elections = 0
        self.eligible_elections = 0
        self._node = node
        quorum, log, peers = node.quorum, node.quorum.log, node.quorum.peers
        self._log = log
        self._append, self._send = quorum.append, peers.send
        self._append_as_follower, self._sync = log.append_as_follower, log.sync
        quorum.append = self._metered_append  # type: ignore[method-assign]
        log.append_as_follower = self._metered_append_as_follower  # type: ignore[method-assign]
        log.sync = self._metered_sync  # type: ignore[method-assign]
        peers.send = self._metered_send  # type: ignore[method-assign]
        node.committed.subscribe(self._on_metadata_change)

    def record_flush(self, seconds: float) -> None:
        """Add the duration of one fsync of a log to the metrics; called from any thread."""
        self.flushes.record(seconds)

    # -- the metadata log ----------------------------------------------------------------------------------------

    def _metered_append(self, records: Sequence[MetadataRecord]) -> asyncio.Future[None]:
        started_s = perf_counter()
        committed = self._append(records)
        self.appended.add(len(records), started_s)

        def record_commit(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                now_s = perf_counter()
                took_ms = (now_s - started_s) * 1000
                self.commit_ms.add(took_ms, now_s)
                self.commit_ms_max = max(self.commit_ms_max, took_ms)

        committed.add_done_callback(record_commit)
        return committed

    def _metered_append_as_follower(self, records: bytes) -> None:
        before = self._log.log_end_offset
        self._append_as_follower(records)
        self.fetched.add(self._log.log_end_offset - before, perf_counter())

    def _metered_sync(self, paths: Sequence[str]) -> None:
        started_s = perf_counter()
        self._sync(paths)
        self.record_flush(perf_counter() - started_s)

    def _metered_send(self, node_id: int, request: Request[Any], on_response: OnResponse) -> None:
        self.requests.add(1, perf_counter())

        def count_response(response: Response | None) -> None:
            if response is not None:
                self.responses.add(1, perf_counter())
            on_response(response)

        self._send(node_id, request, count_response)

    # -- elections -----------------------------------------------------------------------------------------------

    def _on_metadata_change(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Count leader elections.

        Do not count elections while this node is still replaying the old records of the metadata log.
        """
        if not self._node.watch.has_caught_up:
            return
        for name in delta.changed_topics:
            before, after = delta.base.topics.get(name), image.topics.get(name)
            if before is None or after is None or before.topic_id != after.topic_id:
                continue
            for old, new in zip(before.partitions, after.partitions, strict=False):
                if new.leader not in (old.leader, -1):
                    self._count_election(old, new.leader)

    def _count_election(self, old: PartitionImage, leader: int) -> None:
        if leader in old.isr:
            return
        if leader in old.eligible_leader_replicas:
            self.eligible_elections += 1
        else:
            self.unclean_elections += 1
