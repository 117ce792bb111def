"""ElasticsearchSinkConnector, which writes records as documents to Elasticsearch or OpenSearch.

Several threads send the records in bulk requests. The sink commits the offset of a partition's first record that is not
stored, so delivery is at least once. Writing a record again changes nothing in these two cases:

- The document's id is the record's key, and the document's version is the record's offset.
- The document's id consists of the record's topic, partition and offset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.api.connector import SinkConnector
from headrace.api.errors import ConfigError, ConnectError, DataError, RecordErrors, RetriableError
from headrace.api.retries import Retries
from headrace.api.task import SinkTask, TopicPartition
from headrace.data.batch import SinkBatch
from headrace.data.json_texts import JsonTexts
from headrace.data.sink_records import SinkRecords
from headrace_connectors.common.null_replacement import replaces_null_with_default
from headrace_connectors.elasticsearch.documents import encode_batch
from headrace_connectors.elasticsearch.mappings import mapping_of
from headrace_connectors.elasticsearch.names import data_stream_name, index_name
from headrace_connectors.elasticsearch.sink_config import ElasticsearchSinkConfig

if TYPE_CHECKING:
    from headrace_connectors.elasticsearch.writer import BulkWriter, Operation, PartitionRun

logger = logging.getLogger(__name__)

_FLUSH_S = 3.0
"""How long an offset commit, a revocation and a stop wait for requests in flight."""
_BACK_PRESSURE_S = 1.0
"""How long `put` waits for free buffers before it pauses the partitions."""


class ElasticsearchSinkTask(SinkTask[ElasticsearchSinkConfig]):
    """Encodes records in the task's thread. The threads of a `BulkWriter` send them."""

    accepts_json_texts = True

    def __init__(self) -> None:
        self._writer: BulkWriter | None = None
        self._runs: dict[TopicPartition, deque[PartitionRun]] = {}
        self._targets: dict[str, str] = {}
        self._with_mapping: set[str] = set()
        self._is_paused = False

    def start(self, config: ElasticsearchSinkConfig) -> None:
        """Create the client, and the writer with its threads."""
        from headrace_connectors.elasticsearch.client import Client  # imports the transport, which is slow
        from headrace_connectors.elasticsearch.writer import BulkWriter, retry_policy

        self._config = config
        self._retries = Retries(retry_policy(config))
        self._client = Client(config)
        self._writer = BulkWriter(
            self._client, config, config.is_upsert, self._decode, self._handle_malformed, self._report_existing
        )

    def put(self, records: SinkRecords) -> None:
        """Encode records and pass them to the writer. Raises RetriableError after a temporary error of the server."""
        assert self._writer is not None
        self._writer.raise_error()
        errors: dict[int, Exception] = {}
        prepared = []
        start = 0
        for batch in records.batches:
            prepared.append(self._prepare(batch, start, errors))
            start += len(batch)
        for operations in prepared:
            if operations:
                self._runs.setdefault(operations[0].run.partition, deque()).append(operations[0].run)
                self._writer.submit(operations)
        self._apply_back_pressure()
        if errors:
            raise RecordErrors(errors)

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return the offset of each partition's first record that is not stored.

        If the writer has failed with a fatal error, the next `put` raises this error.
        """
        assert self._writer is not None
        timeout_s = self._config.flush_timeout_ms / 1000
        waits = self._config.flush_synchronously
        if not self._writer.flush(timeout_s if waits else min(timeout_s, _FLUSH_S)) and waits:
            raise ConnectError(
                f"Elasticsearch at {self._client.address}: {self._writer.buffered} records are not stored after "
                f"{self._config.flush_timeout_ms} ms (flush.timeout.ms)"
            )
        return {partition: self._stored(partition, offset) for partition, offset in offsets.items()}

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """Discard the unsent records of `partitions`. The next owner of the partitions reads these records again."""
        if self._writer is not None:
            for partition in partitions:
                for run in self._runs.pop(partition, ()):
                    run.is_revoked = True
            self._writer.revoke(set(partitions), _FLUSH_S)

    def stop(self) -> None:
        """Stop the threads and close the connections."""
        if self._writer is not None:
            self._writer.stop(_FLUSH_S)
            self._client.close()

    # -- encoding

    def _prepare(self, batch: SinkBatch, start: int, errors: dict[int, Exception]) -> list[Operation]:
        """Return the operations of a batch. Add the error of each bad record to `errors`.

        One call of `put` may receive several batches. The keys of `errors` are record indexes. These indexes count the
        records of all batches of the call. `start` is the index of the first record of `batch`.
        """
        from headrace_connectors.elasticsearch.writer import Operation, PartitionRun

        try:
            target = self._target(batch)
            found, bad = encode_batch(batch, target, self._config)
        except DataError as error:
            found, bad = [], dict.fromkeys(range(len(batch)), error)
        for at, cause in bad.items():
            self._handle_invalid(batch, at, cause, start, errors)
        if not found:
            return []
        partition = batch.original_topic, batch.original_partition
        run = PartitionRun(partition, batch.original_offsets[found[0].at], len(found))
        return [Operation(each.lines, each.document_id, batch, each.at, run) for each in found]

    def _handle_invalid(
        self, batch: SinkBatch, at: int, cause: Exception, start: int, errors: dict[int, Exception]
    ) -> None:
        if not self._config.drop_invalid:
            errors[start + at] = cause
            return
        self._report(batch, at, cause)
        position = f"{batch.original_topic}-{batch.original_partition} at offset {batch.original_offsets[at]}"
        logger.warning("Skipping record %s (drop.invalid.message=true): %s", position, cause)

    def _decode(self, operation: Operation) -> Operation | None:
        """Decode the operation's record, encode a new document, and return the operation with the new document.

        Returns None if the old document is not a copy of the record's JSON text. Also returns None if the new document
        is equal to the old document.
        """
        if not isinstance(operation.batch.compact, JsonTexts):
            return None
        record = operation.batch.take([operation.at])
        found, _ = encode_batch(record.replace(values=record.values), self._targets[record.topic], self._config)
        if not found or found[0].lines == operation.lines:
            return None
        return operation._replace(lines=found[0].lines)

    def _handle_malformed(self, operation: Operation, error: ConnectError) -> None:
        """Handle a document that the server rejected, as behavior.on.malformed.documents determines."""
        behavior = self._config.on_malformed.upper()
        self._report(operation.batch, operation.at, error)
        if behavior == "FAIL":
            raise ConnectError(f"{error} (behavior.on.malformed.documents=FAIL)")
        if behavior == "WARN":
            logger.warning("Skipping a record (behavior.on.malformed.documents=WARN): %s", error)

    def _report_existing(self, operation: Operation, error: ConnectError) -> None:
        """Handle a record that is not stored, because a document with its key exists in the data stream."""
        self._report(operation.batch, operation.at, error)

    def _report(self, batch: SinkBatch, at: int, error: Exception) -> None:
        """If errors.tolerance=all, report the record at that index, which is not stored, as an errant record.

        With errors.tolerance=none, the report of a record would fail the task.
        """
        reporter = self.context.errant_record_reporter
        if reporter is not None and self.context.tolerates_errors:
            reporter.report_at(batch, at, error)

    # -- indexes

    def _target(self, batch: SinkBatch) -> str:
        """Return the index, data stream or alias of a batch, and create it if it does not exist.

        Raises DataError, or RetriableError after a temporary error of the server.
        """
        from headrace_connectors.elasticsearch.client import TemporaryError

        try:
            target = self._targets.get(batch.topic)
            if target is None:
                target = self._targets[batch.topic] = self._create_target(batch.topic)
            if target not in self._with_mapping and batch.values and any(each is not None for each in batch.values):
                self._create_mapping(target, batch)
        except TemporaryError as error:
            retry = self._retries.failed(error)
            self.context.timeout(retry.pause_ms)
            raise RetriableError(retry.text) from error
        self._retries.succeeded()
        return target

    def _create_target(self, topic: str) -> str:
        config = self._config
        if config.resources:
            if topic not in config.resources:
                raise DataError(f"Topic {topic} is missing in topic.to.external.resource.mapping")
            name = config.resources[topic]
        elif config.is_data_stream:
            name = data_stream_name(config.stream_type, config.stream_dataset, config.stream_namespace, topic)
            self._client.ensure_data_stream(name)
        else:
            name = index_name(topic)
            self._client.ensure_index(name)
        self._warn_about_shared_index(name, topic)
        return name

    def _warn_about_shared_index(self, name: str, topic: str) -> None:
        others = [other for other, target in self._targets.items() if target == name]
        config = self._config
        if others and not (config.ignores_key(topic) or config.is_data_stream or config.is_upsert):
            logger.warning(
                "The topics %s and %s are written to the index %s, and record keys are document ids. If both topics "
                "have a record with the same key, the index keeps the record with the higher offset",
                others[0],
                topic,
                name,
            )

    def _create_mapping(self, target: str, batch: SinkBatch) -> None:
        config = self._config
        is_own_index = not config.is_data_stream and not config.resources
        if is_own_index and not config.ignores_schema(batch.topic) and not self._client.has_mapping(target):
            if batch.value_schema is None:
                raise DataError(
                    f"The values of topic {batch.topic} have no schema, so the sink cannot create a mapping for the "
                    f"index {target}; set schema.ignore=true"
                )
            mapping = mapping_of(
                batch.value_schema, config.compact_map_entries, replaces_null_with_default(config, "value.converter")
            )
            if "properties" in mapping:
                self._client.put_mapping(target, msgspec.json.encode(mapping))
        self._with_mapping.add(target)

    # -- progress

    def _apply_back_pressure(self) -> None:
        """Wait while the writer has too many records. If this takes long, pause the partitions in the meantime."""
        assert self._writer is not None
        limit = self._config.max_buffered
        if self._writer.wait_until_at_most(limit if not self._is_paused else limit // 2, _BACK_PRESSURE_S):
            if self._is_paused:
                self._is_paused = False
                self.context.resume(*self.context.assignment)
        else:
            self._is_paused = True  # pause again, because a rebalance may have assigned more partitions
            self.context.pause(*self.context.assignment)

    def _stored(self, partition: TopicPartition, offset: int) -> int:
        runs = self._runs.get(partition)
        if not runs:
            return offset
        self._runs[partition] = runs = deque(run for run in runs if run.remaining > 0)
        return min([offset, *(run.first_offset for run in runs)])


class ElasticsearchSinkConnector(SinkConnector[ElasticsearchSinkConfig]):
    """Starts `tasks.max` tasks."""

    task_class = ElasticsearchSinkTask
    java_names = ("io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",)

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return the names of the client's modules.

        The platform imports these modules once, and all task processes inherit the imported modules.
        """
        return [__name__, f"{__package__}.writer"]

    def validate_config(self, config: ElasticsearchSinkConfig) -> Iterator[ConfigError]:
        """Yield errors if no server responds and accepts the credentials, or if a configured resource is missing."""
        from headrace_connectors.elasticsearch.client import Client, RefusedError, TemporaryError
        from headrace_connectors.elasticsearch.tls import UnusableTlsSettingError

        name = "connection.api.key" if config.api_key else "connection.username"
        try:
            client = Client(config)
            try:
                client.check()
                missing = [each for each in config.resources.values() if client.is_missing(each)]
            finally:
                client.close()
            for each in missing:
                text = f"The index, data stream or alias {each} does not exist"
                yield ConfigError.with_text("topic.to.external.resource.mapping", text)
        except UnusableTlsSettingError as error:
            yield ConfigError.with_text(error.key, str(error))
        except RefusedError as error:
            yield ConfigError.with_text(name if error.status == 401 else "connection.url", str(error))
        except (TemporaryError, ConnectError) as error:
            yield ConfigError.with_text("connection.url", str(error))

    def alter_offsets(self, config: ElasticsearchSinkConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Return True for any offsets, because the sink reads its position from the consumer group."""
        return True
