"""One run of Spark's query: from where the tables stand until it is stopped, paused, or fails."""

from __future__ import annotations

import contextvars
import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from headrace.api.errors import ConnectError
from headrace.api.task import SelfReadingSinkTaskContext
from headrace_connectors.lakehouse.bad_records import BadRecord, BadRecords, StoppingRecordError
from headrace_connectors.lakehouse.client_config import librdkafka_config
from headrace_connectors.lakehouse.config import ErrorHandling, LakehouseSinkConfig, ValueFormat
from headrace_connectors.lakehouse.dead_letters import DeadLetters
from headrace_connectors.lakehouse.faults import disk_full, is_disk_full
from headrace_connectors.lakehouse.first_records import first_payloads
from headrace_connectors.lakehouse.kafka_source import FORMAT, SPEC_OPTION, KafkaSource
from headrace_connectors.lakehouse.layouts import Layouts
from headrace_connectors.lakehouse.loader import Batch, BatchLoader
from headrace_connectors.lakehouse.ranges import Position, parse_position, ranges_between
from headrace_connectors.lakehouse.spec import MARKER, UNAVAILABLE, SourceSpec, SourceUnavailableError
from headrace_connectors.lakehouse.tables import Tables
from headrace_connectors.lakehouse.topics import Topics
from headrace_connectors.lakehouse.writers import open_writer
from headrace_connectors.lakehouse.writers.base import BatchIdentity

_TASK_ROWS_MIN = 20_000
_WAIT_S = 0.1
_COMMIT_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


class LoadQuery:
    """Life: `find_position`, `start`, `await_end`, `stop`. The loader runs on a thread of Spark's in between."""

    def __init__(
        self,
        config: LakehouseSinkConfig,
        value: ValueFormat,
        errors: ErrorHandling,
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
            _log.warning(warning)
        self._tables = Tables(
            config.root, config.table_name_format, lambda directory: open_writer(config.format, directory, connector)
        )
        self._bad_records = BadRecords(
            tolerate=errors.tolerate, log=errors.log, dead_letters=self._dead_letters(errors, connector)
        )
        self._query: Any = None
        self._failure: BaseException | None = None
        self._stopped = False
        self._committing = threading.Lock()

    # --- life -------------------------------------------------------------------------------------------------------

    def find_position(self) -> Position:
        """Return where the tables stand. Raises SourceUnavailableError when the cluster does not answer."""
        topics = Topics(self._client, self._context.topics, self._context.topics_regex)
        try:
            existing = topics.existing()
        except KafkaException as error:
            raise SourceUnavailableError(error) from error
        missing = sorted(set(self._context.topics) - existing.keys())
        if missing:
            _log.info("Waiting for topics that do not exist yet: %s", ", ".join(missing))
        return self._tables.position(
            (name, partition) for name, topic in existing.items() for partition in topic.partitions
        )

    def start(self, session: Any, position: Position, checkpoints: Path, generation: int) -> None:
        """Start the query at a position."""
        self._context.report_offsets(position.next_offsets)
        self._checkpoint = checkpoints / str(generation)
        self._generation = generation
        self._position = position
        spec = self._spec(position, session.sparkContext.defaultParallelism)
        self._loader = BatchLoader(
            self._layouts(),
            self._tables,
            self._bad_records,
            lambda ranges: first_payloads(spec, ranges) if spec.value == "envelope" else (),
            metadata_columns=self._config.metadata_columns,
        )
        session.dataSource.register(KafkaSource)
        _log.debug("query starts")
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
        """Wait until something else is asked for. Raises what ended the query."""
        while not changed.wait(_WAIT_S):
            if self._failure is not None:
                raise self._failure
            if not self._query.isActive:
                self._raise_failure(self._query.exception())

    def stop(self) -> None:
        """End the query; a commit that has begun is waited for."""
        self._stopped = True
        if self._query is None:
            return
        if self._committing.acquire(timeout=_COMMIT_TIMEOUT_S):
            self._committing.release()
        try:
            if self._query.isActive:
                self._query.stop()
        except Exception as error:  # noqa: BLE001 - the JVM may be gone
            _log.debug("the query could not be stopped: %s", error)

    def _raise_failure(self, error: Any) -> None:
        if self._failure is not None:
            raise self._failure
        text = str(error)
        unavailable = re.search(re.escape(UNAVAILABLE) + r"(.*)", text)
        if unavailable:
            raise SourceUnavailableError(RuntimeError(unavailable[1].strip()))
        own = re.search(re.escape(MARKER) + r"(.*)", text)
        if own:
            raise ConnectError(own[1].strip())
        if is_disk_full(text):
            raise disk_full(self._checkpoint, "lakehouse.checkpoint.path")
        raise ConnectError(f"the Spark query ended: {text}")

    # --- batches ----------------------------------------------------------------------------------------------------

    def _load(self, rows: Any, batch_id: int) -> None:
        """Load one batch, on a thread of py4j's; what fails it is kept, since Spark hands on its text only."""
        try:
            self._log_context.run(self._load_batch, rows, batch_id)
        except BaseException as error:
            self._failure = self._failure or error
            raise

    def _load_batch(self, rows: Any, batch_id: int) -> None:
        _log.debug("batch %d begins", batch_id)
        end = self._logged_position(batch_id)
        batch = Batch(
            BatchIdentity(self._connector, self._generation, batch_id), end, tuple(ranges_between(self._position, end))
        )
        try:
            self._loader.load(rows, batch, self._may_commit)
        except StoppingRecordError as error:
            self._context.report_offsets({**end.next_offsets, **error.ends})
            raise
        self._position = end
        self._context.report_offsets(end.next_offsets)

    def _may_commit(self) -> threading.Lock:
        if self._stopped:
            raise ConnectError("stopped")
        return self._committing

    def _logged_position(self, batch_id: int) -> Position:
        """Read a batch's end from Spark's offset log: a version, the batch's metadata, then one line per source."""
        lines = (self._checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
        if len(lines) != 3 or lines[0] != "v1":
            raise ConnectError(f"Spark's offset log has another form than expected: {lines[:1]} and {len(lines)} lines")
        return parse_position(lines[2])

    # --- settings ---------------------------------------------------------------------------------------------------

    def _spec(self, position: Position, cores: int) -> SourceSpec:
        config, properties = self._config, self._context.client_properties
        return SourceSpec(
            client=self._client,
            topics=sorted(self._context.topics),
            topics_regex=self._context.topics_regex,
            value=str(self._value.kind),
            encoding=self._value.encoding,
            start=position.to_json(),
            start_at_latest=properties.get("auto.offset.reset") == "latest",
            rows_max=config.batch_rows_max,
            bytes_max=config.batch_bytes_max,
            tasks_max=cores,
            task_rows_min=_TASK_ROWS_MIN,
            fail_on_data_loss=config.fail_on_data_loss,
            task_pid=os.getpid(),
        )

    def _dead_letters(self, errors: ErrorHandling, connector: str) -> Callable[[Sequence[BadRecord]], None] | None:
        if not errors.dead_letter_topic:
            return None
        return DeadLetters(
            self._client,
            errors.dead_letter_topic,
            connector=connector,
            headers=errors.dead_letter_headers,
            replication_factor=errors.dead_letter_replication,
        ).send

    def _layouts(self) -> Layouts:
        return Layouts(
            root=self._config.root,
            value=str(self._value.kind),
            declared=self._config.declared_schemas(),
            declared_default=self._config.declared_default(),
            metadata_columns=self._config.metadata_columns,
            replace_null_with_default=self._value.replace_null_with_default,
            decimals_numeric=self._value.decimals_numeric,
        )
