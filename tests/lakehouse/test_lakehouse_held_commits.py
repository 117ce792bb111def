"""Tests that tables contain each record once if a task is killed between the commits of two tables, or commits late.

The commit of one table waits (`lakehouse_task`), so that the test can send SIGKILL or SIGSTOP at this moment.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support.broker import BrokerProcess, running_broker
from support.lakehouse_process import EXIT_S, TaskProcess
from support.lakehouse_records import numbers, produce

pytest.importorskip("pyspark")
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

ROUTER = {
    "transforms": "same",
    "transforms.same.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.same.regex": "(.*)",
    "transforms.same.replacement": "$1",
}
"""A transform that may change the topic: then the tables skip the records that they have."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


class Lake:
    """The tables of a test, and the topics `old` and `new` of the same test. `hold` has the names of waiting tables."""

    def __init__(self, broker: BrokerProcess, directory: Path, format_: str, *, routes: bool) -> None:
        self._broker = broker
        self.tables, self.hold = directory / "tables", directory / "hold"
        self.hold.mkdir()
        self.format = format_
        prefix = f"{format_}-{'routes' if routes else 'topics'}-{directory.name}"
        self.old, self.new = f"{prefix}-old", f"{prefix}-new"
        self._props = {"lakehouse.path": str(self.tables), "lakehouse.format": format_, **(ROUTER if routes else {})}

    def start(self) -> TaskProcess:
        """Start a task."""
        return TaskProcess(self._broker, [self.old, self.new], self._props, self.hold)

    def numbers_of(self, topic: str) -> list[int]:
        """Return the numbers in the topic's table."""
        columns = ["n"]
        table: Any
        if self.format == "delta":
            if not DeltaTable.is_deltatable(str(self.tables / topic)):
                return []
            table = DeltaTable(self.tables / topic).to_pyarrow_table(columns=columns)
        elif self.format == "parquet":
            if not list((self.tables / topic).glob("*.parquet")):
                return []
            table = pq.read_table(self.tables / topic, columns=columns)
        else:
            catalog = SqlCatalog("iceberg", uri=f"sqlite:///{self.tables / 'catalog.db'}")
            try:
                table = catalog.load_table(f"default.{topic}").scan(selected_fields=("n",)).to_arrow()
            except NoSuchTableError:
                return []
        return sorted(table["n"].to_pylist())

    def hold_second_batch(self, held: str) -> TaskProcess:
        """Load a batch into `old`, and another batch into `old` and `new`, in which the commit of `held` waits.

        Return the task when the other table has committed.
        """
        produce(self._broker.address, self.old, numbers(0, 10))
        task = self.start()
        task.until(lambda: task.offsets().get(f"{self.old}/0") == 10)
        task.send_command("pause")
        (self.hold / held).touch()
        produce(self._broker.address, self.old, numbers(10, 10))
        produce(self._broker.address, self.new, numbers(0, 20))
        task.send_command("resume")
        other = self.new if held == self.old else self.old
        task.until(lambda: task.holds(held) and len(self.numbers_of(other)) == 20)
        assert len(self.numbers_of(held)) == (10 if held == self.old else 0)
        return task

    def assert_complete_once_loaded(self) -> None:
        """Load the topics with a new task, and assert that both tables have each record once."""
        ends = {f"{self.old}/0": 20, f"{self.new}/0": 20}
        task = self.start()
        task.until(lambda: task.offsets() == ends)
        task.stop(EXIT_S)
        self.assert_each_number_once()

    def assert_each_number_once(self) -> None:
        """Assert that both tables have each record once."""
        for topic in (self.old, self.new):
            assert Counter(self.numbers_of(topic)) == Counter(range(20))


@pytest.mark.parametrize(
    ("format_", "held", "routes"),
    [
        ("delta", "old", False),
        ("delta", "new", True),
        ("iceberg", "new", False),
        ("parquet", "old", True),
        ("parquet", "new", False),
    ],
)
def test_task_that_is_killed_between_the_commits_of_an_old_and_a_new_table_loads_each_record_once(
    broker: BrokerProcess, tmp_path: Path, format_: str, held: str, routes: bool
) -> None:
    lake = Lake(broker, tmp_path, format_, routes=routes)
    task = lake.hold_second_batch(getattr(lake, held))
    task.kill()
    (lake.hold / getattr(lake, held)).unlink()
    lake.assert_complete_once_loaded()


@pytest.mark.parametrize(
    ("format_", "held", "routes"), [("delta", "new", False), ("iceberg", "old", True), ("parquet", "new", False)]
)
def test_commit_of_a_stopped_task_fails_if_another_task_has_loaded_the_records(
    broker: BrokerProcess, tmp_path: Path, format_: str, held: str, routes: bool
) -> None:
    lake = Lake(broker, tmp_path, format_, routes=routes)
    stopped = lake.hold_second_batch(getattr(lake, held))
    stopped.send_signal(signal.SIGSTOP)
    (lake.hold / getattr(lake, held)).unlink()
    lake.assert_complete_once_loaded()
    stopped.send_signal(signal.SIGCONT)
    assert "check whether the connector is running twice" in stopped.error()
    lake.assert_each_number_once()
