"""A broker that no controller hears says so once, and once when it is heard again; nothing ends its heartbeats."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace_broker.server.membership.lifecycle import BrokerLifecycle
from headrace_broker.server.network.controller_channel import NoControllerError


class PlayedChannel:
    """This goes wrong for the first ten heartbeats."""

    def __init__(self, fault: Exception) -> None:
        self.fault = fault
        self.heartbeats = 0

    async def request(self, request: Any, timeout_ms: int) -> Any:
        await asyncio.sleep(0)
        if isinstance(request, BrokerRegistrationRequest):
            return BrokerRegistrationResponse(broker_epoch=7)
        self.heartbeats += 1
        if self.heartbeats <= 10:
            raise self.fault
        return BrokerHeartbeatResponse(is_fenced=False)


def unfenced_after(fault: Exception) -> None:
    async def work() -> None:
        channel: Any = PlayedChannel(fault)
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
        async with asyncio.timeout(5):
            await lifecycle.unfenced()
        lifecycle.close()

    asyncio.run(work())


def test_a_broker_that_is_not_heard_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    unfenced_after(NoControllerError("no active controller: voter 2@b:9093 refuses connections"))
    first, last = [record.getMessage() for record in caplog.records]
    assert "voter 2@b:9093 refuses connections" in first
    assert last == "broker 1 is heard by a controller again"


def test_what_nobody_expected_ends_no_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    """The broker would be fenced for good, and not know it."""
    unfenced_after(AssertionError("nobody expected that"))
    assert "nobody expected that" in caplog.text
