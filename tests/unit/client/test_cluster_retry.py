"""What a call that failed again and again says in the end."""

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
from headrace_broker.server.network.refusals import refused

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": "1"}


def told(*errors: Exception) -> str:
    """What is raised when attempts end with these errors, and the next one does not end."""

    async def go() -> str:
        left = list(errors)

        async def attempt() -> None:
            if left:
                raise left.pop(0)
            await asyncio.sleep(60)

        with pytest.raises(TimedOutError) as raised:
            await Cluster(ClientConfig.from_properties(CONFIG, "admin")).retry(attempt, 300, "electing leaders")
        return str(raised.value)

    return asyncio.run(go())


def test_a_last_attempt_without_an_answer_hides_no_reason() -> None:
    no_controller = BrokerError(ErrorCode.REQUEST_TIMED_OUT, "elections", "a majority of voters is not reachable")
    assert told(no_controller) == (
        "electing leaders: not done within 300 ms: elections: REQUEST_TIMED_OUT: a majority of voters is not reachable"
    )
    assert told() == "electing leaders: no answer within 300 ms"


def test_elections_that_are_refused_as_a_whole_say_why() -> None:
    async def request_controller(message: ElectLeadersRequest) -> ElectLeadersResponse:
        response: Any = refused(message, 2, ErrorCode.REQUEST_TIMED_OUT, "a majority of voters is not reachable")
        assert isinstance(response, ElectLeadersResponse)
        return response

    async def once(attempt: Any, what: str) -> Any:
        return await attempt()

    admin: Any = ReplicaAdmin()
    admin.cluster, admin._retry = SimpleNamespace(request_controller=request_controller), once
    with pytest.raises(BrokerError, match="a majority of voters is not reachable"):
        asyncio.run(admin.elect_leaders(0, [("t", 0)]))
    with pytest.raises(BrokerError, match="REQUEST_TIMED_OUT"):
        asyncio.run(admin.elect_leaders(0, None))
