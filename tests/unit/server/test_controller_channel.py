from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_broker.client.connection import Connection
from headrace_broker.client.errors import RequestTimeoutError
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.server.network.controller_channel import ControllerChannel, NoControllerError


class Silent:
    """In the place of a connection: answers nothing, or all, and is lost after the time it was opened with."""

    def __init__(self, answers: bool, request_timeout_ms: float) -> None:
        self.answers = answers
        self.request_timeout_ms = request_timeout_ms
        self.is_open = True

    async def request(self, request: Any, *, version: int) -> BrokerHeartbeatResponse:
        if self.answers:
            return BrokerHeartbeatResponse(is_fenced=False)
        await asyncio.sleep(self.request_timeout_ms / 1000)
        self.is_open = False
        raise RequestTimeoutError("silence")


def opened(monkeypatch: pytest.MonkeyPatch, *answers: bool) -> list[Silent]:
    connections: list[Silent] = []

    async def open_one(*_: Any, request_timeout_ms: float, **__: Any) -> Silent:
        connections.append(Silent(answers[len(connections)], request_timeout_ms))
        return connections[-1]

    monkeypatch.setattr(Connection, "open", open_one)
    return connections


def test_a_silent_controller_is_connected_to_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut network that works again takes up an old connection only after a long time."""
    connections = opened(monkeypatch, False, False, True)

    async def run() -> BrokerHeartbeatResponse:
        channel = ControllerChannel(1, {2: ("host", 9093)}, lambda: 2, None, silence_ms=5)
        return await channel.request(BrokerHeartbeatRequest(), 10_000)

    assert not asyncio.run(run()).is_fenced
    assert [each.request_timeout_ms for each in connections] == [5, 5, 5]


def test_whoever_asks_is_told_when_his_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch, *[False] * 100)

    async def run() -> None:
        channel = ControllerChannel(1, {2: ("host", 9093)}, lambda: 2, None, silence_ms=5)
        with pytest.raises(NoControllerError, match="node 2, did not answer within 20 ms"):
            await channel.request(BrokerHeartbeatRequest(), 20)

    asyncio.run(run())
