"""Runs tasks in the fork server before it forks, so that its children share the memory that a running task changes.

Python changes memory when it runs code. It specializes the bytecode of a function that is called again, and it fills
the caches of attribute lookups, which changes the reference counts of attribute names. A child that makes these changes
itself has its own copy of each page that it changes. `steps` makes these changes in the fork server. Each step starts a
source task and a sink task, lets each task process one record, and stops the tasks, in the same way as
`headrace.runtime.host` does for the worker. The tasks use a broker that exists only for the step (`warm_up_broker`).

After each step, the step's event loop is closed and all its threads have ended, so the fork server can fork.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from headrace.api.task import SinkTask, SourceTask
from headrace.data.batch import SourceBatch
from headrace.data.schema import STRING_SCHEMA
from headrace.metrics import logs
from headrace.runtime import event_loops, host, messages
from headrace.runtime.channel import Channel
from headrace.runtime.code_copies import CodeCopies
from headrace.runtime.spec import InstanceId, TaskSpec
from headrace.runtime.warm_up_broker import TOPIC, WarmUpBroker

STEPS = 10  # Python specializes a function in its eighth call
TIMEOUT_S = 10.0
_THREADS_TIMEOUT_S = 5.0
_POLL_WAIT_S = 0.001
_STRING = "org.apache.kafka.connect.storage.StringConverter"
_CONVERTERS = (_STRING, "org.apache.kafka.connect.json.JsonConverter")


class WarmUpError(Exception):
    """A task of the warm-up failed, or a thread of the warm-up did not end."""


class WarmUpSourceTask(SourceTask):
    """Sends one record, and is idle after that."""

    def start(self, config: Any) -> None:
        """Read an offset, as most sources do."""
        self.context.offsets.read({"warm-up": "source"})
        self._polls = 0

    def poll(self) -> SourceBatch | None:
        """Return one record in the first call and None in later calls."""
        self._polls += 1
        if self._polls > 1:
            self.context.wait(_POLL_WAIT_S)
            return None
        return SourceBatch(
            TOPIC,
            ["a line"],
            value_schema=STRING_SCHEMA,
            timestamps=1,
            source_partition={"warm-up": "source"},
            source_offset={"position": 1},
        )


class WarmUpSinkTask(SinkTask):
    """Receives records, drops them, and requests a commit of their offsets."""

    def put(self, records: Any) -> None:
        """Drop the records."""
        if records:
            self.context.request_commit()


class _Worker:
    """The worker's side of the warm-up: starts tasks in a host on the same event loop, and stops them."""

    def __init__(self, broker: WarmUpBroker, converter: str) -> None:
        self._broker = broker
        self._properties = {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "key.converter": _STRING,
            "value.converter": converter,
        }
        self._running: dict[InstanceId, asyncio.Future[None]] = {}
        self.channel: Channel

    async def handle(self, message: messages.HostMessage) -> Any:
        """Handle a message of a task."""
        match message:
            case messages.StateChanged(instance, state, trace):
                running = self._running[instance]
                if state == "FAILED" and not running.done():
                    running.set_exception(WarmUpError(trace))
                elif not running.done():
                    running.set_result(None)
            case messages.ReadOffsets(_, partitions):
                return [None for _ in partitions]
        return None

    async def run_task(self, kind: str, number: int) -> None:
        """Run a task until it has sent its record, or has committed the offset of the record that it received."""
        spec = _spec(kind, number, self._properties)
        instance = InstanceId(spec.connector, spec.number, 1)
        self._broker.idle.clear()
        self._running[instance] = asyncio.get_running_loop().create_future()
        await self.channel.request(messages.StartTask(instance, spec))
        await self._running[instance]
        await self._broker.idle.wait()
        await self.channel.request(messages.StopInstance(instance))


def _spec(kind: str, number: int, worker: Mapping[str, str]) -> TaskSpec:
    task_class = WarmUpSourceTask if kind == "source" else WarmUpSinkTask
    connector = {"name": f"warm-up-{kind}-{number}"}
    if kind == "sink":
        connector["topics"] = TOPIC
    task = {**connector, "task.class": f"{__name__}:{task_class.__name__}"}
    return TaskSpec(connector=connector["name"], number=0, config=task, connector_config=connector, worker=dict(worker))


def steps(copies: CodeCopies, number: int = STEPS) -> Iterator[None]:
    """Run a step in each iteration. The steps convert strings and JSON in turn.

    The first two steps record the functions that they call. The second step then copies their code.

    Raises WarmUpError if a task fails, OSError if no loopback port is available, and TimeoutError. After an error, the
    caller replaces this process, because threads may still be running and logging is disabled.
    """
    sys._clear_type_cache()  # it contains names that were needed only for imports
    for step in range(number):
        converter = _CONVERTERS[step % len(_CONVERTERS)]
        with copies.recording() if step < len(_CONVERTERS) else nullcontext():
            _run_step(step, converter)
        if step + 1 == len(_CONVERTERS):
            copies.copy()
        yield


def _run_step(step: int, converter: str) -> None:
    threads = _count_threads()
    logging.disable(logging.CRITICAL)
    loop = event_loops.new_loop()
    loop.run_until_complete(asyncio.wait_for(_run_tasks(step, converter), TIMEOUT_S))
    loop.run_until_complete(_cancel_leftovers())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    logs.clear_process_context()
    logging.disable(logging.NOTSET)
    deadline = time.monotonic() + _THREADS_TIMEOUT_S
    while _count_threads() > threads:
        if time.monotonic() > deadline:
            raise WarmUpError(f"a thread did not end: {threading.enumerate()}")
        time.sleep(0.001)  # poll, because the threads of tasks are daemon threads, which nothing joins


def _count_threads() -> int:
    """Return the number of threads. On Linux, it includes threads that have ended, but still exist in the kernel."""
    try:
        return len(os.listdir("/proc/self/task"))
    except FileNotFoundError:
        return threading.active_count()


async def _run_tasks(step: int, converter: str) -> None:
    async with WarmUpBroker() as broker:
        ours, theirs = socket.socketpair()
        worker = _Worker(broker, converter)
        serving = asyncio.ensure_future(host.Host().run(theirs))
        worker.channel = await Channel.open(ours, messages.HostMessage, worker.handle)
        await worker.run_task("source", step)
        await worker.run_task("sink", step)
        worker.channel.notify(messages.Exit())
        await serving
        worker.channel.close()


async def _cancel_leftovers() -> None:
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftovers:
        task.cancel()
    await asyncio.gather(*leftovers, return_exceptions=True)
