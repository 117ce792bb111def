"""A Spark data source that reads Kafka topics with confluent-kafka, in Python and without jars.

Spark's driver starts a Python process for the data source. One `KafkaStreamReader` in this process determines the end
offset of each micro-batch (`latestOffset`). Pickled copies of this reader run in Spark's Python workers, and read their
offset ranges as Arrow (`read`).

A micro-batch contains exactly the records between its start and end offsets, or the query fails. The query fails if the
log no longer contains these offsets. Reasons are retention, truncation, and a topic that was deleted and created again.
The error names the topic, and the partition and offset if they are known. If lakehouse.fail.on.data.loss=false, the
query skips offsets that retention has deleted. By default, the source does not read records of aborted transactions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from headrace_connectors.lakehouse.consumers import create_consumer
from headrace_connectors.lakehouse.planner import Planner
from headrace_connectors.lakehouse.process_watch import exit_with_process
from headrace_connectors.lakehouse.range_reader import RangeReader, RecordSizeSampler
from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, ranges_between, split_ranges
from headrace_connectors.lakehouse.spec import SourceSpec, SourceUnavailableError
from headrace_connectors.lakehouse.topics import Topics

FORMAT = "headrace_kafka"
COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, "
    "payload string, schema_id bigint, schema string, error string"
)
SPEC_OPTION = "secret"
"""Name of the option that contains the SourceSpec. Spark redacts the option in plans, so passwords stay hidden."""


class KafkaSource(DataSource):
    """The Spark data source `headrace_kafka`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return KafkaStreamReader(SourceSpec(**json.loads(self.options[SPEC_OPTION])))


class KafkaStreamReader(DataSourceStreamReader):
    """Plans micro-batches in the driver's Python process, and reads offset ranges in Spark's Python workers."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._planner: Planner | None = None
        self._size_sampler: RecordSizeSampler | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the tables' offsets, from which the query starts."""
        try:
            return self._get_planner().initial().to_json()
        except KafkaException as error:
            raise SourceUnavailableError(error) from error

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return `ReadAllAvailable`, because `latestOffset` applies the configured limits itself."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offset of the next micro-batch, or `start` itself if there are no new records.

        Ignores Spark's `limit`. The planner applies the connector's configured limits.
        """
        before = KafkaSourceOffset.from_json(start)
        try:
            after = self._get_planner().next(before)
        except KafkaException as error:
            raise SourceUnavailableError(error) from error
        return start if after.next_offsets == before.next_offsets else after.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the offset ranges of a micro-batch, split into about as many Spark tasks as there are cores."""
        ranges = ranges_between(KafkaSourceOffset.from_json(start), KafkaSourceOffset.from_json(end))
        tasks = split_ranges(ranges, self._spec.tasks_max, self._spec.task_rows_min)
        return [InputPartition(task_ranges) for task_ranges in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records in the offset ranges of a Spark partition, as Arrow batches."""
        self._exit_with_task()
        consumer = create_consumer(self._spec)
        try:
            yield from RangeReader(consumer, self._spec, partition.value).batches()
        finally:
            consumer.close()

    def stop(self) -> None:
        """Close the size sampler's consumer at the end of the query."""
        if self._size_sampler is not None:
            self._size_sampler.close()

    def _get_planner(self) -> Planner:
        if self._planner is None:
            self._exit_with_task()
            topics = Topics(self._spec.client, self._spec.topics, self._spec.topics_regex)
            self._planner = Planner(self._spec, topics, self._row_bytes)
        return self._planner

    def _exit_with_task(self) -> None:
        if self._spec.task_pid is not None:
            exit_with_process(self._spec.task_pid)

    def _row_bytes(self, positions: dict[tuple[str, int], int]) -> dict[str, float]:
        if self._size_sampler is None:
            self._size_sampler = RecordSizeSampler(self._spec)
        return self._size_sampler.row_bytes(positions)
