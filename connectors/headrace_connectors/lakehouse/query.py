"""`LoadQuery`, one run of the Spark query.

The run starts at the Kafka offsets that the tables contain. The run ends when the query fails, or when the task is
stopped or paused.
"""

from __future__ import annotations

import contextvars
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from headrace.api.errors import ConnectError
from headrace.api.task import SelfReadingSinkTaskContext
from headrace_connectors.lakehouse.bad_records import BadRecordError, BadRecordHandler
from headrace_connectors.lakehouse.client_config import librdkafka_config
from headrace_connectors.lakehouse.error_messages import disk_full_error, is_disk_full
from headrace_connectors.lakehouse.first_records import first_payloads
from headrace_connectors.lakehouse.kafka_source import FORMAT, SPEC_OPTION, KafkaSource
from headrace_connectors.lakehouse.layouts import RecordLayouts
from headrace_connectors.lakehouse.loader import BatchLoader, MicroBatch
from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, parse_source_offset, ranges_between
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig, ValueFormat
from headrace_connectors.lakehouse.spec import ERROR_PREFIX, UNAVAILABLE_PREFIX, SourceSpec, SourceUnavailableError
from headrace_connectors.lakehouse.tables import Tables
from headrace_connectors.lakehouse.topics import Topics
from headrace_connectors.lakehouse.writers import open_writer
from headrace_connectors.lakehouse.writers.base import BatchIdentity

_TASK_ROWS_MIN = 20_000
_WAIT_S = 0.1
_COMMIT_TIMEOUT_S = 5.0
logger = logging.getLogger(__name__)


class LoadQuery:
    """One run of the Spark query.

    Call `find_start_offset`, `start`, `await_end` and `stop`, in this order. While the query is active,
    Spark calls the loader on a py4j thread.
    """

    def __init__(
        self,
        config: LakehouseSinkConfig,
        value: ValueFormat,
        context: SelfReadingSinkTaskContext,
        connector: str,
        log_context: contextvars.Context,
    ) -> None:
        self._config = config
        self._value = value
        self._context = context
        self._connector = connector
        self._log_context = log_context
        self._client, warnings = librdkafka_config(context.client_properties)
        for warning in warnings:
            logger.warning(warning)
        self._tables = Tables(
            config.root, config.table_name_format, lambda directory: open_writer(config.format, directory, connector)
        )
        self._bad_records = BadRecordHandler(context.errant_record_reporter)
        self._query: Any = None
        self._failure: BaseException | None = None
        self._stopped = False
        self._committing = threading.Lock()

    # --- lifecycle --------------------------------------------------------------------------------------------------

    def find_start_offset(self) -> KafkaSourceOffset:
        """Return the offsets that the tables contain.

        Raises SourceUnavailableError if the Kafka cluster is unavailable.
        """
        topics = Topics(self._client, self._context.topics, self._context.topics_regex)
        try:
            existing = topics.existing()
        except KafkaException as error:
            raise SourceUnavailableError(error) from error
        missing = sorted(set(self._context.topics) - existing.keys())
        if missing:
            logger.info("Topics %s do not exist yet, waiting until they are created", ", ".join(missing))
        return self._tables.load_offsets(
            (name, partition) for name, topic in existing.items() for partition in topic.partitions
        )

    def start(self, session: Any, start_offset: KafkaSourceOffset, checkpoints: Path, generation: int) -> None:
        """Start the query in the Spark session `session` at `start_offset`.

        The query's checkpoint is the subdirectory `generation` of the directory `checkpoints`.
        """
        self._context.report_offsets(start_offset.next_offsets)
        self._checkpoint = checkpoints / str(generation)
        self._generation = generation
        self._last_offset = start_offset
        spec = self._spec(start_offset, session.sparkContext.defaultParallelism)
        self._loader = BatchLoader(
            self._layouts(),
            self._tables,
            self._bad_records,
            lambda ranges: first_payloads(spec, ranges) if spec.value == "envelope" else (),
            metadata_columns=self._config.metadata_columns,
        )
        session.dataSource.register(KafkaSource)
        logger.debug("Starting the Spark query of connector %s", self._connector)
        self._query = (
            session.readStream.format(FORMAT)
            .option(SPEC_OPTION, spec.to_json())
            .load()
            .writeStream.foreachBatch(self._load)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=f"{self._config.trigger_interval_ms} milliseconds")
            .queryName(f"headrace_{self._connector}_{generation}")
            .start()
        )

    def await_end(self, changed: threading.Event) -> None:
        """Wait until a stop, pause or resume sets `changed`. Raises the query's error if the query fails."""
        while not changed.wait(_WAIT_S):
            if self._failure is not None:
                raise self._failure
            if not self._query.isActive:
                self._raise_failure(self._query.exception())

    def stop(self) -> None:
        """Stop the query. If a commit has started, wait up to `_COMMIT_TIMEOUT_S` until it is complete."""
        self._stopped = True
        if self._query is None:
            return
        if self._committing.acquire(timeout=_COMMIT_TIMEOUT_S):
            self._committing.release()
        try:
            if self._query.isActive:
                self._query.stop()
        except Exception as error:  # noqa: BLE001 - the JVM may have exited
            logger.debug("Ignoring an error while stopping the Spark query: %s", error)

    def _raise_failure(self, error: Any) -> None:
        if self._failure is not None:
            raise self._failure
        text = str(error)
        unavailable = re.search(re.escape(UNAVAILABLE_PREFIX) + r"(.*)", text)
        if unavailable:
            raise SourceUnavailableError(RuntimeError(unavailable[1].strip()))
        source_error = re.search(re.escape(ERROR_PREFIX) + r"(.*)", text)
        if source_error:
            raise ConnectError(source_error[1].strip())
        if is_disk_full(text):
            raise disk_full_error(self._checkpoint, "lakehouse.checkpoint.path")
        raise ConnectError(f"the Spark query failed: {text}")

    # --- micro-batches ----------------------------------------------------------------------------------------------

    def _load(self, rows: Any, batch_id: int) -> None:
        """Load one micro-batch on a py4j thread.

        An exception is stored before it is raised, because Spark passes on only the exception's message.
        """
        try:
            self._log_context.run(self._load_batch, rows, batch_id)
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _load_batch(self, rows: Any, batch_id: int) -> None:
        logger.debug("Loading batch %d", batch_id)
        end = self._logged_offset(batch_id)
        batch = MicroBatch(
            BatchIdentity(self._connector, self._generation, batch_id),
            end,
            tuple(ranges_between(self._last_offset, end)),
        )
        try:
            self._loader.load(rows, batch, self._commit_guard)
        except BadRecordError as error:
            self._context.report_offsets({**end.next_offsets, **error.first_bad_offsets})
            raise
        self._last_offset = end
        self._context.report_offsets(end.next_offsets)

    def _commit_guard(self) -> threading.Lock:
        if self._stopped:
            raise ConnectError("the query was stopped before the commit of the current batch")
        return self._committing

    def _logged_offset(self, batch_id: int) -> KafkaSourceOffset:
        """Read the end offset of a micro-batch from Spark's offset log.

        The log file has a line with its version, a line with the batch's metadata, and one line per source.
        """
        lines = (self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        if len(lines) != 3 or lines[0] != "v1":
            raise ConnectError(
                f"Spark's offset log has an unexpected format: version {lines[:1]} instead of v1, {len(lines)} lines"
                " instead of 3"
            )
        return parse_source_offset(lines[2])

    # --- configuration ----------------------------------------------------------------------------------------------

    def _spec(self, start_offset: KafkaSourceOffset, cores: int) -> SourceSpec:
        config, properties = self._config, self._context.client_properties
        return SourceSpec(
            client=self._client,
            topics=sorted(self._context.topics),
            topics_regex=self._context.topics_regex,
            value=str(self._value.kind),
            encoding=self._value.encoding,
            start=start_offset.to_json(),
            start_at_latest=properties.get("auto.offset.reset") == "latest",
            rows_max=config.batch_rows_max,
            bytes_max=config.batch_bytes_max,
            tasks_max=cores,
            task_rows_min=_TASK_ROWS_MIN,
            fail_on_data_loss=config.fail_on_data_loss,
            task_pid=os.getpid(),
        )

    def _layouts(self) -> RecordLayouts:
        return RecordLayouts(
            root=self._config.root,
            value=str(self._value.kind),
            declared=self._config.declared_schemas(),
            declared_default=self._config.declared_default(),
            metadata_columns=self._config.metadata_columns,
            replace_null_with_default=self._value.replace_null_with_default,
            decimals_numeric=self._value.decimals_numeric,
        )
