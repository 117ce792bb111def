"""Runs a sink task that consumes topics itself: the worker passes client properties and commits the task's offsets."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.api.task import SelfReadingSinkTask
from headrace.metrics import log_text
from headrace.metrics.elapsed import ms_since
from headrace.runtime import client_configs, messages
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_policy import ErrorPolicy
from headrace.runtime.listed_ends import ListedEnds
from headrace.runtime.record_access.pipeline import ConfiguredPipeline
from headrace.runtime.record_access.reader import KafkaRecordReader
from headrace.runtime.record_lookup import read_records
from headrace.runtime.self_reading_sink_errors import SelfReadingSinkErrors
from headrace.runtime.sink_offsets import TopicPartition
from headrace.runtime.task_plugins import split_list
from headrace.runtime.worker_task import TaskContext, WorkerTask
from headrace_broker.client.admin import Admin
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import OffsetAndMetadata

log = logging.getLogger(__name__)


class WorkerSelfReadingSinkTask(WorkerTask):
    """Runs one `SelfReadingSinkTask`."""

    task: SelfReadingSinkTask

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.consumer_properties = client_configs.consumer_properties(
            self.plugins.worker, self.plugins.connector_config, self.spec.name
        )
        self._group = self.consumer_properties["group.id"]
        self._admin: Admin | None = None
        self.errors: SelfReadingSinkErrors | None = None
        self._lock = threading.Lock()
        self._listed_ends = ListedEnds()
        self._reported: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._metadata: dict[TopicPartition, str] = {}

    def work(self) -> None:
        """Run the task until it is stopped."""
        self._admin = self.open_client(self._open_admin)
        self._committed = self.open_client(self._fetch_committed)
        self.errors = self._open_errors()
        self.task.context = _Context(self)
        self.start_task()
        self.report_running()
        self.later(self.commit_in_background(self._commit))
        lags = self.report_lags_forever(self.consumer_properties["client.id"], self._reported.copy, self._end_offsets)
        self.loop.call_soon_threadsafe(self.background, lags)
        self.task.run()
        if not self.stopping.is_set():
            raise RuntimeError("the task's run method returned although the task was not stopped")

    def finish(self) -> None:
        """Commit the last reported offsets."""
        if self._admin is None:
            return
        try:
            self.from_loop(self._commit())
        finally:
            if self.errors is not None:
                self.from_loop(self.errors.close())
            self.from_loop(self._admin.close())

    def wake_task(self) -> None:
        """Call the task's `stop`, so that its `run` returns."""
        self.task.stop()

    def release_task(self) -> None:
        """Call the task's `stop` after a failure, unless it was already called."""
        if not self.stopping.is_set():
            self.task.stop()

    def set_paused(self, paused: bool) -> None:
        """Pause or resume the task. Called from the event loop."""
        if paused is self.paused:
            return
        super().set_paused(paused)
        if self.is_confirmed:
            self._request_pause_or_resume()
        self.report_running()

    @property
    def pause_requested(self) -> bool:
        """Whether the task is to be paused: the user has paused it, or another worker may run it."""
        return self.paused or not self.is_confirmed

    def _request_pause_or_resume(self) -> None:
        self.loop.run_in_executor(None, self.task.pause if self.pause_requested else self.task.resume)

    def on_confirmed(self, is_confirmed: bool) -> None:
        """Let the task pause, and commit no offsets. Or let it resume, unless the user has paused it."""
        if not self.paused:
            self._request_pause_or_resume()

    def describe_unconfirmed(self) -> str:
        """Return that the task pauses."""
        return "pauses"

    def report(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Report that all records before these offsets are durable. Any thread of the task may call this method."""
        with self._lock:
            count = 0
            for (topic, partition), offset in offsets.items():
                count += max(0, offset - self._known(topic, partition, offset))
                self._reported[topic, partition] = offset
                self._metadata[topic, partition] = metadata
        self.counters.add_records(count)
        self.counters.add_call(count, None)
        self._update_active()
        for topic in {topic for topic, _ in offsets}:
            self.use_topic(topic)

    def gauges(self) -> dict[str, float]:
        """Return the current values of the task, with those of the partitions that it has reported."""
        found = self.counters.gauges() | {"partition_count": len(self._reported)}
        return found if self.lags.max is None else found | {"lag_max": self.lags.max}

    def _update_active(self) -> None:
        with self._lock:
            reported, committed = self._reported, self._committed
            self.counters.set_active(
                sum(max(0, offset - committed.get(partition, offset)) for partition, offset in reported.items())
            )

    async def _end_offsets(self) -> Mapping[TopicPartition, int]:
        assert self._admin is not None
        read_committed = self.consumer_properties.get("isolation.level") == "read_committed"
        return await self._listed_ends.get(
            self._reported.keys(), partial(self._admin.list_offsets, read_committed=read_committed)
        )

    def committed(self) -> dict[TopicPartition, int]:
        """Return the group's committed offsets, including those committed since the task started."""
        with self._lock:
            return dict(self._committed)

    def run_module(self, module: str) -> None:
        """Let the worker run a module in a process of its own. Any thread of the task may call this method."""
        self._notify(messages.ModuleRequested(self._instance, module))

    def metadata(self) -> dict[TopicPartition, str]:
        """Return the metadata of the group's offsets, including those reported since the task started."""
        with self._lock:
            return dict(self._metadata)

    def _known(self, topic: str, partition: int, otherwise: int) -> int:
        before = self._reported.get((topic, partition), self._committed.get((topic, partition)))
        return 0 if before is None else before

    def _open_errors(self) -> SelfReadingSinkErrors:
        queue = self.open_client(lambda: DeadLetterQueue.open(self.plugins, self.spec, self.counters.errors))
        return SelfReadingSinkErrors(
            self.spec.name,
            type(self.task).display_class(),
            ErrorPolicy.from_config(self.plugins.connector_config),
            self.counters.errors,
            queue=queue,
            read_records=lambda positions: read_records(self.consumer_properties, positions),
            from_loop=self.from_loop,
        )

    async def _open_admin(self) -> Admin:
        properties = client_configs.admin_properties(self.plugins.worker, self.plugins.connector_config, self.spec.name)
        return await Admin.open(ClientConfig.from_properties(properties, kind="admin"))

    async def _fetch_committed(self) -> dict[TopicPartition, int]:
        assert self._admin is not None
        committed = await self._admin.list_group_offsets(self._group)
        self._metadata = {partition: found.metadata for partition, found in committed.items() if found is not None}
        return {partition: found.offset for partition, found in committed.items() if found is not None}

    async def _commit(self) -> None:
        if not self.is_confirmed:
            return  # another worker's task may have committed later offsets
        with self._lock:
            moved = {tp: offset for tp, offset in self._reported.items() if self._committed.get(tp) != offset}
            wanted = {tp: OffsetAndMetadata(offset, metadata=self._metadata[tp]) for tp, offset in moved.items()}
        if not moved:
            return
        assert self._admin is not None
        timeout_s, started = self.spec.worker_ms("offset.flush.timeout.ms") / 1000, time.monotonic()
        try:
            with self.counters.offset_commit():
                results = await asyncio.wait_for(self._admin.alter_group_offsets(self._group, wanted), timeout_s)
                for error in results.values():
                    if error is not None:
                        raise error
        except Exception as error:  # noqa: BLE001 - the table itself knows its offsets; the next round tries again
            log.error(
                "Task %s: failed to commit offsets to group %s, retrying at the next commit: %s",
                self.spec.name,
                self._group,
                error,
            )
            return
        with self._lock:
            self._committed.update(moved)
        self._update_active()
        log.debug(
            "Task %s: committed offsets %s of group %s in %d ms",
            self.spec.name,
            log_text.partition_offsets(moved),
            self._group,
            ms_since(started),
        )


class _Context(TaskContext):
    """The platform's interface for a self-reading task."""

    def __init__(self, worker_task: WorkerSelfReadingSinkTask) -> None:
        super().__init__(worker_task)
        self._worker_task = worker_task
        self._plugins = plugins = worker_task.plugins
        config = plugins.connector_config
        self.props: Mapping[str, str] = {**plugins.task_config, **plugins.converter_properties()}
        self.client_properties: Mapping[str, str] = dict(worker_task.consumer_properties)
        self.topics = tuple(split_list(config.get("topics")))
        self.topics_regex = config.get("topics.regex") or None

    @property
    def errant_record_reporter(self) -> SelfReadingSinkErrors:
        """The reporter of records that the task cannot store."""
        errors = self._worker_task.errors
        assert errors is not None
        return errors

    @property
    def pause_requested(self) -> bool:
        """Whether the task is to be paused."""
        return self._worker_task.pause_requested

    def committed_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the committed offsets of the connector's group (the next offsets to consume)."""
        return self._worker_task.committed()

    def run_module(self, module: str) -> None:
        """Let the worker run a module in a process that does not end with the task."""
        self._worker_task.run_module(module)

    def committed_metadata(self) -> Mapping[TopicPartition, str]:
        """Return the metadata of the group's offsets."""
        return self._worker_task.metadata()

    def record_reader(self) -> KafkaRecordReader:
        """Return a picklable reader of the topics."""
        return KafkaRecordReader.from_consumer_properties(self.client_properties)

    def record_pipeline(self, errors_max: int, *, json_texts: bool = False) -> ConfiguredPipeline:
        """Return the connector's converters, predicates and transforms as a picklable object."""
        return ConfiguredPipeline.from_plugins(self._plugins, errors_max, json_texts=json_texts)

    def report_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Report that all records before these offsets are durable."""
        self._worker_task.report(offsets, metadata)
