from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import RequestTimeoutError
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.server.network.controller_channel import ControllerChannel, NoControllerError
from support.virtual_time import VirtualTimeLoop, run_in_virtual_time


class FakeConnection:
    """A connection that responds if `responds` is true. Otherwise a request times out and closes the connection."""

    def __init__(self, responds: bool, request_timeout_ms: float) -> None:
        self.responds = responds
        self.request_timeout_ms = request_timeout_ms
        self.is_open = True

    async def request(self, request: Any, *, version: int) -> BrokerHeartbeatResponse:
        if self.responds:
            return BrokerHeartbeatResponse(is_fenced=False)
        await asyncio.sleep(self.request_timeout_ms / 1000)
        self.is_open = False
        raise RequestTimeoutError("no response")


def fake_connections(monkeypatch: pytest.MonkeyPatch, *responds: bool) -> list[FakeConnection]:
    connections: list[FakeConnection] = []

    async def open_one(*_: Any, request_timeout_ms: float, **__: Any) -> FakeConnection:
        connections.append(FakeConnection(responds[len(connections)], request_timeout_ms))
        return connections[-1]

    monkeypatch.setattr(BrokerConnection, "open", open_one)
    return connections


def test_channel_reconnects_if_the_controller_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP resumes an existing connection only a long time after a network partition has healed."""
    connections = fake_connections(monkeypatch, False, False, True)

    async def run() -> BrokerHeartbeatResponse:
        channel = ControllerChannel(1, {2: ("host", 9093)}, lambda: 2, None, request_timeout_ms=5)
        return await channel.request(BrokerHeartbeatRequest(), 10_000)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert not runner.run(run()).is_fenced
    assert [each.request_timeout_ms for each in connections] == [5, 5, 5]


def test_controller_request_without_response_raises_an_error_when_its_timeout_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_connections(monkeypatch, *[False] * 100)

    async def run() -> None:
        channel = ControllerChannel(1, {2: ("host", 9093)}, lambda: 2, None, request_timeout_ms=5)
        with pytest.raises(NoControllerError, match="node 2, did not respond within 20 ms"):
            await channel.request(BrokerHeartbeatRequest(), 20)

    run_in_virtual_time(run())
