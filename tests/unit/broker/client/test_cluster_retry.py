"""Tests of the error messages of client calls that fail after retries."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.client.admin_replicas import ReplicaAdmin
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import BrokerError, TimedOutError
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace_broker.server.network.error_responses import error_response
from support.virtual_time import VirtualTimeLoop

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": "1"}


def timeout_message(*errors: Exception) -> str:
    """Return the message of a TimedOutError after several attempts.

    Each error in `errors` is raised by one attempt. One more attempt follows, and does not complete in time.
    """

    async def run() -> str:
        remaining = list(errors)

        async def attempt() -> None:
            if remaining:
                raise remaining.pop(0)
            await asyncio.sleep(60)

        with pytest.raises(TimedOutError) as raised:
            await Cluster(ClientConfig.from_properties(CONFIG, "admin")).retry(attempt, 300, "electing leaders")
        return str(raised.value)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())


def test_timed_out_error_message_contains_the_error_of_the_last_failed_attempt() -> None:
    no_controller = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "elections", "a majority of voters is not reachable")
    assert timeout_message(no_controller) == (
        "electing leaders: timed out after 300 ms: elections: REQUEST_TIMED_OUT: a majority of voters is not reachable"
    )
    assert timeout_message() == "electing leaders: no response within 300 ms"


def test_elect_leaders_raises_an_error_with_the_message_that_the_broker_returned() -> None:
    async def request_controller(message: ElectLeadersRequest) -> ElectLeadersResponse:
        response: Any = error_response(message, 2, ErrorCode.REQUEST_TIMED_OUT, "a majority of voters is not reachable")
        assert isinstance(response, ElectLeadersResponse)
        return response

    async def run_once(attempt: Any, action: str) -> Any:
        return await attempt()

    admin: Any = ReplicaAdmin()
    admin.cluster, admin._retry = SimpleNamespace(request_controller=request_controller), run_once
    with pytest.raises(BrokerError, match="a majority of voters is not reachable"):
        asyncio.run(admin.elect_leaders(0, [("t", 0)]))
    with pytest.raises(BrokerError, match="REQUEST_TIMED_OUT"):
        asyncio.run(admin.elect_leaders(0, None))
