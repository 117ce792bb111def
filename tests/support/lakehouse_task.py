"""Runs one LakehouseSinkTask in its own process, as a worker does, for tests that kill the process.

    python lakehouse_task.py '{"address": "127.0.0.1:9092", "topics": ["t"], "props": {"lakehouse.path": "..."}}'

The program prints `reported {"t/0": 5}` when the task reports offsets. It reads the commands pause, resume and stop
from standard input, one per line. It exits when the task ends.

With `"hold": "<directory>"`, the commit of a table waits while the directory has a file with the table's name, and the
program prints `holding <table>`.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.testing import SelfReadingSinkContext
from headrace_connectors.lakehouse.committers.base import Commit
from headrace_connectors.lakehouse.driver.tables import Table
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


def hold_commits(directory: Path) -> None:
    """Let the commit of a table wait while `directory` has a file with the table's name."""
    commit = Table.commit

    def wait_and_commit(table: Table, change: Commit) -> None:
        if (directory / table.name).exists():
            print("holding", table.name, flush=True)
        while (directory / table.name).exists():
            time.sleep(0.05)
        commit(table, change)

    Table.commit = wait_and_commit  # type: ignore[method-assign]


def _run_commands(task: LakehouseSinkTask) -> None:
    for line in sys.stdin:
        {"pause": task.pause, "resume": task.resume, "stop": task.stop}[line.strip()]()
        print("executed", line.strip(), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = json.loads(sys.argv[1])
    if settings.get("hold"):
        hold_commits(Path(settings["hold"]))
    running_task = make_task(
        Context(settings["address"], settings["topics"], settings["props"], settings.get("topics_regex"))
    )
    threading.Thread(target=_run_commands, args=(running_task,), daemon=True).start()
    running_task.run()
