"""Tests of the responses to changes that the config and offsets topics cannot store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.herder.errors import BadRequestError, HerderError, PayloadTooLargeError
from headrace.stores.config_store import TargetState
from headrace_broker.client.errors import BrokerError, ClientError, RecordTooLargeError, TimedOutError
from headrace_broker.protocol.errors import ErrorCode
from support.herder import CONFIG, make_herder

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RecordTooLargeError("2 MB is too large"), PayloadTooLargeError, "2 MB is too large"),
        (BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "configs"), HerderError, "TOPIC_AUTHORIZATION_FAILED"),
        (TimedOutError("late"), HerderError, "can be safely retried"),
    ],
)
async def test_error_for_a_failed_write_to_the_config_topic_says_whether_a_retry_may_succeed(
    tmp_path: Path, error: ClientError, kind: type[HerderError], text: str
) -> None:
    herder, _ = await make_herder(tmp_path)

    async def fail(_change: Any) -> int:
        raise error

    herder._configs.append = fail  # type: ignore[method-assign]
    with pytest.raises(kind, match=text) as caught:
        await herder.put("c", CONFIG)
    assert ("can be safely retried" in str(caught.value)) is error.retriable


async def test_offset_that_is_too_large_for_the_offsets_topic_is_rejected_as_a_bad_request(tmp_path: Path) -> None:
    herder, _ = await make_herder(tmp_path)

    async def fail(*_arguments: Any) -> None:
        raise RecordTooLargeError("2 MB is too large")

    herder._offsets.write = fail  # type: ignore[method-assign]
    await herder.put("c", CONFIG, target=TargetState.STOPPED)
    with pytest.raises(BadRequestError, match="An offset is too large for the offsets topic: 2 MB is too large"):
        await herder.alter_offsets("c", [({"p": 1}, {"o": 1})])
