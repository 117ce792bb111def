"""Tests the directory source in a worker: new files, clean stops, kill -9."""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.broker import running_broker
from support.distributed import worker_group
from support.topics import end_offset, read_topic
from support.worker import Worker, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def connector(directory: Path, **more: str) -> dict[str, str]:
    return {
        "name": "files",
        "connector.class": "DirectorySource",
        "tasks.max": "2",
        "directory": str(directory / "in"),
        "format": "csv",
        "topic": "rows",
        "poll.interval.ms": "50",
        "settle.time.ms": "0",
        "batch.size": "40",
        "finished.action": "move",
        "finished.directory": str(directory / "done"),
        **more,
    }


def worker(directory: Path, name: str, address: str, props: dict[str, str]) -> Worker:
    """Return a worker. All workers with the same `directory` use the same offsets file."""
    (directory / name).mkdir()
    file = directory / "files.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in props.items()))
    settings = {
        "bootstrap.servers": address,
        "offset.storage.file.filename": str(directory / "offsets"),
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    return Worker(directory / name, settings, [file])


class Writing(threading.Thread):
    """A thread that writes CSV files until `finish` is called.

    It writes each file under a temporary name and then renames it.
    """

    def __init__(self, directory: Path, rows: int) -> None:
        super().__init__()
        self._directory = directory / "in"
        self._directory.mkdir()
        self._rows = rows
        self._stopping = threading.Event()
        self.expected: set[tuple[str, str]] = set()

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(0.05):
            self.write(str(number))
            number += 1

    def write(self, name: str) -> None:
        """Write the file `name`.csv."""
        rows = [(name, str(row)) for row in range(self._rows)]
        partial = self._directory / f"{name}.tmp"
        partial.write_text("file,row\n" + "".join(f"{file},{row}\n" for file, row in rows))
        partial.rename(self._directory / f"{name}.csv")
        self.expected.update(rows)

    def finish(self) -> None:
        """Stop writing, and wait until the thread has ended."""
        self._stopping.set()
        self.join()


def rows_in(address: str) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for message in read_topic(address, "rows"):
        row = json.loads(message.value() or b"")
        found[row["file"], row["row"]] += 1
    return found


def test_directory_source_reads_new_files_while_it_runs_and_repeats_no_row_after_a_clean_stop(
    tmp_path: Path,
) -> None:
    writing = Writing(tmp_path, 100)
    with running_broker(tmp_path) as broker:
        for run in range(2):
            with worker(tmp_path, f"worker{run}", broker.address, connector(tmp_path)) as running:
                for number in range(20):
                    writing.write(f"{run}-{number}")
                if run == 0:  # stop in the middle of the files
                    wait_for(lambda: end_offset(broker.address, "rows") > 100, "some rows are in the topic", 60)
                else:
                    wait_for(lambda: len(os.listdir(tmp_path / "done")) == 40, "all files are moved", 60, running.log)
                assert running.stop() > 0
        assert rows_in(broker.address) == Counter(writing.expected)
        assert os.listdir(tmp_path / "in") == []


def test_directory_source_reads_every_format_and_fails_if_a_record_is_invalid(
    tmp_path: Path,
) -> None:
    """The error contains the file and the line of the invalid record."""
    rows = [{"id": number, "name": f"n\u00e4me {number}"} for number in range(5000)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    for form in ("json", "lines", "parquet", "broken"):
        (tmp_path / form).mkdir()
    (tmp_path / "json" / "rows.json.gz").write_bytes(gzip.compress(text))
    (tmp_path / "lines" / "rows.txt").write_bytes(text)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet" / "rows.parquet")
    (tmp_path / "broken" / "rows.json").write_bytes(text + b'{"id": 5000,')
    with running_broker(tmp_path) as broker:
        settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(tmp_path / "offsets")}
        with Worker(tmp_path, settings) as running:
            for name in ("json", "lines", "parquet", "broken"):
                own = {"directory": str(tmp_path / name), "format": name.replace("broken", "json"), "topic": name}
                running.create(name, connector(tmp_path) | own | {"name": name, "finished.action": "keep"})
            for name in ("json", "lines", "parquet"):
                wait_for(lambda name=name: end_offset(broker.address, name) >= 5000, f"the rows of {name}", 60)
                found = [json.loads(message.value() or b"") for message in read_topic(broker.address, name)]
                assert [json.loads(row) for row in found] == rows if name == "lines" else found == rows
            task = zlib.crc32(b"rows.json") % 2
            running.wait_for_task_state("broken", task, "FAILED", 60)
            trace = running.status("broken")["tasks"][task]["trace"]
            assert f"File {tmp_path}/broken/rows.json, line 5001: not a JSON document" in trace
            assert "errors.tolerance" in trace


def test_distributed_directory_source_tasks_share_the_files_and_apply_a_permitted_python_transform(
    tmp_path: Path,
) -> None:
    code = tmp_path / "code.py"
    code.write_text("def without_every_tenth(value):\n    return None if value['row'].endswith('0') else value\n")
    writing = Writing(tmp_path, 50)
    for number in range(10):
        writing.write(str(number))
    props = connector(tmp_path) | {
        "transforms": "drop",
        "transforms.drop.type": "Python",
        "transforms.drop.file": str(code),
        "transforms.drop.function": "without_every_tenth",
    }
    permitted = {"python.transform.enable": "true"}
    with (
        running_broker(tmp_path) as broker,
        worker_group(tmp_path / "workers", broker.address, 2, permitted) as workers,
    ):
        workers[0].create("files", props)
        workers[0].wait_for_state("files", "RUNNING", 60)
        wait_for(lambda: [task["id"] for task in workers[1].status("files")["tasks"]] == [0, 1], "two tasks")
        for number in range(10, 20):
            writing.write(str(number))
        done = tmp_path / "done"
        wait_for(lambda: done.exists() and len(os.listdir(done)) == 20, "all files are moved", 60, workers[0].log)
        expected = {row for row in writing.expected if not row[1].endswith("0")}
        assert rows_in(broker.address) == Counter(expected)
        offsets = "/connectors/files/offsets"
        wait_for(lambda: workers[0].request("GET", offsets)["offsets"] == [], "the offsets are removed", 60)


@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, marks=pytest.mark.slow), pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(1800)])],
)
def test_directory_source_loses_no_row_when_the_worker_is_killed(tmp_path: Path, kills: int) -> None:
    """After a kill, the source may read rows again, but only rows after the last committed offsets."""
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    writing = Writing(tmp_path, 200)
    with running_broker(tmp_path) as broker:
        writing.start()
        try:
            for number in range(kills):
                killed = worker(tmp_path, f"killed{number}", broker.address, connector(tmp_path))
                killed.launch()
                time.sleep(moments.uniform(1.0, 2.5))  # the random moment of the kill is the subject of the test
                killed.kill_group()
        finally:
            writing.finish()
        done, files = tmp_path / "done", len(writing.expected) // 200
        with worker(tmp_path, "last", broker.address, connector(tmp_path)) as last:
            wait_for(lambda: done.exists() and len(os.listdir(done)) >= files, "all files are moved", 60, last.log)
        found = rows_in(broker.address)
        assert set(found) == writing.expected
        assert os.listdir(tmp_path / "in") == []
        assert len(os.listdir(done)) == files
        assert all(count <= 1 + kills for count in found.values())
