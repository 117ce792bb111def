"""`SelfReadingSinkRun`: runs a sink task that reads topics itself, in a thread of the test, with real Kafka clients.

    with SelfReadingSinkRun(LinesSink, {"topics": "t"}, broker.bootstrap_servers) as run:
        run.wait_until(lambda: run.offsets == {("t", 0): 5})

The context is that of a worker: reader, pipeline, dead letter queue and metrics are the platform's. Offsets are stored
in memory, and not committed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from headrace.api.task import SelfReadingSinkTask, TopicPartition
from headrace.runtime import client_configs
from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import ErrorPolicy
from headrace.runtime.event_loops import LoopThread
from headrace.runtime.record_access.pipeline import ConfiguredPipeline
from headrace.runtime.record_access.reader import KafkaRecordReader
from headrace.runtime.record_lookup import read_records
from headrace.runtime.registered_metrics import RegisteredMetrics
from headrace.runtime.self_reading_sink_errors import SelfReadingSinkErrors
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins, class_path, split_list
from headrace.testing.task_configs import CONNECTOR_NAME, WORKER_CONFIG, connector_class_of

_POLL_S = 0.02


class SelfReadingSinkContext:
    """A task context with the platform's reader, pipeline and dead letter queue. Use it as a context manager.

    `props` is the connector's configuration. `committed` contains the group's committed offsets. `worker` adds keys to
    the worker's configuration. The task sees the attribute `pause_requested`, which a test may set.
    """

    def __init__(
        self,
        task_class: type[SelfReadingSinkTask[Any]],
        props: Mapping[str, str],
        bootstrap_servers: str,
        *,
        committed: Mapping[TopicPartition, int] | None = None,
        worker: Mapping[str, str] | None = None,
    ) -> None:
        config = {"name": CONNECTOR_NAME, **props}
        spec = TaskSpec(
            connector=config["name"],
            number=0,
            config={**config, "task.class": class_path(task_class)},
            connector_config=config,
            worker={**WORKER_CONFIG, "bootstrap.servers": bootstrap_servers, **(worker or {})},
        )
        self.plugins = plugins = Plugins(spec)
        self.connector_name, self.task_number, self.task_count = spec.connector, 0, 1
        self.tolerates_errors = ErrorPolicy.from_config(plugins.connector_config).tolerate
        self.props: Mapping[str, str] = {**plugins.task_config, **plugins.converter_properties()}
        self.client_properties: Mapping[str, str] = client_configs.consumer_properties(
            plugins.worker, plugins.connector_config, spec.name
        )
        self.topics = tuple(split_list(plugins.connector_config.get("topics")))
        self.topics_regex = plugins.connector_config.get("topics.regex") or None
        self.metrics = RegisteredMetrics()
        self.pause_requested = False
        self.offsets: dict[TopicPartition, int] = {}
        """The offsets that the task has reported."""
        self.modules: list[str] = []
        """The modules that the task lets the worker run. They do not run, because there is no worker."""
        self.metadata: dict[TopicPartition, str] = {}
        """The metadata of the committed offsets."""
        self.stopping = threading.Event()
        self._committed = dict(committed or {})
        self._loop = LoopThread("self-reading-sink")
        self.errant_record_reporter = self._open_reporter(task_class)

    def _open_reporter(self, task_class: type[SelfReadingSinkTask[Any]]) -> SelfReadingSinkErrors:
        counters, plugins = ErrorCounters(), self.plugins
        return SelfReadingSinkErrors(
            plugins.spec.name,
            task_class.display_class(),
            ErrorPolicy.from_config(plugins.connector_config),
            counters,
            queue=self._loop.run(DeadLetterQueue.open(plugins, plugins.spec, counters)),
            read_records=lambda positions: read_records(self.client_properties, positions),
            from_loop=self._loop.run,
        )

    def wait(self, seconds: float) -> bool:
        """Wait that long and return True, or return False as soon as the task is to stop."""
        return not self.stopping.wait(seconds)

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards."""
        return time.monotonic()

    def committed_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the committed offsets, including those that the task has reported."""
        return {**self._committed, **self.offsets}

    def run_module(self, module: str) -> None:
        """Store the module's name."""
        self.modules.append(module)

    def committed_metadata(self) -> Mapping[TopicPartition, str]:
        """Return the metadata of the committed offsets."""
        return {**dict.fromkeys(self.committed_offsets(), ""), **self.metadata}

    def report_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Store the offsets and their metadata."""
        self.offsets.update(offsets)
        self.metadata.update(dict.fromkeys(offsets, metadata))

    def record_reader(self) -> KafkaRecordReader:
        """Return a picklable reader of the topics."""
        return KafkaRecordReader.from_consumer_properties(self.client_properties)

    def record_pipeline(self, errors_max: int, *, json_texts: bool = False) -> ConfiguredPipeline:
        """Return the connector's converters, predicates and transforms as a picklable object."""
        return ConfiguredPipeline.from_plugins(self.plugins, errors_max, json_texts=json_texts)

    def close(self) -> None:
        """Close the dead letter queue, and stop the thread of the clients."""
        self._loop.run(self.errant_record_reporter.close())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class SelfReadingSinkRun:
    """A running task. Use it as a context manager: the exit stops the task, and raises the error that failed it.

    `plugin` is a sink connector or task class. See `SelfReadingSinkContext` for the other arguments.
    """

    def __init__(self, plugin: type[Any], props: Mapping[str, str], bootstrap_servers: str, **options: Any) -> None:
        task_class: Any = connector_class_of(plugin).task_class
        self.context = SelfReadingSinkContext(task_class, props, bootstrap_servers, **options)
        self.task: SelfReadingSinkTask[Any] = task_class()
        self.task.context = self.context
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="self-reading-sink-task", daemon=True)

    @property
    def offsets(self) -> Mapping[TopicPartition, int]:
        """The offsets that the task has reported."""
        return dict(self.context.offsets)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The current values of the metrics that the task has registered."""
        return {metric.name: metric.value for metric in self.context.metrics.current()}

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until the condition is true. Raises the task's error if it fails, and TimeoutError."""
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if self._error is not None:
                raise self._error
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"the condition is not true after {timeout_s:g} s; offsets: {self.offsets}")
            time.sleep(_POLL_S)

    def pause(self) -> None:
        """Pause the task as a worker does."""
        self.context.pause_requested = True
        self.task.pause()

    def resume(self) -> None:
        """Resume the task as a worker does."""
        self.context.pause_requested = False
        self.task.resume()

    def start(self) -> Self:
        """Start the task. Raises the errors of its method `start`."""
        try:
            self.context.plugins.start_task(self.task)
        except BaseException:
            self.task.stop()
            self.context.close()
            raise
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the task and wait until it has ended. Raises the error that failed it."""
        self.context.stopping.set()
        self.task.stop()
        self._thread.join()
        self.context.close()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self.task.run()
        except BaseException as error:  # noqa: BLE001 - `stop` and `wait_until` raise it in the test's thread
            self._error = error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BaseException:
            if error is None:  # otherwise, the test's own error is more important
                raise
