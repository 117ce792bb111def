"""The cluster, broken on purpose: each mutant takes away one thing that keeps what was acknowledged.

`python tests/support/mutants.py NAME --seed N --count M` breaks the running code and looks for a seed that notices;
status 0 and a line `caught by seed N: ...` when there is one.  The order of sets must be the same in every run, so the
caller sets PYTHONHASHSEED=0.
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


def leader_counts_what_it_has_not_flushed() -> None:
    from headrace_broker.raft.leader import Leader

    def commit(self: Any) -> None:
        raft = self.raft
        ends = sorted([raft.log.log_end_offset, *(seen.end_offset for seen in self.progress.values())], reverse=True)
        offset = ends[raft.config.majority - 1]
        if offset > self.epoch_start_offset and raft.advance_high_watermark(offset):
            self._answer([waiting for waiting in self._waiting if waiting.high_watermark < offset])

    Leader._commit = commit  # type: ignore[method-assign]


def leader_commits_older_epochs() -> None:
    from headrace_broker.raft.leader import Leader

    def commit(self: Any) -> None:
        raft = self.raft
        ends = sorted([raft.log.flushed_offset, *(seen.end_offset for seen in self.progress.values())], reverse=True)
        offset = ends[raft.config.majority - 1]
        if offset >= 0 and raft.advance_high_watermark(offset):
            self._answer([waiting for waiting in self._waiting if waiting.high_watermark < offset])

    Leader._commit = commit  # type: ignore[method-assign]


def follower_answers_before_it_flushed() -> None:
    from headrace_broker.raft import messages
    from headrace_broker.raft.follower import Follower

    def ask(self: Any, now_ms: int) -> None:
        raft = self.raft
        if self._asked is not None or now_ms < self._fetch_ms:
            return
        if self._loading is not None:
            self._asked = messages.snapshot_request(raft.config, raft.epoch, *self._loading)
        else:
            self._asked = messages.fetch_request(raft.config, raft.epoch, raft.end, raft.high_watermark)
        raft.send(self.leader_id, self._asked)

    Follower._ask = ask  # type: ignore[method-assign]


def voter_elects_a_shorter_log() -> None:
    from headrace_broker.protocol.messages.vote import VoteRequest
    from headrace_broker.raft.core import Raft

    handle = Raft.handle

    def handle_all_alike(self: Any, request: Any, token: Any, now_ms: int) -> Any:
        if isinstance(request, VoteRequest):
            for topic in request.topics:
                for partition in topic.partitions:
                    partition.last_offset, partition.last_offset_epoch = 1 << 40, 1 << 30
        return handle(self, request, token, now_ms)

    Raft.handle = handle_all_alike  # type: ignore[method-assign]


def produce_is_acknowledged_on_append() -> None:
    from headrace_broker.server.handlers import produce

    produce._not_replicated = lambda results: {}


def high_watermark_is_the_leaders_end() -> None:
    from headrace_broker.replication.leader import LeaderReplicas

    LeaderReplicas.committed_offset = (  # type: ignore[method-assign]
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

    propose = LeaderReplicas.propose

    def propose_and_believe(self: Any, **arguments: Any) -> Any:
        proposal = propose(self, **arguments)
        if proposal is not None:
            self.maximal_isr = frozenset(replica for replica, _ in proposal.isr)
        return proposal

    LeaderReplicas.propose = propose_and_believe  # type: ignore[method-assign]


def followers_show_what_is_not_committed() -> None:
    from headrace_broker.log.log import PartitionLog
    from headrace_broker.server.replicas.replica_fetcher import ReplicaFetcher

    append, read = ReplicaFetcher._append, PartitionLog.read

    def append_and_tell(self: Any, partition: Any, *arguments: Any) -> None:
        append(self, partition, *arguments)
        self._broker.readable(partition, 1)

    def read_to_the_end(
        self: Any, offset: int, size: int, *, upper_bound_offset: int | None = None, **more: Any
    ) -> Any:
        return read(self, offset, size, upper_bound_offset=self.log_end_offset, **more)

    ReplicaFetcher._append = append_and_tell  # type: ignore[method-assign]
    PartitionLog.read = read_to_the_end  # type: ignore[method-assign]


def follower_ignores_epochs() -> None:
    from headrace_broker.replication import follower

    next_fetch = follower.next_fetch

    def without_epochs(*arguments: Any) -> Any:
        wanted = next_fetch(*arguments)
        wanted.current_leader_epoch = wanted.last_fetched_epoch = -1
        return wanted

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


def unclean_restart_stays_in_sync() -> None:
    from headrace_broker.metadata import brokers

    leaves = brokers.broker_leaves
    brokers.broker_leaves = (  # type: ignore[assignment]
        lambda image, broker_id, rules, **more: [] if "unclean_shutdown" in more else leaves(image, broker_id, rules)
    )


def anybody_may_lead() -> None:
    from headrace_broker.metadata import leadership
    from headrace_broker.metadata.partition_changes import Election

    change_of = leadership.change_of

    def unclean(*arguments: Any) -> Any:
        change = change_of(*arguments)
        change.election = Election.UNCLEAN
        return change

    leadership.change_of = unclean


def leader_under_min_isr_commits() -> None:
    from headrace_broker.replication.leader import LeaderReplicas

    LeaderReplicas.is_under_min_isr = False  # type: ignore[assignment, method-assign]


def offsets_are_acknowledged_on_append() -> None:
    from headrace_broker.coordinator.runner import ShardRunner

    ShardRunner._is_settled = True  # type: ignore[assignment, method-assign]


def cleaner_goes_beyond_the_high_watermark() -> None:
    from headrace_broker.server.cleaning import cleaner

    dirty_range = cleaner.dirty_range
    cleaner.dirty_range = lambda *arguments, **more: dirty_range(
        *arguments, **more | {"last_stable_offset": more["log_end_offset"]}
    )


def cleaner_drops_tombstones_at_once() -> None:
    from headrace_broker.log.compaction.batch_filter import BatchFilter

    kept = BatchFilter._kept

    def without_tombstones(self: Any, header: Any, columns: Any) -> list[int]:
        return [index for index in kept(self, header, columns) if columns.values[index] is not None]

    BatchFilter._kept = without_tombstones  # type: ignore[method-assign]


def retention_goes_beyond_the_high_watermark() -> None:
    from headrace_broker.log import segmented_log

    count_expired = segmented_log.count_expired
    segmented_log.count_expired = lambda *arguments, **more: count_expired(
        *arguments, **more | {"high_watermark": 1 << 40}
    )


@dataclass(frozen=True)
class Mutant:
    """What is broken, where it is looked for, and a seed that finds it."""

    breaks: Callable[[], None]
    seed: int
    arena: str = "cluster"
    faults: str = ""
    topics: str = ""


_SLOW_AND_KILLED = "kill,partition,pause,slow_network,isolate_from_brokers"
"""Replicas fall behind, and then who is ahead is gone."""

MUTANTS = {
    mutant.breaks.__name__: mutant
    for mutant in (
        Mutant(vote_is_not_synced, 5, faults="power_loss_after_vote,kill"),
        Mutant(leader_counts_what_it_has_not_flushed, 66, "quorum"),
        Mutant(leader_commits_older_epochs, 0, "uncounted record"),
        Mutant(follower_answers_before_it_flushed, 19, "quorum"),
        Mutant(voter_elects_a_shorter_log, 11, "quorum"),
        Mutant(produce_is_acknowledged_on_append, 0, faults=_SLOW_AND_KILLED),
        Mutant(high_watermark_is_the_leaders_end, 0, faults=_SLOW_AND_KILLED),
        Mutant(follower_truncates_to_its_high_watermark, 2, faults=_SLOW_AND_KILLED),
        Mutant(isr_shrinks_before_the_controller_confirms, 7, faults="isolate_from_controller,partition,pause"),
        Mutant(followers_show_what_is_not_committed, 1, faults=_SLOW_AND_KILLED),
        Mutant(follower_ignores_epochs, 0, faults="kill,partition,pause"),
        Mutant(followers_keep_no_producer_state, 1, faults="kill,reset"),
        Mutant(unclean_restart_stays_in_sync, 0, faults="power_loss,power_loss_after_append"),
        Mutant(anybody_may_lead, 16, faults="kill,stop,isolate_from_brokers,slow_network"),
        Mutant(leader_under_min_isr_commits, 3, faults="kill,stop"),
        Mutant(offsets_are_acknowledged_on_append, 12, faults=_SLOW_AND_KILLED),
        Mutant(cleaner_goes_beyond_the_high_watermark, 0, faults=_SLOW_AND_KILLED, topics="c"),
        Mutant(cleaner_drops_tombstones_at_once, 0, faults="kill", topics="c"),
        Mutant(retention_goes_beyond_the_high_watermark, 17, faults=_SLOW_AND_KILLED, topics="r"),
    )
}


def _run_cluster(seed: int, mutant: Mutant) -> None:
    from headrace_broker.simulation.run import run_seed

    faults, topics = (tuple(names.split(",")) if names else () for names in (mutant.faults, mutant.topics))
    run_seed(seed, faults=faults, topics=topics)


def _run_quorum(seed: int, mutant: Mutant) -> None:
    from support.raft_cluster import run_seed

    run_seed(seed)


def _run_uncounted_record(seed: int, mutant: Mutant) -> None:
    from support.raft_cluster import run_uncounted_record

    run_uncounted_record(seed)


_ARENAS = {"cluster": _run_cluster, "quorum": _run_quorum, "uncounted record": _run_uncounted_record}


def caught_by(name: str, first: int, count: int, seconds_max: float = 1e9) -> tuple[int, str] | None:
    """(seed, what it saw) of the first seed that notices; the mutant stays in force for the rest of the process."""
    import time

    mutant = MUTANTS[name]
    mutant.breaks()
    run = _ARENAS[mutant.arena]
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
    """Look for a seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(MUTANTS))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=1)
    arguments = parser.parse_args()
    first = MUTANTS[arguments.name].seed if arguments.seed is None else arguments.seed
    found = caught_by(arguments.name, first, arguments.count)
    print(f"{arguments.name}: " + ("not caught" if found is None else f"caught by seed {found[0]}: {found[1]}"))
    return 1 if found is None else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
