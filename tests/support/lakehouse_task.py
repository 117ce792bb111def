"""Runs one LakehouseSinkTask in its own process, as a worker does, for tests that kill the process.

    python lakehouse_task.py '{"address": "127.0.0.1:9092", "topics": ["t"], "props": {"lakehouse.path": "..."}}'

The program prints `reported {"t/0": 5}` when the task reports offsets. It reads the commands pause, resume and stop
from standard input, one per line. It exits when the task ends.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping, Sequence

from headrace.testing import SelfReadingSinkContext
from headrace_connectors.lakehouse.sink import LakehouseSinkTask

JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


class Context(SelfReadingSinkContext):
    """A task context that prints the reported offsets."""

    def __init__(
        self,
        address: str,
        topics: Sequence[str],
        props: Mapping[str, str],
        topics_regex: str | None = None,
        committed: Mapping[tuple[str, int], int] | None = None,
    ) -> None:
        given = {"name": "sink", "value.converter": JSON_CONVERTER, **props}
        worker = {"key.converter": "StringConverter"}
        super().__init__(LakehouseSinkTask, given, address, committed=committed, worker=worker)
        self.topics = tuple(topics)
        self.topics_regex = topics_regex

    def report_offsets(self, offsets: Mapping[tuple[str, int], int], metadata: str = "") -> None:
        """Store and print the reported offsets."""
        super().report_offsets(offsets, metadata)
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
