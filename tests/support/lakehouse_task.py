"""Runs one LakehouseSinkTask in its own process, as a worker does, for tests that kill the process.

    python lakehouse_task.py '{"address": "127.0.0.1:9092", "topics": ["t"], "props": {"lakehouse.path": "..."}}'

The program prints `reported {"t/0": 5}` when the task reports offsets. It reads the commands pause, resume and stop
from standard input, one per line. It exits when the task ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from headrace.runtime.dead_letter_queue import DeadLetterQueue
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import ErrorPolicy
from headrace.runtime.record_lookup import read_records
from headrace.runtime.self_reading_sink_errors import SelfReadingSinkErrors
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace_connectors.lakehouse.sink import LakehouseSinkTask

_T = TypeVar("_T")
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


class Context:
    """A fake task context."""

    def __init__(
        self, address: str, topics: Sequence[str], props: Mapping[str, str], topics_regex: str | None = None
    ) -> None:
        given = {"name": "sink", "value.converter": JSON_CONVERTER, **props}
        worker = {"bootstrap.servers": address, "key.converter": "StringConverter"}
        self._spec = TaskSpec(connector="sink", number=0, config={}, connector_config=given, worker=worker)
        self._plugins = Plugins(self._spec)
        self.props = {**given, **self._plugins.converter_properties()}
        self.client_properties = {
            "bootstrap.servers": address,
            "group.id": "connect-sink",
            "auto.offset.reset": "earliest",
        }
        self.topics = tuple(topics)
        self.topics_regex = topics_regex
        self.pause_requested = False
        self.offsets: dict[tuple[str, int], int] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.errant_record_reporter = self._run(self._reporter())

    async def _reporter(self) -> SelfReadingSinkErrors:
        """Return the platform's reporter of failed records. Its Kafka clients run on an event loop of their own."""
        counters = ErrorCounters()
        return SelfReadingSinkErrors(
            self._spec.name,
            LakehouseSinkTask.display_class(),
            ErrorPolicy.from_config(self.props),
            counters,
            queue=await DeadLetterQueue.open(self._plugins, self._spec, counters),
            read_records=lambda positions: read_records(self.client_properties, positions),
            from_loop=self._run,
        )

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def committed_offsets(self) -> Mapping[tuple[str, int], int]:
        """Return an empty mapping, because no offsets are committed."""
        return {}

    def report_offsets(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Store and print the reported offsets."""
        self.offsets.update(offsets)
        print(
            "reported", json.dumps({f"{topic}/{partition}": o for (topic, partition), o in offsets.items()}), flush=True
        )


def make_task(context: Context) -> LakehouseSinkTask:
    """Create and start a task."""
    task = LakehouseSinkTask()
    task.context = context
    task.config = task.config_model.parse(context.props)
    task.start(task.config)
    return task


def _run_commands(task: LakehouseSinkTask) -> None:
    for line in sys.stdin:
        {"pause": task.pause, "resume": task.resume, "stop": task.stop}[line.strip()]()
        print("executed", line.strip(), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = json.loads(sys.argv[1])
    running_task = make_task(
        Context(settings["address"], settings["topics"], settings["props"], settings.get("topics_regex"))
    )
    threading.Thread(target=_run_commands, args=(running_task,), daemon=True).start()
    running_task.run()
