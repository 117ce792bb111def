"""Mutation tests of the cluster. Each mutant disables one mechanism that protects acknowledged records.

`python tests/support/mutants.py NAME --seed N --count M` applies the mutant to the running code and searches for a seed
that catches the mutant. It then prints `caught by seed N: ...` and exits with status 0. The caller sets
PYTHONHASHSEED=0, because the iteration order of sets must be the same in every run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def vote_is_not_synced() -> None:
    from headrace_broker.server.kraft.metadata_log import FILE_NAME, MetadataLog

    def write_state(self: Any, state: Any) -> None:
        self._storage.write(f"{self._directory}/{FILE_NAME}", state.to_json())

    MetadataLog.write_state = write_state  # type: ignore[method-assign]


def leader_commits_unflushed_records() -> None:
    from headrace_broker.raft.leader import Leader

    def maybe_advance_high_watermark(self: Any) -> None:
        raft = self.raft
        ends = sorted([raft.log.log_end_offset, *(seen.end_offset for seen in self.progress.values())], reverse=True)
        offset = ends[raft.config.majority - 1]
        if offset > self.epoch_start_offset and raft.advance_high_watermark(offset):
            self._complete_fetches([fetch for fetch in self._delayed_fetches if fetch.high_watermark < offset])

    Leader._maybe_advance_high_watermark = maybe_advance_high_watermark  # type: ignore[method-assign]


def leader_commits_records_of_older_epochs() -> None:
    from headrace_broker.raft.leader import Leader

    def maybe_advance_high_watermark(self: Any) -> None:
        raft = self.raft
        ends = sorted([raft.log.flushed_offset, *(seen.end_offset for seen in self.progress.values())], reverse=True)
        offset = ends[raft.config.majority - 1]
        if offset >= 0 and raft.advance_high_watermark(offset):
            self._complete_fetches([fetch for fetch in self._delayed_fetches if fetch.high_watermark < offset])

    Leader._maybe_advance_high_watermark = maybe_advance_high_watermark  # type: ignore[method-assign]


def follower_fetches_before_it_flushes() -> None:
    from headrace_broker.raft import messages
    from headrace_broker.raft.follower import Follower

    def fetch(self: Any, now_ms: int) -> None:
        raft = self.raft
        if self._pending_request is not None or now_ms < self._next_fetch_ms:
            return
        if self._snapshot_download is not None:
            self._pending_request = messages.fetch_snapshot_request(raft.config, raft.epoch, *self._snapshot_download)
        else:
            self._pending_request = messages.fetch_request(raft.config, raft.epoch, raft.log_end, raft.high_watermark)
        raft.send(self.leader_id, self._pending_request)

    Follower._fetch = fetch  # type: ignore[method-assign]


def voter_votes_for_a_shorter_log() -> None:
    from headrace_broker.protocol.messages.vote import VoteRequest
    from headrace_broker.raft.core import Raft

    handle = Raft.handle_request

    def handle_with_longest_log(self: Any, request: Any, token: Any, now_ms: int) -> Any:
        if isinstance(request, VoteRequest):
            for topic in request.topics:
                for partition in topic.partitions:
                    partition.last_offset, partition.last_offset_epoch = 1 << 40, 1 << 30
        return handle(self, request, token, now_ms)

    Raft.handle_request = handle_with_longest_log  # type: ignore[method-assign]


def produce_is_acknowledged_on_append() -> None:
    from headrace_broker.server.handlers import produce

    produce._required_offsets = lambda results: {}


def high_watermark_is_the_leaders_log_end() -> None:
    from headrace_broker.replication.leader import LeaderReplicas

    LeaderReplicas.compute_high_watermark = (  # type: ignore[method-assign]
        lambda self, log_end_offset, now_ms, is_eligible: None if self.is_under_min_isr else log_end_offset
    )


def follower_truncates_to_its_high_watermark() -> None:
    from headrace_broker.server.replicas.replica_fetcher import ReplicaFetcher

    add = ReplicaFetcher.add

    def truncate_and_add(self: Any, partition: Any, leader_epoch: int) -> None:
        partition.log.truncate_to(partition.log.high_watermark, self._broker.now_ms())
        add(self, partition, leader_epoch)

    ReplicaFetcher.add = truncate_and_add  # type: ignore[method-assign]


def isr_shrinks_before_the_controller_confirms() -> None:
    from headrace_broker.replication.leader import LeaderReplicas

    propose = LeaderReplicas.propose_isr_change

    def propose_and_apply(self: Any, **arguments: Any) -> Any:
        proposal = propose(self, **arguments)
        if proposal is not None:
            self.maximal_isr = frozenset(replica for replica, _ in proposal.isr)
        return proposal

    LeaderReplicas.propose_isr_change = propose_and_apply  # type: ignore[method-assign]


def followers_serve_uncommitted_records() -> None:
    from headrace_broker.log.log import PartitionLog
    from headrace_broker.server.replicas.replica_fetcher import ReplicaFetcher

    append, read = ReplicaFetcher._append, PartitionLog.read

    def append_and_notify(self: Any, partition: Any, *arguments: Any) -> None:
        append(self, partition, *arguments)
        self._broker.complete_delayed_reads(partition, 1)

    def read_to_the_end(
        self: Any, offset: int, size: int, *, upper_bound_offset: int | None = None, **more: Any
    ) -> Any:
        return read(self, offset, size, upper_bound_offset=self.log_end_offset, **more)

    ReplicaFetcher._append = append_and_notify  # type: ignore[method-assign]
    PartitionLog.read = read_to_the_end  # type: ignore[method-assign]


def follower_ignores_epochs() -> None:
    from headrace_broker.replication import follower

    next_fetch = follower.next_fetch

    def without_epochs(*arguments: Any) -> Any:
        partition = next_fetch(*arguments)
        partition.current_leader_epoch = partition.last_fetched_epoch = -1
        return partition

    follower.next_fetch = without_epochs


def followers_keep_no_producer_state() -> None:
    from headrace_broker.log import log

    append_as_follower, replay = log.PartitionLog.append_as_follower, log.replay_producer
    following: list[bool] = []

    def append(self: Any, *arguments: Any, **more: Any) -> Any:
        following.append(True)
        try:
            return append_as_follower(self, *arguments, **more)
        finally:
            following.pop()

    log.PartitionLog.append_as_follower = append  # type: ignore[method-assign]
    log.replay_producer = lambda *arguments: None if following else replay(*arguments)


def broker_stays_in_isr_after_unclean_shutdown() -> None:
    from headrace_broker.metadata import brokers

    remove_broker_from_isrs = brokers.remove_broker_from_isrs
    brokers.remove_broker_from_isrs = (  # type: ignore[assignment]
        lambda image, broker_id, topic_configs, **more: (
            [] if "unclean_shutdown" in more else remove_broker_from_isrs(image, broker_id, topic_configs)
        )
    )


def elections_are_always_unclean() -> None:
    from headrace_broker.metadata import leadership
    from headrace_broker.metadata.partition_changes import Election

    partition_change = leadership.partition_change

    def unclean(*arguments: Any) -> Any:
        change = partition_change(*arguments)
        change.election = Election.UNCLEAN
        return change

    leadership.partition_change = unclean


def leader_under_min_isr_commits() -> None:
    from headrace_broker.replication.leader import LeaderReplicas

    LeaderReplicas.is_under_min_isr = False  # type: ignore[assignment, method-assign]


def offsets_are_acknowledged_on_append() -> None:
    from headrace_broker.coordinator.runner import ShardRunner

    ShardRunner._is_committed = True  # type: ignore[assignment, method-assign]


def cleaner_compacts_beyond_the_high_watermark() -> None:
    from headrace_broker.server.cleaning import cleaner

    find_dirty_range = cleaner.find_dirty_range
    cleaner.find_dirty_range = lambda *arguments, **more: find_dirty_range(
        *arguments, **more | {"last_stable_offset": more["log_end_offset"]}
    )


def cleaner_removes_tombstones_immediately() -> None:
    from headrace_broker.log.compaction.batch_filter import BatchFilter

    retained_indexes = BatchFilter._retained_indexes

    def without_tombstones(self: Any, header: Any, columns: Any) -> list[int]:
        return [index for index in retained_indexes(self, header, columns) if columns.values[index] is not None]

    BatchFilter._retained_indexes = without_tombstones  # type: ignore[method-assign]


def retention_deletes_beyond_the_high_watermark() -> None:
    from headrace_broker.log import segmented_log

    count_expired = segmented_log.count_expired
    segmented_log.count_expired = lambda *arguments, **more: count_expired(
        *arguments, **more | {"high_watermark": 1 << 40}
    )


@dataclass(frozen=True)
class Mutant:
    """A mutant: `apply` disables one mechanism, and a run of `harness` with the seed `seed` then fails.

    `faults` and `topics` restrict the faults and topics of the run. An empty string means no restriction.
    """

    apply: Callable[[], None]
    seed: int
    harness: str = "cluster"
    faults: str = ""
    topics: str = ""


_LAGGING_THEN_KILLED = "kill,partition,pause,slow_network,isolate_from_brokers"
"""Replicas lag, and then the leader that is ahead of them is killed."""

MUTANTS = {
    mutant.apply.__name__: mutant
    for mutant in (
        Mutant(vote_is_not_synced, 5, faults="power_loss_after_vote,kill"),
        Mutant(leader_commits_unflushed_records, 66, "quorum"),
        Mutant(leader_commits_records_of_older_epochs, 0, "figure 8"),
        Mutant(follower_fetches_before_it_flushes, 19, "quorum"),
        Mutant(voter_votes_for_a_shorter_log, 11, "quorum"),
        Mutant(produce_is_acknowledged_on_append, 0, faults=_LAGGING_THEN_KILLED),
        Mutant(high_watermark_is_the_leaders_log_end, 0, faults=_LAGGING_THEN_KILLED),
        Mutant(follower_truncates_to_its_high_watermark, 2, faults=_LAGGING_THEN_KILLED),
        Mutant(isr_shrinks_before_the_controller_confirms, 7, faults="isolate_from_controller,partition,pause"),
        Mutant(followers_serve_uncommitted_records, 1, faults=_LAGGING_THEN_KILLED),
        Mutant(follower_ignores_epochs, 0, faults="kill,partition,pause"),
        Mutant(followers_keep_no_producer_state, 1, faults="kill,reset"),
        Mutant(broker_stays_in_isr_after_unclean_shutdown, 0, faults="power_loss,power_loss_after_append"),
        Mutant(elections_are_always_unclean, 16, faults="kill,stop,isolate_from_brokers,slow_network"),
        Mutant(leader_under_min_isr_commits, 3, faults="kill,stop"),
        Mutant(offsets_are_acknowledged_on_append, 12, faults=_LAGGING_THEN_KILLED),
        Mutant(cleaner_compacts_beyond_the_high_watermark, 0, faults=_LAGGING_THEN_KILLED, topics="c"),
        Mutant(cleaner_removes_tombstones_immediately, 0, faults="kill", topics="c"),
        Mutant(retention_deletes_beyond_the_high_watermark, 17, faults=_LAGGING_THEN_KILLED, topics="r"),
    )
}


def _run_cluster(seed: int, mutant: Mutant) -> None:
    from headrace_broker.simulation.run import run_seed

    faults, topics = (tuple(names.split(",")) if names else () for names in (mutant.faults, mutant.topics))
    run_seed(seed, faults=faults, topics=topics)


def _run_quorum(seed: int, mutant: Mutant) -> None:
    from support.raft_cluster import run_seed

    run_seed(seed)


def _run_figure_8(seed: int, mutant: Mutant) -> None:
    from support.raft_cluster import run_figure_8

    run_figure_8(seed)


_HARNESSES = {"cluster": _run_cluster, "quorum": _run_quorum, "figure 8": _run_figure_8}


def find_catching_seed(name: str, first: int, count: int, seconds_max: float = 1e9) -> tuple[int, str] | None:
    """Run the mutant `name` with `count` seeds, beginning with `first`. Start no new seed after `seconds_max`.

    Return (seed, error) of the first seed whose run fails, or None if no run fails.

    The mutant stays applied to this process.
    """
    import time

    mutant = MUTANTS[name]
    mutant.apply()
    run = _HARNESSES[mutant.harness]
    end = time.monotonic() + seconds_max
    for seed in range(first, first + count):
        try:
            run(seed, mutant)
        except Exception as error:  # noqa: BLE001 - broken code may fail in any way
            return seed, f"{type(error).__name__}: {error}"
        if time.monotonic() > end:
            break
    return None


def main() -> int:
    """Search for a seed that catches the mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(MUTANTS))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    arguments = parser.parse_args()
    first = MUTANTS[arguments.name].seed if arguments.seed is None else arguments.seed
    found = find_catching_seed(arguments.name, first, arguments.count)
    print(f"{arguments.name}: " + ("not caught" if found is None else f"caught by seed {found[0]}: {found[1]}"))
    return 1 if found is None else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
