"""The base of all tasks: a thread, a state, commands from the worker, counters.

The thread sets up the task, reports RUNNING (or PAUSED), works, and at its end reports STOPPED, or FAILED with the
stack trace. `stop` requests this end and waits for it. The event loop serves clients and the channel. Only the thread
runs plug-in code, except `wake_up`, which interrupts waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from headrace.api.task import Task
from headrace.metrics import logs
from headrace.runtime.channel import Channel, PeerGone
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace_broker.client.errors import ClientError, ClosedError

log = logging.getLogger(__name__)
_T = TypeVar("_T")

RECONNECT_INTERVAL_S = 1.0
SILENT_SECONDS = 3
REPORT_INTERVAL_S = 1.0
PROGRESS_INTERVAL_S = 10.0


class Counters:
    """Counters of a task; written by its thread, read by the event loop."""

    __slots__ = ("batches", "errors", "records", "skipped")

    def __init__(self) -> None:
        self.records = 0
        self.batches = 0
        self.errors = 0
        self.skipped = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


class TaskContext:
    """The interface of the platform that all kinds of tasks share; used from the task's thread."""

    def __init__(self, unit: WorkerTask) -> None:
        self.connector_name = unit.spec.connector
        self.task_number = unit.spec.number
        self.props: Mapping[str, str] = dict(unit.plugins.task_config)
        self._stopping = unit.stopping

    def wait(self, seconds: float) -> bool:
        """Wait; return False as soon as the task is to stop."""
        return not self._stopping.wait(seconds)

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards."""
        return time.monotonic()


class WorkerTask:
    """The base class of the three kinds of tasks; subclasses define `work`."""

    def __init__(self, channel: Channel, unit_id: str, spec: TaskSpec, plugins: Plugins, task: Task) -> None:
        self.spec = spec
        self.plugins = plugins
        self.task = task
        self.counters = Counters()
        self.stopping = threading.Event()
        self.loop = asyncio.get_running_loop()
        self._channel = channel
        self._unit_id = unit_id
        self._paused = spec.paused
        self._ended = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()

    # what the kinds add

    def work(self) -> None:
        """Set up, call `report_running`, and work until `stopping` is set; runs in the task's thread."""
        raise NotImplementedError

    def finish(self) -> None:
        """Commit what can be committed and close; runs in the task's thread, also after a failure."""

    def wake(self) -> None:
        """Called on the event loop when `stopping` or `paused` has changed."""

    def wake_task(self) -> None:
        """Interrupt running plug-in code; called in a separate thread."""
        self.task.wake_up()

    def release_task(self) -> None:
        """Make the last call into the task; runs in the task's thread."""
        self.task.stop()

    # the worker's orders

    def launch(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=f"task-{self.spec.name}", daemon=True).start()
        self.background(self._report_forever())

    async def handle(self, method: str, arguments: list[Any]) -> Any:
        """Handle `pause` and `resume`."""
        match method:
            case "pause":
                self.set_paused(True)
            case "resume":
                self.set_paused(False)
            case _:
                raise ValueError(f"unknown call {method}")

    async def stop(self) -> None:
        """Request the end of the thread and wait until it has ended."""
        self.stopping.set()
        self.wake()
        waking = self.loop.run_in_executor(None, self._wake_task)
        await self._ended.wait()
        await asyncio.wait({waking}, timeout=0.1)

    @property
    def paused(self) -> bool:
        """Whether the user has paused the task."""
        return self._paused

    def set_paused(self, paused: bool) -> None:
        """Pause or resume the task; the thread reports PAUSED when the task has paused."""
        self._paused = paused
        self.wake()

    # for the task's thread

    def report_running(self) -> None:
        """Report RUNNING, or PAUSED if the user has paused the task."""
        self._report("PAUSED" if self._paused else "RUNNING")

    def from_loop(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the event loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def open_client(self, open_it: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Open a client, and retry while no broker responds. Raises errors that cannot be retried."""
        while True:
            try:
                return self._opened(self.later(open_it()))
            except ClientError as error:
                if not error.retriable or self.stopping.is_set():
                    raise
                log.warning("Task %s: cannot connect to any broker, retrying: %s", self.spec.name, error)
                self.stopping.wait(RECONNECT_INTERVAL_S)

    def _opened(self, opening: concurrent.futures.Future[_T]) -> _T:
        """The client when it is open; until then one warning, and an end when the task is to stop."""
        for waited in itertools.count(1):
            done, _ = concurrent.futures.wait([opening], timeout=RECONNECT_INTERVAL_S)
            if done:
                return opening.result()
            if self.stopping.is_set():
                opening.cancel()
                raise ClosedError("the task is being stopped")
            if waited == SILENT_SECONDS:
                servers = self.spec.worker.get("bootstrap.servers")
                log.warning(
                    "Task %s: no broker responds at bootstrap.servers=%s yet, retrying", self.spec.name, servers
                )
        raise AssertionError("unreachable")

    def later(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Run a coroutine on the event loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    # for the loop

    async def ask_worker(self, method: str, *arguments: Any) -> Any:
        """Call the worker on behalf of this unit."""
        return await self._channel.call(method, self._unit_id, *arguments)

    def background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in parallel with the thread; it is cancelled when the unit ends."""
        task = self.loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def commit_in_background(self, commit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `commit` every `offset.flush.interval.ms` until the unit ends."""
        self.background(self._commit_every_interval(commit))

    async def _commit_every_interval(self, commit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}|offsets"))
        interval_s = self.spec.worker_ms("offset.flush.interval.ms", 60_000) / 1000
        while True:
            await asyncio.sleep(interval_s)
            await commit()

    def use_topic(self, topic: str) -> None:
        """Report that the connector uses a topic (KIP-558); callable from any thread."""
        self._notify("topic_used", topic)

    def _run(self) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        state, trace = "STOPPED", None
        try:
            self.work()
        except BaseException as error:  # plug-in code raises what it likes; the task fails, nobody else
            given_up = isinstance(error, ClosedError) or not isinstance(error, Exception)
            if not (given_up and self.stopping.is_set()):
                state, trace = "FAILED", logs.secrets.mask("".join(traceback.format_exception(error)))
                log.exception(
                    "Task %s: threw an uncaught and unrecoverable exception. Task is being killed and will not recover "
                    "until manually restarted",
                    self.spec.name,
                )
        for end in (self.finish, self.release_task):
            try:
                end()
            except BaseException:
                log.exception("Task %s: failed to stop cleanly", self.spec.name)
        self._report(state, trace)
        self.loop.call_soon_threadsafe(self._has_ended)

    def _has_ended(self) -> None:
        for task in self._background:
            task.cancel()
        self._notify("counters", self.counters.as_dict())
        self._ended.set()

    def _wake_task(self) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        try:
            self.wake_task()
        except Exception:
            log.exception("Task %s: wake_up failed", self.spec.name)

    def _report(self, state: str, trace: str | None = None) -> None:
        self._notify("state", state, trace)

    def _notify(self, method: str, *arguments: Any) -> None:
        def send() -> None:
            try:
                self._channel.notify(method, self._unit_id, *arguments)
            except PeerGone:
                return  # the worker is gone, and so is this process in a moment

        self.loop.call_soon_threadsafe(send)

    async def _report_forever(self) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        last_logged, logged_records, sent = time.monotonic(), 0, -1
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            records = self.counters.records
            if records != sent:
                sent = records
                self._notify("counters", self.counters.as_dict())
            elapsed = time.monotonic() - last_logged
            if elapsed >= PROGRESS_INTERVAL_S:
                if records != logged_records:
                    rate = (records - logged_records) / elapsed
                    log.info("Task %s: %s records so far, %s records/s", self.spec.name, f"{records:,}", f"{rate:,.0f}")
                last_logged, logged_records = time.monotonic(), records
