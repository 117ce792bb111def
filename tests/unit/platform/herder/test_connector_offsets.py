"""Tests of the offsets of connectors that have an offsets topic of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.herder import connector_offsets
from headrace.herder.connector_offsets import ConnectorOffsets
from headrace.stores.internal_topics import InternalTopicError
from headrace.stores.offset_store import MemoryOffsetStore
from support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


async def test_request_for_offsets_fails_after_a_timeout_if_the_connectors_own_offsets_topic_cannot_be_opened() -> None:
    async def resolve(_settings: Mapping[str, str]) -> dict[str, str]:
        await asyncio.sleep(1000)
        raise AssertionError

    worker: Any = {"offset.storage.topic": "offsets"}
    offsets = ConnectorOffsets(
        worker,
        MemoryOffsetStore(),
        config_of=lambda _: {"offsets.storage.topic": "own", "admin.override.bootstrap.servers": "${a:b}"},
        resolve=resolve,
        is_in_use=lambda _: False,
    )
    with pytest.raises(InternalTopicError, match=r"offsets\.storage\.topic=own: the topic of connector c could not be"):
        await asyncio.wait_for(offsets.read_all("c"), connector_offsets.START_TIMEOUT_S + 1)
