"""The base class of all tasks: it has the task's thread, state and counters, and exchanges messages with the worker.

The thread sets up the task, reports RUNNING (or PAUSED), and works. At its end, it reports STOPPED, or FAILED with the
stack trace. `stop` requests the end of the thread and waits for it. The event loop serves clients and the channel. Only
the thread runs plug-in code. The only exception is `wake_up`, which interrupts waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from headrace.api.task import Task
from headrace.metrics import log_text, logs
from headrace.metrics.elapsed import ms_since
from headrace.plugins import missing_modules
from headrace.runtime import messages, worker_watch
from headrace.runtime.channel import Channel
from headrace.runtime.counters import Counters
from headrace.runtime.error_policy import ErrorPolicy
from headrace.runtime.record_lags import PartitionLag, RecordLags
from headrace.runtime.registered_metrics import RegisteredMetrics
from headrace.runtime.restart_policy import RestartPolicy
from headrace.runtime.sink_offsets import TopicPartition
from headrace.runtime.spec import InstanceId, TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace.runtime.traces import trace_of
from headrace_broker.client.errors import ClientError, ClosedError

log = logging.getLogger(__name__)
_T = TypeVar("_T")

RECONNECT_INTERVAL_S = 1.0
SILENT_SECONDS = 3
REPORT_INTERVAL_S = 1.0
PROGRESS_INTERVAL_S = 10.0


class TaskContext:
    """The part of the platform's interface that all kinds of tasks share. The task's thread uses it."""

    def __init__(self, worker_task: WorkerTask) -> None:
        self.connector_name = worker_task.spec.connector
        self.task_number = worker_task.spec.number
        self.task_count = worker_task.spec.task_count
        self.tolerates_errors = ErrorPolicy.from_config(worker_task.plugins.connector_config).tolerate
        self.props: Mapping[str, str] = dict(worker_task.plugins.task_config)
        self.metrics = worker_task.metrics
        self._stopping = worker_task.stopping

    def wait(self, seconds: float) -> bool:
        """Wait that long and return True, or return False as soon as the task is to stop."""
        return not self._stopping.wait(seconds)

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards."""
        return time.monotonic()


class WorkerTask:
    """The base class of the three kinds of tasks. Subclasses define `work`."""

    def __init__(self, channel: Channel, instance: InstanceId, spec: TaskSpec, plugins: Plugins, task: Task) -> None:
        self.spec = spec
        self.plugins = plugins
        self.task = task
        self.counters = Counters()
        self.metrics = RegisteredMetrics()
        self.lags = RecordLags()
        self.stopping = threading.Event()
        self.loop = asyncio.get_running_loop()
        self._channel = channel
        self._instance = instance
        self._paused = spec.paused
        self._ended = asyncio.Event()
        self._confirmed = asyncio.Event()
        self._confirmed.set()
        self._has_started = False  # `start_task` has returned
        self._background: set[asyncio.Task[None]] = set()

    # Defined by the subclasses

    def work(self) -> None:
        """Set up the task, call `report_running`, and work until `stopping` is set. Runs in the task's thread."""
        raise NotImplementedError

    def finish(self) -> None:
        """Commit all offsets that can be committed, and close clients.

        Runs in the task's thread, even after a failure.
        """

    def wake(self) -> None:
        """Called on the event loop when `stopping` or `paused` has changed."""

    def on_confirmed(self, is_confirmed: bool) -> None:
        """Stop the task's work if `is_confirmed` is False, because another worker may run the task. Otherwise continue.

        Called on the event loop, only after `start_task` has returned. The first call has `is_confirmed=False`.
        """
        raise NotImplementedError

    def describe_unconfirmed(self) -> str:
        """Return what the task does while another worker may run it. It follows "The task" in a log line."""
        raise NotImplementedError

    def gauges(self) -> dict[str, float]:
        """Return the current values of the task, such as rates of the last seconds. Called on the event loop."""
        return self.counters.gauges()

    def wake_task(self) -> None:
        """Interrupt running plug-in code. Called in a separate thread."""
        self.task.wake_up()

    def release_task(self) -> None:
        """Make the last call to the plug-in, so that it releases its resources. Runs in the task's thread."""
        self.task.stop()

    # Called for the worker's messages, on the event loop

    def launch(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name=f"task-{self.spec.name}", daemon=True).start()
        self.background(self._report_forever())
        if "group.id" in self.spec.worker:  # only workers in a group have a session timeout
            self.background(self._watch_worker(self.spec.worker_ms("session.timeout.ms") / 1000))

    async def stop(self) -> None:
        """Request the end of the thread and wait until it has ended."""
        log.debug("Task %s: the worker stops the task", self.spec.name)
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
        """Pause or resume the task. The thread reports PAUSED when the task has paused."""
        log.debug("Task %s: the worker %s the task", self.spec.name, "pauses" if paused else "resumes")
        self._paused = paused
        self.wake()

    @property
    def is_confirmed(self) -> bool:
        """Whether no other worker may run the task."""
        return self._confirmed.is_set()

    # For the task's thread

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
                return self._result(self.later(open_it()), self._warn_if_no_broker_responds)
            except ClientError as error:
                if not error.retriable or self.stopping.is_set():
                    raise
                log.warning("Task %s: cannot connect to any broker, retrying: %s", self.spec.name, error)
                self.stopping.wait(RECONNECT_INTERVAL_S)

    def _warn_if_no_broker_responds(self, waited_s: int) -> None:
        if waited_s == SILENT_SECONDS:
            servers = self.spec.worker.get("bootstrap.servers")
            log.warning("Task %s: no broker responds at bootstrap.servers=%s yet, retrying", self.spec.name, servers)

    def _result(
        self, running: concurrent.futures.Future[_T], on_waited: Callable[[int], None] = lambda waited_s: None
    ) -> _T:
        """Return the result of a coroutine that runs on the event loop. Raises ClosedError if the task is stopped.

        `on_waited` is called after each second of waiting, with the number of seconds.
        """
        for waited_s in itertools.count(1):
            done, _ = concurrent.futures.wait([running], timeout=1)
            if done:
                return running.result()
            if self.stopping.is_set():
                running.cancel()
                raise ClosedError("the task is being stopped")
            on_waited(waited_s)
        raise AssertionError("unreachable")

    def start_task(self) -> None:
        """Call the task's `start`, then wait while another worker may run the task.

        Raises ClosedError if the task is stopped meanwhile.
        """
        started = time.monotonic()
        log.debug(
            "Task %s: calling start of %s, version %s",
            self.spec.name,
            type(self.task).display_class(),
            type(self.task).version,
        )
        self.plugins.start_task(self.task)
        log.debug("Task %s: start returned after %d ms", self.spec.name, ms_since(started))
        self._result(self.later(self._begin_when_confirmed()))

    def wait_before_retry(self, delay_ms: int) -> bool:
        """Wait and return True.

        Raises ClosedError if the task is to stop. The record is then handled after a restart.
        """
        if self.stopping.wait(delay_ms / 1000):
            raise ClosedError("the task is being stopped")
        return True

    def later(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        """Run a coroutine on the event loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    # For the event loop

    async def commit_offsets(self, offsets: Sequence[messages.OffsetPair]) -> None:
        """Let the worker store source offsets, and wait until they are stored. Raises RemoteError, ChannelClosed."""
        with self.counters.offset_commit():
            await self._channel.request(messages.CommitOffsets(self._instance, offsets))

    async def read_offsets(self, partitions: list[dict[Any, Any]]) -> list[dict[str, Any] | None]:
        """Return the committed offsets of these source partitions. Raises RemoteError, ChannelClosed."""
        found = await self._channel.request(messages.ReadOffsets(self._instance, partitions))
        offsets = log_text.source_offsets(list(zip(partitions, found, strict=True)))
        log.debug("Task %s: read committed source offsets %s", self.spec.name, offsets)
        return found

    def background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in parallel with the thread. The coroutine is cancelled when the task ends."""
        task = self.loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def commit_in_background(self, commit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `commit` every `offset.flush.interval.ms` until the task ends."""
        self.background(self._commit_every_interval(commit))

    async def _commit_every_interval(self, commit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}|offsets"))
        interval_s = self.spec.worker_ms("offset.flush.interval.ms") / 1000
        while True:
            await asyncio.sleep(interval_s)
            await commit()

    async def report_lags_forever(
        self,
        client_id: str,
        positions: Callable[[], Mapping[TopicPartition, int]],
        end_offsets: Callable[[], Coroutine[Any, Any, Mapping[TopicPartition, int]]],
    ) -> None:
        """Report the lag of each partition that has a position, until the task ends."""
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        reported: list[PartitionLag] = []
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            ends = await end_offsets()
            now_s = time.monotonic()
            self.lags.record(positions(), ends, now_s)
            lags = self.lags.report(now_s)
            if lags != reported:
                reported = lags
                self._notify(messages.LagsReported(self._instance, client_id, lags))

    async def _watch_worker(self, timeout_s: float) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        confirmation = messages.ConfirmTask(self._instance)
        await worker_watch.watch(lambda: self._channel.request(confirmation), timeout_s, self._set_confirmed)

    def _set_confirmed(self, is_confirmed: bool) -> None:
        if is_confirmed:
            self._confirmed.set()
            log.info("Task %s: its worker responds and is a member of its group again; continuing", self.spec.name)
        else:
            self._confirmed.clear()
            log.error(
                "Task %s: its worker did not respond within session.timeout.ms or is not a member of its group, so "
                "another worker may run the task. The task %s until its worker responds as a group member",
                self.spec.name,
                self.describe_unconfirmed() if self._has_started else "does not begin to work",
            )
        if self._has_started:
            self.on_confirmed(is_confirmed)

    async def _begin_when_confirmed(self) -> None:
        await self._confirmed.wait()
        self._has_started = True

    def report_member(self, member_id: str) -> None:
        """Report the task's member id in its consumer group. Callable from any thread."""
        self._notify(messages.MemberJoined(self._instance, member_id))

    def use_topic(self, topic: str) -> None:
        """Report that the connector uses a topic (KIP-558). Callable from any thread."""
        self._notify(messages.TopicUsed(self._instance, topic))

    def _run(self) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        state: messages.InstanceState = "STOPPED"
        trace = None
        try:
            self.work()
        except BaseException as error:  # plug-in code may raise anything; only this task fails
            was_interrupted = isinstance(error, ClosedError) or not isinstance(error, Exception)
            if not (was_interrupted and self.stopping.is_set()):
                missing_modules.add_note(error, type(self.task), self.plugins.required_extra)
                for unresolved in self.plugins.unresolved:  # it may have caused the error
                    error.add_note(unresolved)
                state, trace = "FAILED", trace_of(error)
                is_restarted = RestartPolicy.from_config(self.spec.connector_config).is_enabled
                log.exception(
                    "Task %s: threw an uncaught and unrecoverable exception. Task is being killed%s",
                    self.spec.name,
                    "" if is_restarted else " and will not recover until manually restarted",
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
        self._notify(messages.CountersReported(self._instance, self.counters.as_dict(), {}, self.metrics.current()))
        self._ended.set()

    def _wake_task(self) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        try:
            self.wake_task()
        except Exception:
            log.exception("Task %s: wake_up failed", self.spec.name)

    def _report(self, state: messages.InstanceState, trace: str | None = None) -> None:
        self._notify(messages.StateChanged(self._instance, state, trace))

    def _notify(self, message: messages.Notification) -> None:
        self.loop.call_soon_threadsafe(self._channel.notify, message)

    async def _report_forever(self) -> None:
        logs.connector_context.set(logs.context(self.spec.connector, f"task-{self.spec.number}"))
        last_logged, logged_records = time.monotonic(), 0
        reported = None
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            records = self.counters.records
            values = (self.counters.as_dict(), self.gauges(), self.metrics.current())
            if values != reported:
                reported = values
                self._notify(messages.CountersReported(self._instance, *values))
            elapsed = time.monotonic() - last_logged
            if elapsed >= PROGRESS_INTERVAL_S:
                if records != logged_records:
                    rate = (records - logged_records) / elapsed
                    log.info("Task %s: %s records so far, %s records/s", self.spec.name, f"{records:,}", f"{rate:,.0f}")
                last_logged, logged_records = time.monotonic(), records
