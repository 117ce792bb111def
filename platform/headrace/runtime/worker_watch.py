"""Detects that the worker of a task is suspended or has lost its membership, so that the task stops its work.

Another worker may then run the task, too. The task asks its worker regularly, and continues when the worker confirms
that it may run the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.runtime.channel import ChannelClosed, RemoteError

INTERVALS_PER_TIMEOUT = 3


async def watch(
    confirm: Callable[[], Awaitable[None]], timeout_s: float, set_confirmed: Callable[[bool], None]
) -> None:
    """Call `confirm` regularly. Call `set_confirmed(False)` at the latest `timeout_s` after its last success.

    `confirm` raises RemoteError if the worker may not run the task. This function returns when the worker has exited.
    """
    interval_s = timeout_s / INTERVALS_PER_TIMEOUT
    is_confirmed = True
    while True:
        await asyncio.sleep(interval_s)
        try:
            async with asyncio.timeout(timeout_s - interval_s if is_confirmed else None):
                await confirm()
        except (TimeoutError, RemoteError):
            succeeded = False
        except ChannelClosed:
            return
        else:
            succeeded = True
        if succeeded is not is_confirmed:
            is_confirmed = succeeded
            set_confirmed(is_confirmed)
