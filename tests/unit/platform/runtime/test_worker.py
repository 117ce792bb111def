"""Tests of the worker and its host processes: starts, stops, timeouts, and messages from replaced instances."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from headrace.runtime import messages
from headrace.runtime import worker as worker_module
from headrace.runtime.channel import Channel, ChannelClosed, Handler, RemoteError
from headrace.runtime.messages import InstanceState, OffsetPair
from headrace.runtime.processes import ForkServerDied, HostProcess
from headrace.runtime.spec import InstanceId, TaskSpec
from headrace.runtime.worker import CallTimeout, StartTerminated, Worker
from headrace.runtime.worker_config import WorkerConfig
from support.virtual_time import in_virtual_time

pytestmark = pytest.mark.anyio

CONNECTOR, TASK = InstanceId("c", None, 1), InstanceId("c", 0, 2)
SPEC = TaskSpec(connector="c", number=0, config={}, connector_config={}, worker={})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class FakeHost(HostProcess):
    """Stands in for a host process, without starting one: the test itself holds the host's end of the channel.

    `responses` maps a message type to the response, or to an event that must be set before the
    response is sent.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.received: list[Any] = []
        self.responses: dict[type, Any] = {messages.StartTask: "2.0", messages.StartConnector: "1.0"}
        self.killed = False
        self.far_end: Channel

    async def open(self, handler: Handler) -> None:
        near, far = socket.socketpair()
        self.channel = await Channel.open(near, messages.HostMessage, handler)
        self.far_end = await Channel.open(far, messages.WorkerMessage, self._handle)

    def kill(self) -> None:
        self.killed = True
        self.exit(-9)

    def exit(self, status: int) -> None:
        self.far_end.close()
        self._set_ended(status)

    async def _handle(self, message: Any) -> Any:
        self.received.append(message)
        if isinstance(message, messages.Exit):
            self.exit(0)
        response = self.responses.get(type(message))
        if isinstance(response, asyncio.Event):
            await response.wait()
            return None
        return response


class FakeProcesses:
    """Creates `FakeHost` objects. Starts no child processes."""

    def __init__(self) -> None:
        self.hosts: list[FakeHost] = []

    async def spawn(self, name: str, handler: Handler) -> HostProcess:
        host = FakeHost(name)
        await host.open(handler)
        self.hosts.append(host)
        return host

    async def share(self, modules: Sequence[str]) -> bool:
        return False

    async def close(self) -> None:
        for host in self.hosts:
            if not host.ended.done():
                host.exit(-9)


class Listener:
    """Stores the events that the worker reports to the herder."""

    def __init__(self) -> None:
        self.states: list[tuple[InstanceId, str]] = []
        self.ended: list[InstanceId] = []
        self.changed = asyncio.Event()

    def instance_ended(self, instance: InstanceId) -> None:
        self.ended.append(instance)
        self.changed.set()

    def state_changed(
        self, instance: InstanceId, state: InstanceState, trace: str | None, *, was_killed: bool = False
    ) -> None:
        self.states.append((instance, state))
        self.changed.set()

    def values_expire(self, instance: InstanceId, ttl_ms: int) -> None:
        raise AssertionError(ttl_ms)

    def topic_used(self, instance: InstanceId, topic: str) -> None:
        raise AssertionError(topic)

    def reconfiguration_requested(self, instance: InstanceId) -> None:
        raise AssertionError(instance)

    def confirm_task(self, instance: InstanceId) -> None:
        raise LookupError(instance.name)

    async def commit_offsets(self, instance: InstanceId, offsets: Sequence[OffsetPair]) -> None:
        assert list(offsets) == [({"p": 1}, {"o": 2})]

    async def read_offsets(self, instance: InstanceId, partitions: list[dict[Any, Any]]) -> list[dict[str, Any] | None]:
        return [None for _ in partitions]


@contextlib.asynccontextmanager
async def running(**settings: str) -> AsyncIterator[tuple[Worker, FakeProcesses, Listener]]:
    defaults = {"key.converter": "K", "value.converter": "V", "bootstrap.servers": "none:1",
                "offset.storage.file.filename": "unused"}  # fmt: skip
    config = WorkerConfig.standalone(defaults | settings)
    processes, listener = FakeProcesses(), Listener()
    worker = Worker(config, listener, processes)  # type: ignore[arg-type]
    try:
        yield worker, processes, listener
    finally:
        await worker.close()


async def test_start_of_an_instance_returns_the_plugin_version_and_stop_ends_its_host_process() -> None:
    async with running() as (worker, processes, _):
        assert await worker.start_connector(CONNECTOR, {}) == "1.0"
        assert await worker.start_task(TASK, SPEC) == "2.0"
        await worker.stop_all()
        for host, id_ in zip(processes.hosts, (CONNECTOR, TASK), strict=True):
            assert [type(each) for each in host.received[1:]] == [messages.StopInstance, messages.Exit]
            assert host.received[1].instance == id_
            assert not host.killed


async def test_offset_requests_of_replaced_task_instances_are_rejected() -> None:
    async with running() as (worker, processes, _):
        await worker.start_task(TASK, SPEC)
        (host,) = processes.hosts
        await host.far_end.request(messages.CommitOffsets(TASK, [({"p": 1}, {"o": 2})]))
        assert await host.far_end.request(messages.ReadOffsets(TASK, [{"p": 1}])) == [None]
        replaced = InstanceId("c", 0, 1)
        with pytest.raises(RemoteError, match="has been replaced or stopped"):
            await host.far_end.request(messages.CommitOffsets(replaced, [({"p": 1}, {"o": 2})]))
        host.far_end.notify(
            messages.TopicUsed(replaced, "t")
        )  # if the worker passed this message on, the listener would raise an error


async def test_host_process_that_does_not_respond_to_a_request_in_time_is_killed() -> None:
    async with running(**{"connector.validation.timeout.ms": "50"}) as (worker, processes, _):
        await worker.start_connector(CONNECTOR, {})
        (host,) = processes.hosts
        host.responses[messages.TaskConfigsRequest] = asyncio.Event()
        with pytest.raises(CallTimeout, match="c did not respond to TaskConfigsRequest within"):
            await worker.task_configs(CONNECTOR)
        assert host.killed


async def test_task_fails_if_its_host_process_exits_unexpectedly() -> None:
    async with running() as (worker, processes, listener):
        await worker.start_task(TASK, SPEC)
        processes.hosts[0].exit(-11)
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert listener.states == [(TASK, "FAILED")]


async def test_totals_of_a_task_remain_after_its_process_has_exited_until_the_task_is_stopped() -> None:
    async with running() as (worker, processes, listener):
        await worker.start_task(TASK, SPEC)
        (host,) = processes.hosts
        host.far_end.notify(messages.CountersReported(TASK, {"total_record_errors": 1}, {"record_rate": 5.0}))
        host.far_end.notify(messages.StateChanged(TASK, "RUNNING", None))
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert worker.task_metrics()[0].values["record_rate"] == 5
        host.exit(-11)
        while (TASK, "FAILED") not in listener.states:
            listener.changed.clear()
            await asyncio.wait_for(listener.changed.wait(), 30)
        (metrics,) = worker.task_metrics()
        assert (metrics.connector, metrics.task) == (TASK.connector, TASK.task)
        assert metrics.values["total_record_errors"] == 1
        assert "record_rate" not in metrics.values
        await worker.stop(TASK)
        assert worker.task_metrics() == []


async def test_instances_whose_processes_died_with_the_fork_server_are_started_again() -> None:
    async with running() as (worker, processes, listener):
        await worker.start_connector(CONNECTOR, {})
        await worker.start_task(TASK, SPEC)
        for host in processes.hosts:
            host.died_with_fork_server = True
            host.exit(-9)
        while len(listener.ended) < 2:
            listener.changed.clear()
            await asyncio.wait_for(listener.changed.wait(), 30)
        assert (set(listener.ended), listener.states) == ({CONNECTOR, TASK}, [])


async def test_start_of_a_task_is_repeated_if_the_fork_server_dies_during_the_start() -> None:
    async with running() as (worker, processes, _):
        spawn, failures = processes.spawn, [ForkServerDied("the fork server died")]

        async def spawn_after_failure(name: str, handler: Handler) -> HostProcess:
            if failures:
                raise failures.pop()
            return await spawn(name, handler)

        processes.spawn = spawn_after_failure  # type: ignore[method-assign]
        starting = asyncio.ensure_future(worker.start_task(TASK, SPEC))
        assert await asyncio.wait_for(starting, 30) == "2.0"
        assert len(processes.hosts) == 1


@in_virtual_time
async def test_second_stop_of_a_task_waits_until_the_first_stop_completes() -> None:
    async with running() as (worker, processes, _):
        await worker.start_task(TASK, SPEC)
        (host,) = processes.hosts
        proceed = host.responses[messages.StopInstance] = asyncio.Event()
        first, second = asyncio.ensure_future(worker.stop(TASK)), asyncio.ensure_future(worker.stop_all())
        done, _ = await asyncio.wait({first, second}, timeout=0.05)
        assert not done
        proceed.set()
        await asyncio.wait_for(asyncio.gather(first, second), 30)
        assert sum(isinstance(each, messages.StopInstance) for each in host.received) == 1


async def report_member(host: FakeHost, listener: Listener) -> None:
    """Report the member "m" of the task's consumer group, and wait until the worker has handled the message."""
    host.far_end.notify(messages.MemberJoined(TASK, "m"))
    host.far_end.notify(messages.StateChanged(TASK, "RUNNING", None))
    await asyncio.wait_for(listener.changed.wait(), 30)
    listener.changed.clear()


async def test_task_that_starts_again_after_its_process_was_killed_removes_its_old_consumer_group_member() -> None:
    async with running() as (worker, processes, listener):
        await worker.start_task(TASK, SPEC)
        await report_member(processes.hosts[0], listener)
        processes.hosts[0].exit(-9)
        await asyncio.wait_for(listener.changed.wait(), 30)
        for generation in (3, 4):  # the first of these processes ends before it has removed the member
            await worker.start_task(InstanceId("c", 0, generation), SPEC)
            processes.hosts[-1].exit(-9)
        assert [host.received[0].spec.dead_member for host in processes.hosts] == ["", "m", "m"]


async def test_task_that_is_restarted_after_a_graceful_stop_removes_no_member_from_its_group() -> None:
    """The task's member left the consumer group when the task stopped."""
    async with running() as (worker, processes, listener):
        await worker.start_task(TASK, SPEC)
        await report_member(processes.hosts[0], listener)
        await worker.stop(TASK)
        await worker.start_task(InstanceId("c", 0, 3), SPEC)
        assert processes.hosts[1].received[0].spec.dead_member == ""


async def test_group_member_is_not_removed_if_its_task_runs_in_a_shared_process_and_does_not_stop() -> None:
    """The task may still put records. If its member was removed, the restarted task would read the same partitions."""
    shared = {"task.isolation": "connector", "task.shutdown.graceful.timeout.ms": "50"}
    async with running(**shared) as (worker, processes, listener):
        await worker.start_task(TASK, SPEC)
        await worker.start_task(InstanceId("c", 1, 2), SPEC)
        (host,) = processes.hosts
        await report_member(host, listener)
        host.responses[messages.StopInstance] = asyncio.Event()  # never set
        await worker.stop(TASK)
        await worker.start_task(InstanceId("c", 0, 3), SPEC)
        assert [each.spec.dead_member for each in host.received if isinstance(each, messages.StartTask)] == [""] * 3


async def test_host_process_of_a_task_that_does_not_stop_within_the_graceful_timeout_is_killed() -> None:
    async with running(**{"task.shutdown.graceful.timeout.ms": "50"}) as (worker, processes, _):
        await worker.start_task(TASK, SPEC)
        (host,) = processes.hosts
        host.responses[messages.StopInstance] = asyncio.Event()
        await worker.stop(TASK)
        assert host.killed


async def test_stop_of_a_failed_task_returns_after_its_host_process_has_ended() -> None:
    async with running() as (worker, processes, listener):
        await worker.start_task(TASK, SPEC)
        (host,) = processes.hosts
        host.far_end.notify(messages.StateChanged(TASK, "FAILED", "trace"))
        await asyncio.wait_for(listener.changed.wait(), 30)
        await worker.stop(TASK)
        assert host.ended.done()
        assert not host.killed
        assert listener.states == [(TASK, "FAILED")]


async def test_pause_resume_and_log_level_changes_are_sent_to_the_host_process_of_a_running_task() -> None:
    async with running() as (worker, processes, _):
        await worker.start_task(TASK, SPEC)
        worker.set_log_level("headrace", "DEBUG", 1)
        worker.pause_task(TASK)
        worker.resume_task(TASK)
        worker.pause_task(InstanceId("c", 0, 1))  # no message is sent for an instance that has been replaced
        await worker.stop(TASK)
        level = messages.SetLogLevel("headrace", "DEBUG", 1)
        expected = [level, messages.PauseTask(TASK), messages.ResumeTask(TASK), messages.StopInstance(TASK)]
        assert processes.hosts[0].received[1:-1] == expected


async def test_new_host_processes_receive_the_log_levels_in_the_order_of_their_last_changes() -> None:
    async with running() as (worker, processes, _):
        worker.set_log_level("headrace", "DEBUG", 1)
        worker.set_log_level("headrace.runtime", "INFO", 2)
        worker.set_log_level("headrace", "DEBUG", 3)
        await worker.start_task(TASK, SPEC)
        last = [messages.SetLogLevel("headrace.runtime", "INFO", 2), messages.SetLogLevel("headrace", "DEBUG", 3)]
        assert processes.hosts[0].received[:2] == last


async def test_log_level_change_is_sent_to_processes_without_instances() -> None:
    async with running() as (worker, processes, _):
        with pytest.raises(RemoteError):  # the fake process responds with None
            await worker.connector_type({"connector.class": "C"})
        [host] = processes.hosts
        worker.set_log_level("headrace", "DEBUG", 1)
        await host.channel.request(messages.Ping())
        assert messages.SetLogLevel("headrace", "DEBUG", 1) in host.received


A, B = InstanceId("a", None, 1), InstanceId("b", None, 2)


async def test_shared_host_process_of_a_connector_class_ends_when_its_last_connector_stops() -> None:
    async with running() as (worker, processes, _):
        for id_ in (A, B):
            await worker.start_connector(id_, {"connector.class": "C"})
        await worker.start_connector(CONNECTOR, {"connector.class": "D"})
        assert len(processes.hosts) == 2
        await worker.stop(A)
        assert not processes.hosts[0].ended.done()
        await worker.stop(B)
        assert processes.hosts[0].ended.done()
        assert not processes.hosts[1].ended.done()


async def test_hung_connector_has_state_failed_and_other_connectors_in_its_host_process_are_started_again() -> None:
    async with running(**{"connector.validation.timeout.ms": "50"}) as (worker, processes, listener):
        for id_ in (A, B):
            await worker.start_connector(id_, {"connector.class": "C"})
        processes.hosts[0].responses[messages.TaskConfigsRequest] = asyncio.Event()
        with pytest.raises(CallTimeout, match="a did not respond"):
            await worker.task_configs(A)
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert (listener.states, listener.ended) == ([(A, "FAILED")], [B])
        for id_ in (A, B):
            await worker.start_connector(InstanceId(id_.connector, None, 3), {"connector.class": "C"})
        assert len(processes.hosts) == 3, "the connector that hung has a process of its own"


async def test_connectors_are_started_again_in_separate_processes_if_the_event_loop_of_their_shared_process_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connector that does not respond may not be at fault: a thread of another connector may hold the GIL.

    In separate processes, the next hang shows which connector is at fault.
    """
    monkeypatch.setattr(worker_module, "PING_TIMEOUT_S", 0.05)
    async with running(**{"connector.validation.timeout.ms": "50"}) as (worker, processes, listener):
        connectors = [InstanceId(name, None, 1) for name in ("good", "bad")]
        for connector in connectors:
            await worker.start_connector(connector, {"connector.class": "C"})
        (host,) = processes.hosts
        host.responses |= {messages.TaskConfigsRequest: asyncio.Event(), messages.Ping: asyncio.Event()}
        with pytest.raises(CallTimeout):
            await worker.task_configs(connectors[0])
        while len(listener.ended) < 2:
            listener.changed.clear()
            await asyncio.wait_for(listener.changed.wait(), 30)
        assert (set(listener.ended), listener.states) == (set(connectors), [])
        for connector in connectors:
            await worker.start_connector(connector, {"connector.class": "C"})
        assert len(processes.hosts) == 3


async def test_connectors_are_started_again_in_separate_host_processes_if_their_shared_process_exits() -> None:
    async with running() as (worker, processes, listener):
        for id_ in (A, B):
            await worker.start_connector(id_, {"connector.class": "C"})
        processes.hosts[0].exit(-11)
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert (listener.states, listener.ended) == ([], [A, B])
        for id_ in (A, B):
            await worker.start_connector(InstanceId(id_.connector, None, 3), {"connector.class": "C"})
        assert len(processes.hosts) == 3, "each has a process of its own, so that the next exit shows which is at fault"
        processes.hosts[1].exit(-11)
        listener.changed.clear()
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert listener.states == [(InstanceId("a", None, 3), "FAILED")]


async def test_interrupted_start_of_a_connector_is_repeated_if_its_shared_process_exits() -> None:
    """Two connectors start in the shared process. Each of them is then started in a process of its own."""
    async with running() as (worker, processes, listener):
        await worker.start_connector(A, {"connector.class": "C"})
        processes.hosts[0].responses[messages.StartConnector] = asyncio.Event()
        starts = [
            asyncio.ensure_future(worker.start_connector(id_, {"connector.class": "C"})) for id_ in (B, CONNECTOR)
        ]
        while len(processes.hosts[0].received) < 3:  # noqa: ASYNC110 - the fake host has no event for it
            await asyncio.sleep(0)
        processes.hosts[0].exit(1)
        assert await asyncio.gather(*starts) == ["1.0", "1.0"]
        assert listener.ended == [A]
        assert len(processes.hosts) == 3, "both have a process of their own; the first connector starts again later"


async def test_connectors_are_started_again_if_the_channel_of_their_shared_process_closes_but_the_process_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plug-in may close all file descriptors of its process."""
    monkeypatch.setattr(worker_module, "EXIT_TIMEOUT_S", 0.05)
    async with running() as (worker, processes, listener):
        for id_ in (A, B):
            await worker.start_connector(id_, {"connector.class": "C"})
        processes.hosts[0].far_end.close()
        await processes.hosts[0].channel.closed.wait()
        with pytest.raises(ChannelClosed):
            await worker.task_configs(A)
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert processes.hosts[0].killed
        assert (listener.states, listener.ended) == ([], [A, B])
        for id_ in (A, B):
            await worker.start_connector(InstanceId(id_.connector, None, 3), {"connector.class": "C"})
        assert len(processes.hosts) == 3


async def test_connector_does_not_start_in_a_shared_process_whose_channel_has_closed() -> None:
    async with running() as (worker, processes, _):
        await worker.start_connector(A, {"connector.class": "C"})
        processes.hosts[0].far_end.close()
        await processes.hosts[0].channel.closed.wait()
        await asyncio.wait_for(worker.start_connector(B, {"connector.class": "C"}), 30)
        assert len(processes.hosts) == 2


async def test_task_fails_if_the_channel_of_its_process_closes_but_the_process_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "EXIT_TIMEOUT_S", 0.05)
    async with running() as (worker, processes, listener):
        await worker.start_task(TASK, SPEC)
        processes.hosts[0].far_end.close()
        await asyncio.wait_for(listener.changed.wait(), 30)
        assert processes.hosts[0].killed
        assert listener.states == [(TASK, "FAILED")]


@pytest.mark.parametrize("id_", [CONNECTOR, TASK], ids=["connector", "task"])
@in_virtual_time
async def test_aborting_a_hung_start_of_a_connector_or_task_kills_its_process_and_logs_one_warning_and_no_error(
    id_: InstanceId, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(**{"task.shutdown.graceful.timeout.ms": "50"}) as (worker, processes, listener):
        spawn = processes.spawn

        async def spawn_hanging(name: str, handler: Handler) -> HostProcess:
            host = await spawn(name, handler)
            processes.hosts[-1].responses = dict.fromkeys(
                (messages.StartTask, messages.StartConnector), asyncio.Event()
            )
            return host

        processes.spawn = spawn_hanging  # type: ignore[method-assign]
        call = worker.start_connector(id_, {}) if id_ is CONNECTOR else worker.start_task(id_, SPEC)
        start = asyncio.ensure_future(call)
        await asyncio.wait([start], timeout=0.05)
        watchers = list(worker._watchers)
        await worker.abort_start(id_)
        with pytest.raises(StartTerminated):
            await asyncio.wait_for(start, 30)
        assert processes.hosts[0].killed
        await asyncio.wait(watchers, timeout=5)  # they handle the ends of processes
    assert listener.states == []
    (line,) = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert (line.levelname, "its start is no longer wanted" in line.getMessage()) == ("WARNING", True)
