"""Tests of heartbeats to an unreachable controller: log lines are rate-limited, and heartbeats continue."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace_broker.server.liveness.broker_lifecycle import BrokerLifecycle
from headrace_broker.server.network.controller_channel import NoControllerError
from support.virtual_time import run_in_virtual_time


class FakeChannel:
    """A controller channel on which the first ten heartbeats fail with `error`."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.heartbeats = 0

    async def request(self, request: Any, timeout_ms: int) -> Any:
        await asyncio.sleep(0)
        if isinstance(request, BrokerRegistrationRequest):
            return BrokerRegistrationResponse(broker_epoch=7)
        self.heartbeats += 1
        if self.heartbeats <= 10:
            raise self.error
        return BrokerHeartbeatResponse(is_fenced=False)


def run_until_unfenced(error: Exception) -> None:
    async def work() -> None:
        channel: Any = FakeChannel(error)
        lifecycle = BrokerLifecycle(
            1,
            channel,
            MetadataImage,
            cluster_id="C",
            incarnation_id=bytes(16),
            heartbeat_interval_ms=10,
            registration_timeout_ms=1000,
            session_timeout_ms=1000,
        )
        await lifecycle.register([], None, [], -1)
        async with asyncio.timeout(30):
            await lifecycle.wait_until_unfenced()
        lifecycle.close()

    run_in_virtual_time(work())


def test_loss_and_return_of_the_controller_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    run_until_unfenced(NoControllerError("no active controller: voter 2@b:9093 refuses connections"))
    first, last = [record.getMessage() for record in caplog.records]
    assert "voter 2@b:9093 refuses connections" in first
    assert last == "Broker 1: heartbeats reach the controller again"


def test_heartbeats_continue_after_an_unexpected_exception(caplog: pytest.LogCaptureFixture) -> None:
    """If the heartbeat task ended, the broker would stay fenced permanently."""
    run_until_unfenced(AssertionError("unexpected exception"))
    assert "unexpected exception" in caplog.text
