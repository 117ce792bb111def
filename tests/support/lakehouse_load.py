"""Runs the lakehouse sink's engine in the test's process: real brokers, files and tables, but no JVM."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace_connectors.lakehouse.driver.session import LoadSession
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig
from headrace_connectors.lakehouse.spark.jobs import JobCancelledError, SparkJobs, Work
from support.lakehouse_task import Context

TIMEOUT_S = 30.0


class InProcessJobs(SparkJobs):
    """Runs the tasks of a job one after another in the driver's process, with pickled copies, as Spark does."""

    is_local = True
    parallelism = 2

    def __init__(self) -> None:
        self.jobs = 0
        self._cancelled = threading.Event()

    def start(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Do nothing."""

    def run(self, work: Work, tasks: int, description: str) -> list[bytes]:
        """Call `work` for each task."""
        self._cancelled.clear()
        self.jobs += 1
        results = []
        for number in range(tasks):
            if self._cancelled.is_set():
                raise JobCancelledError("cancelled")
            results.append(pickle.loads(pickle.dumps(work))(number))
        return results

    def check_executors(self) -> None:
        """Do nothing."""

    def cancel(self) -> None:
        """Cancel the running job."""
        self._cancelled.set()

    def stop(self) -> None:
        """Do nothing."""

    kill = stop

    def exit_status(self) -> int | None:
        """Return None, because there is no JVM."""
        return None

    def output(self) -> str:
        """Return nothing, because there is no JVM."""
        return ""


class SharedSpark(InProcessJobs):
    """Runs jobs in a Spark application that has been started, and keeps it running."""

    def __init__(self, spark: SparkJobs) -> None:
        super().__init__()
        self._spark = spark

    def run(self, work: Work, tasks: int, description: str) -> list[bytes]:
        """Run the job in Spark."""
        self.jobs += 1
        return self._spark.run(work, tasks, description)

    def cancel(self) -> None:
        """Cancel the running job."""
        self._spark.cancel()


class Load:
    """A run of the sink's engine on a thread."""

    def __init__(
        self,
        address: str,
        path: Path | str,
        topics: Sequence[str],
        props: Mapping[str, str],
        regex: str | None = None,
        *,
        jobs: SparkJobs | None = None,
        committed: Mapping[tuple[str, int], int] | None = None,
        metadata: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        props = {"lakehouse.path": str(path), "lakehouse.trigger.interval.ms": "50", **props}
        self.context = Context(address, topics, props, regex, committed)
        self.context.metadata.update(metadata or {})
        config = LakehouseSinkConfig.parse(self.context.props)
        self.jobs = jobs or InProcessJobs()
        self.session = LoadSession(config, self.context, props.get("name", "sink"), self.jobs)  # type: ignore[arg-type]
        self._changed = threading.Event()
        self._error: BaseException | None = None
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.session.run(self._changed, lambda: None)
        except BaseException as error:  # noqa: BLE001 - `until` raises it
            self._error = error

    def until(self, condition: Callable[[dict[tuple[str, int], int]], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Wait until the reported offsets meet a condition. Raises the error of the run if it fails."""
        deadline = time.monotonic() + timeout_s
        while not condition(self.context.offsets):
            if self._error is not None:
                raise self._error
            assert time.monotonic() < deadline, f"only {self.context.offsets} after {timeout_s} s"
            time.sleep(0.01)

    def until_offsets(self, **ends: int) -> None:
        """Wait until partition 0 of each topic is loaded up to the topic's offset in `ends`."""
        self.until(lambda offsets: all(offsets.get((topic, 0), 0) >= end for topic, end in ends.items()))

    def pause(self, action: Callable[[], None]) -> None:
        """End the run, call `action`, and start another run in the same session, as a pause and a resume do."""
        self.stop()
        action()
        self._changed.clear()
        self._start()

    def stop(self) -> None:
        """End the run. Spark keeps running if it was passed to this object."""
        self._changed.set()
        self.jobs.cancel()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
