"""Tests that FileStreamSource and FileStreamSink lose no line although their worker is killed (kill -9).

While lines are appended to a file, they move from the file to a topic and from the topic to another file. The worker
and its embedded broker are killed at random moments.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from support.connect_bounce import Sequences, compare
from support.topics import read_topic
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration


class Appending(threading.Thread):
    """Appends lines to a file until `finish` is called. A line can be incomplete for a moment."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._file = file
        self._stopping = threading.Event()

    def run(self) -> None:
        with open(self._file, "ab", buffering=0) as file:
            while not self._stopping.wait(0.01):
                found = [f"{number} {'é' * (number % 60)}" for number in range(len(self.lines), len(self.lines) + 20)]
                data = "".join(line + "\n" for line in found).encode()
                file.write(data[:-30])
                file.write(data[-30:])
                self.lines += found

    def finish(self) -> list[str]:
        """Stop the thread, and return the lines of the file."""
        self._stopping.set()
        self.join()
        return self.lines


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(600)])])
def test_file_source_and_sink_lose_no_line_when_all_processes_are_killed_at_random_moments(
    tmp_path: Path, kills: int
) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    worker = Worker(tmp_path, {"offset.flush.interval.ms": "200"}, connector_files(tmp_path))
    appending = Appending(tmp_path / "in.txt")
    appending.start()
    try:
        for _ in range(kills):
            worker.start()
            time.sleep(moments.uniform(0.0, 0.6))  # the random moment of the kill is the subject of the test
            worker.kill_group()
    finally:
        lines = appending.finish()
    out = tmp_path / "out.txt"
    with worker:
        wait_for(lambda: f"{lines[-1]}\n" in out.read_text(), "the last line", 60, worker.log)
        in_topic = [(message.value() or b"").decode() for message in read_topic(worker.bootstrap_servers(), "t")]
    written = out.read_text().splitlines()
    # Each kill can repeat lines at the source, and the sink writes these lines again. Each kill can also repeat lines
    # at the sink, and these can include lines that the topic repeats.
    topic = compare_lines(in_topic, lines)
    assert topic.rewinds <= kills
    assert compare_lines(written, lines).rewinds <= kills + topic.rewinds * (kills + 1)


def compare_lines(found: list[str], lines: list[str]) -> Sequences:
    """Check that no line is missing or changed, and return the comparison of the order."""
    assert set(found) == set(lines)
    differences = compare([int(line.split()[0]) for line in found], len(lines))
    print(differences)
    assert differences.missing == 0
    return differences


def connector_files(directory: Path) -> list[Path]:
    """Write the configurations of a source of in.txt and of a sink to out.txt, and return the files."""
    files = []
    for name, props in {
        "in": {"connector.class": "FileStreamSource", "topic": "t", "batch.size": "20"},
        "out": {"connector.class": "FileStreamSink", "topics": "t"},
    }.items():
        text = {"name": name, "value.converter": "org.apache.kafka.connect.storage.StringConverter"}
        props = {**props, **text, "file": str(directory / f"{name}.txt")}
        files.append(directory / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in props.items()))
    return files
