"""Tests that a sink's consumer polls again before its task has put the records of earlier polls.

The number of these earlier polls and the size of their records are limited.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.runtime.sink_consumer import POLLS_MAX, WAITING_BYTES_MAX, WaitingPolls
from support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualTimeLoop}


class Chunk:
    """A fake fetched chunk that has only a size."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


async def is_poll_allowed(waiting: WaitingPolls) -> bool:
    """Return whether another poll is allowed while the records of the polls in `waiting` wait for the task."""
    try:
        async with asyncio.timeout(0.01):
            await waiting.wait_until_below_limits()
        return True
    except TimeoutError:
        return False


def polls(*sizes: int) -> WaitingPolls:
    waiting = WaitingPolls()
    for size in sizes:
        chunks: Any = [Chunk(size // 2), Chunk(size - size // 2)] if size else []
        waiting.add(chunks)
    return waiting


@pytest.mark.parametrize(
    ("waiting", "is_allowed"),
    [
        ((), True),
        ((1,) * (POLLS_MAX - 1), True),
        ((0,) * POLLS_MAX, False),
        ((WAITING_BYTES_MAX,), True),
        ((WAITING_BYTES_MAX + 1,), False),
        ((WAITING_BYTES_MAX, 1), False),
    ],
)
async def test_consumer_is_polled_only_while_the_records_waiting_for_the_task_are_below_the_count_and_size_limits(
    waiting: tuple[int, ...], is_allowed: bool
) -> None:
    assert await is_poll_allowed(polls(*waiting)) is is_allowed


async def test_consumer_delays_the_next_poll_until_the_task_has_put_earlier_records() -> None:
    waiting = polls(WAITING_BYTES_MAX + 1, 5)
    poll = asyncio.ensure_future(waiting.wait_until_below_limits())
    await asyncio.sleep(0)
    assert not poll.done()
    waiting.remove(2)
    async with asyncio.timeout(30):
        await poll
