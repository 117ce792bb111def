"""Runs an Elasticsearch sink in a worker while the sink's credentials become invalid on the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from support.search_server import SearchServer
from support.worker import Worker, wait_for


def check_credentials_change(
    directory: Path,
    server: SearchServer,
    topic: str,
    config: Mapping[str, str],
    change_credentials: Callable[[], Mapping[str, str]],
) -> str:
    """Check that the task fails, and that all records are stored after a configuration change. Return the task's trace.

    `config` has the sink's settings without class and topic. `change_credentials` makes the sink's credentials invalid
    on the server, and returns the settings with new credentials.
    """
    sink = {**config, "connector.class": "ElasticsearchSinkConnector", "topics": topic, "tasks.max": "1"}
    file = directory / "lines.txt"
    file.write_text("")
    source = {
        "connector.class": "FileStreamSource",
        "topic": topic,
        "file": str(file),
        "transforms": "hoist",
        "transforms.hoist.field": "line",
        "transforms.hoist.type": "HoistField$Value",
    }

    def append(first: int, end: int) -> None:
        with file.open("a") as lines:
            lines.writelines(f"line {number}\n" for number in range(first, end))

    def stored() -> set[str]:
        return {document["line"] for document in server.documents(topic).values()}

    with Worker(directory) as worker:
        worker.create("source", source)
        worker.create("sink", sink)
        append(0, 100)
        wait_for(lambda: topic in server.indexes() and len(stored()) == 100, "the first lines", 60, worker.log)
        changes = change_credentials()
        append(100, 200)
        worker.wait_for_task_state("sink", 0, "FAILED")
        trace = str(worker.status("sink")["tasks"][0]["trace"])
        worker.request("PUT", "/connectors/sink/config", {**sink, **changes})
        wait_for(lambda: len(stored()) == 200, "all lines", 60, worker.log)
        assert stored() == {f"line {number}" for number in range(200)}
    return trace
