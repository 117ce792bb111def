"""Validates the configuration of an Elasticsearch sink, and runs its task until it fails.

The task sends its requests in other threads. If a request fails, a later call of the task raises the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from headrace.data.batch import SinkBatch, from_records
from headrace.data.records import SinkRecord
from headrace.data.sink_records import SinkRecords
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector, ElasticsearchSinkTask
from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig
from support import validation


class _Context:
    """A task context without an errant record reporter."""

    connector_name = "search"
    errant_record_reporter = None
    tolerates_errors = False
    assignment: frozenset[tuple[str, int]] = frozenset()

    def __init__(self, props: Mapping[str, str]) -> None:
        self.props = props

    def pause(self, *partitions: Any) -> None:
        """Ignore the request, because no consumer polls."""

    def resume(self, *partitions: Any) -> None:
        """Ignore the request, because no consumer polls."""


@contextmanager
def running_task(props: Mapping[str, str]) -> Iterator[ElasticsearchSinkTask]:
    """Run a task without an errant record reporter."""
    task = ElasticsearchSinkTask()
    task.context = cast(Any, _Context(props))
    try:
        task.start(ElasticsearchSinkConfig.parse(dict(props)))
        yield task
    finally:
        task.stop()


def batches_of(records: Sequence[SinkRecord]) -> list[SinkBatch]:
    """Return the records as batches, as a worker does before it applies transforms."""
    return cast(
        list[SinkBatch],
        from_records(
            [
                each.replace(original_topic=each.topic, original_partition=each.partition, original_offset=each.offset)
                for each in records
            ]
        ),
    )


def put_until_error(props: Mapping[str, str], records: Sequence[SinkRecord]) -> None:
    """Pass the records to `put`, and then call `put` without records until all records are stored.

    Raises the error of the task.
    """
    put_batches_until_error(props, batches_of(records))


def put_batches_until_error(props: Mapping[str, str], batches: Sequence[SinkBatch]) -> None:
    """Pass the batches to `put`, and then call `put` without records until all records are stored.

    Raises the error of the task.
    """
    with running_task(props) as task:
        task.put(SinkRecords(batches))
        end = batches[-1].original_offsets[-1] + 1
        partition = batches[-1].original_topic, batches[-1].original_partition
        while task.pre_commit({partition: end}) != {partition: end}:
            task.put(SinkRecords())


def validation_errors(settings: dict[str, str]) -> dict[str, list[str]]:
    """Return the errors of each key of a sink's configuration. The validation connects to the server."""
    return validation.validation_errors(ElasticsearchSinkConnector, settings)
