"""One run of the task: from the offsets that the tables contain until the task is stopped or paused, or fails.

The position of a partition is the offset in its topic's table. If a transform may change topics, the position is the
group's committed offset instead, because a record of the partition may go to any table. It is reported only after all
tables of a micro-batch have committed, and each table skips the records below its own offset. In this case,
`location_id` checks that the tables are on this machine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.api.errors import ConnectError
from headrace.api.record_access import OpenRecordReader, TopicDescription
from headrace.api.task import SelfReadingSinkTaskContext
from headrace_connectors.lakehouse.bad_records import BadRecordError
from headrace_connectors.lakehouse.committers.base import BatchIdentity
from headrace_connectors.lakehouse.driver.batch_loader import BatchLoader
from headrace_connectors.lakehouse.driver.load_metrics import LoadMetrics
from headrace_connectors.lakehouse.driver.location_id import check_location_id
from headrace_connectors.lakehouse.driver.tables import Tables
from headrace_connectors.lakehouse.offsets import TableOffsets, TopicPartition
from headrace_connectors.lakehouse.planner import Plan, Planner
from headrace_connectors.lakehouse.table_names import TableNames

_IDLE_PAUSE_S = 0.1
"""Shortest time between checks that find no records. With `lakehouse.trigger.interval.ms=0`, only this one remains."""
logger = logging.getLogger(__name__)


class RunCancelledError(Exception):
    """The task was stopped or paused before the current micro-batch was committed."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a run. `generation` is the start time of the run in ms. `routes_by_transform`: see the module."""

    connector: str
    generation: int
    names: TableNames
    trigger_s: float
    start_at_latest: bool
    routes_by_transform: bool
    directory: Path | None = None
    """The local directory of the tables, or None if all machines see the same tables."""


class LoadRun:
    """Loads micro-batches one after another on the task's thread, until `changed` is set.

    `starts` has the offsets at which partitions start that no table contains, if they start at the end of the log. All
    runs of a task share it.
    """

    def __init__(
        self,
        settings: RunSettings,
        context: SelfReadingSinkTaskContext,
        planner: Planner,
        reader: OpenRecordReader,
        tables: Tables,
        loader: BatchLoader,
        changed: threading.Event,
        metrics: LoadMetrics,
        starts: dict[TopicPartition, int],
    ) -> None:
        self._settings = settings
        self._context = context
        self._planner = planner
        self._reader = reader
        self._tables = tables
        self._loader = loader
        self._changed = changed
        self._metrics = metrics
        self._starts = starts
        self._topics: Mapping[str, TopicDescription] = {}
        self._position = TableOffsets()
        self._batch_id = 0
        self._metadata = ""

    def run(self) -> None:
        """Load micro-batches until `changed` is set. Raises ConnectError, and ClusterUnavailableError."""
        self._start()
        while not self._changed.is_set():
            started = time.monotonic()
            self._follow_topics(self._planner.describe_topics())
            plan = self._planner.next(self._position, self._topics)
            self._metrics.planned(plan.lag())
            if plan.ranges and not self._changed.is_set():
                self._load(plan)
            pause_s = max(0.0, self._settings.trigger_s - (time.monotonic() - started))
            self._changed.wait(pause_s if plan.ranges else max(pause_s, _IDLE_PAUSE_S))

    # --- positions --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        settings, context = self._settings, self._context
        if settings.routes_by_transform and settings.directory is not None:
            group = f"connect-{settings.connector}"
            self._metadata = check_location_id(
                settings.directory, group, context.committed_offsets(), context.committed_metadata()
            )
        topics = self._planner.describe_topics()
        missing = sorted(set(context.topics) - topics.keys())
        if missing:
            logger.info("Topics %s do not exist yet, waiting until they are created", ", ".join(missing))
        self._follow_topics(topics)
        self._report(self._position.next_offsets)

    def _follow_topics(self, topics: Mapping[str, TopicDescription]) -> None:
        """Open the tables of new topics and partitions, and add their positions."""
        known = {(name, partition) for name, topic in self._topics.items() for partition in topic.partitions}
        self._topics = topics
        new = [key for key in self._partitions() if key not in known]
        if new:
            self._add_positions(new)

    def _partitions(self) -> list[TopicPartition]:
        return sorted((name, partition) for name, topic in self._topics.items() for partition in topic.partitions)

    def _add_positions(self, keys: list[TopicPartition]) -> None:
        committed = self._context.committed_offsets()
        if self._settings.routes_by_transform:
            found = TableOffsets({key: committed[key] for key in keys if key in committed})
        else:
            found = self._offsets_in_tables(keys, committed)
        offsets = {**self._position.next_offsets, **found.next_offsets}
        unknown = [key for key in keys if key not in offsets]
        if unknown and self._settings.start_at_latest:
            starts = self._starts_at_latest(unknown)
            offsets |= starts
            if not self._settings.routes_by_transform:
                self._start_tables_at(starts)
        self._position = TableOffsets(offsets, {**self._position.topic_ids, **found.topic_ids})

    def _starts_at_latest(self, keys: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends that the logs had when the task first asked for them, also in an earlier run of the task."""
        new = [key for key in keys if key not in self._starts]
        if new:
            self._starts.update(self._reader.log_bounds(new)[1])
        return {key: self._starts[key] for key in keys}

    def _start_tables_at(self, starts: Mapping[TopicPartition, int]) -> None:
        """Let the next commit of each table store the start of partitions that have no records in the table yet.

        Otherwise, a restart would skip the records that were written to these partitions in the meantime.
        """
        for key, start in starts.items():
            table = self._tables[self._settings.names.name_of(key[0])]
            table.offsets = replace(table.offsets, next_offsets={**table.offsets.next_offsets, key: start})

    def _offsets_in_tables(self, keys: list[TopicPartition], committed: Mapping[TopicPartition, int]) -> TableOffsets:
        by_table: dict[str, list[TopicPartition]] = defaultdict(list)
        for key in self._partitions():
            by_table[self._settings.names.name_of(key[0])].append(key)
        wanted = {self._settings.names.name_of(topic) for topic, _ in keys}
        self._tables.open({name: by_table[name] for name in wanted})
        offsets: dict[TopicPartition, int] = {}
        ids: dict[str, str] = {}
        for topic, partition in keys:
            table = self._tables[self._settings.names.name_of(topic)]
            self._check_not_missing((topic, partition), table.committer.exists(), table.committer.location, committed)
            if (topic, partition) in table.offsets.next_offsets:
                offsets[topic, partition] = table.offsets.next_offsets[topic, partition]
            if topic in table.offsets.topic_ids:
                ids[topic] = table.offsets.topic_ids[topic]
        return TableOffsets(offsets, ids)

    def _check_not_missing(
        self, key: TopicPartition, exists: bool, location: str, committed: Mapping[TopicPartition, int]
    ) -> None:
        """Raise ConnectError if the group has committed offsets, but the table does not exist on this machine."""
        if not exists and committed.get(key, 0) > 0:
            raise ConnectError(
                f"table {location} is missing, but group connect-{self._settings.connector} has committed offset"
                f" {committed[key]} of topic {key[0]}, partition {key[1]}; move the table here, use a path that all"
                " workers share, or reset the connector's offsets to load the topic again"
            )

    # --- micro-batches ----------------------------------------------------------------------------------------------

    def _load(self, plan: Plan) -> None:
        identity = BatchIdentity(self._settings.connector, self._settings.generation, self._batch_id)
        self._batch_id += 1
        logger.debug("Loading batch %d: %s", identity.batch_id, ", ".join(map(str, plan.ranges)))
        after = self._position.after(plan.ranges, plan.topic_ids)
        try:
            loaded = self._loader.load(identity, plan, self._check_not_cancelled)
        except BadRecordError as error:
            self._report({**after.next_offsets, **error.first_bad_offsets})
            raise
        self._position = after
        self._metrics.loaded(loaded, plan.lag(after.next_offsets))
        self._report(after.next_offsets)

    def _report(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Report offsets, except those of topics whose table does not exist, because no table stores them."""
        names = self._settings.names
        stored = {
            key: offset
            for key, offset in offsets.items()
            if self._settings.routes_by_transform or self._tables[names.name_of(key[0])].committer.exists()
        }
        self._context.report_offsets(stored, self._metadata)

    def _check_not_cancelled(self) -> None:
        if self._changed.is_set():
            raise RunCancelledError
