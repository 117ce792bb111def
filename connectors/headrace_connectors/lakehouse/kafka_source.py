"""Spark's source for Kafka topics, without jars: a Python data source with confluent-kafka inside.

One instance lives in Spark's planner process and says how far each micro-batch goes (`latestOffset`); pickled copies
run in Spark's Python workers and read their ranges (`read`), as Arrow. Guarantees: a batch holds exactly the records
between its two positions, or the query fails: ranges that the log no longer has (retention, truncation, a topic that
was deleted and made again) are an error that names topic, partition and offset, unless data loss was allowed; only
committed records of transactions are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from headrace_connectors.lakehouse.lifeline import die_with
from headrace_connectors.lakehouse.planner import Planner
from headrace_connectors.lakehouse.range_reader import RangesReader, Sampler
from headrace_connectors.lakehouse.ranges import Position, pack, ranges_between
from headrace_connectors.lakehouse.spec import SourceSpec, SourceUnavailableError
from headrace_connectors.lakehouse.topics import Topics

FORMAT = "headrace_kafka"
COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, "
    "payload string, schema_id bigint, schema string, error string"
)
SPEC_OPTION = "secret"
"""The option that carries the SourceSpec: Spark redacts options of this name wherever it prints a plan."""


class KafkaSource(DataSource):
    """The data source `headrace_kafka`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return KafkaStreamReader(SourceSpec(**json.loads(self.options[SPEC_OPTION])))


class KafkaStreamReader(DataSourceStreamReader):
    """Plans batches in the planner process, reads ranges in the workers; the names are Spark's."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._planner: Planner | None = None
        self._sampler: Sampler | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where the tables stand."""
        try:
            return self._plan().initial().to_json()
        except KafkaException as error:
            raise SourceUnavailableError(error) from error

    def getDefaultReadLimit(self) -> ReadLimit:
        """No limit of Spark's: `latestOffset` has the configured ones."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes; `start` itself when there is nothing new."""
        before = Position.from_json(start)
        try:
            after = self._plan().next(before)
        except KafkaException as error:
            raise SourceUnavailableError(error) from error
        return start if after.next_offsets == before.next_offsets else after.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of a batch, packed into about as many tasks as there are cores."""
        ranges = ranges_between(Position.from_json(start), Position.from_json(end))
        packed = pack(ranges, self._spec.tasks_max, self._spec.task_rows_min)
        return [InputPartition(ranges) for ranges in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of the partition's ranges as Arrow batches."""
        self._live_no_longer_than_the_task()
        consumer = self._spec.consumer()
        try:
            yield from RangesReader(consumer, self._spec, partition.value).batches()
        finally:
            consumer.close()

    def stop(self) -> None:
        """End of the query."""
        if self._sampler is not None:
            self._sampler.close()

    def _plan(self) -> Planner:
        if self._planner is None:
            self._live_no_longer_than_the_task()
            topics = Topics(self._spec.client, self._spec.topics, self._spec.topics_regex)
            self._planner = Planner(self._spec, topics, self._row_bytes)
        return self._planner

    def _live_no_longer_than_the_task(self) -> None:
        if self._spec.task_pid is not None:
            die_with(self._spec.task_pid)

    def _row_bytes(self, positions: dict[tuple[str, int], int]) -> dict[str, float]:
        if self._sampler is None:
            self._sampler = Sampler(self._spec)
        return self._sampler.row_bytes(positions)
