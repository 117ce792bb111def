"""Is a node's process there?  A connection that is refused says that it is not; silence says nothing.

A process that dies closes its connections before its listening socket: for a moment whoever connects anew is accepted
by the kernel, and cut off at once.  So a connection counts as a sign of life only when it lasts.
"""

from __future__ import annotations

import asyncio
import errno
import re

_TRIES = 10
_PAUSE_S = 0.02
_CONNECT_TIMEOUT_S = 1.0
_LASTS_S = 0.1
_REFUSED = str(errno.ECONNREFUSED)
_NO_PROTOCOL = {str(errno.EADDRNOTAVAIL), str(errno.ENETUNREACH), str(errno.EAFNOSUPPORT)}


def was_refused(error: BaseException | None) -> bool:
    """Whether a failure to connect means that nobody listens there, at any address of the host's name."""
    if isinstance(error, ConnectionRefusedError):
        return True
    if not isinstance(error, OSError):
        return False
    numbers = set(re.findall(r"\[Errno (\d+)\]", str(error)))  # "Multiple exceptions: [Errno 111] ..., [Errno 99] ..."
    return _REFUSED in numbers and numbers <= {_REFUSED, *_NO_PROTOCOL}


async def refuses_connections(host: str, port: int) -> bool:
    """Whether the process that listened there is gone: twice in a row it refuses a connection."""
    refusals = 0
    for _ in range(_TRIES):
        lost = await _connect(host, port)
        if lost is None:
            return False
        refusals = refusals + 1 if was_refused(lost) else 0
        if refusals == 2:
            return True
        await asyncio.sleep(_PAUSE_S)
    return False


async def _connect(host: str, port: int) -> BaseException | None:
    """What became of a connection: None when it lasts, or when nothing is known; else why it is not there."""
    loop = asyncio.get_running_loop()
    probe = _Probe()
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            transport, _ = await loop.create_connection(lambda: probe, host, port)
    except TimeoutError:
        return None
    except OSError as error:
        return error if was_refused(error) or isinstance(error, ConnectionError) else None
    try:
        async with asyncio.timeout(_LASTS_S):
            await probe.lost.wait()
    except TimeoutError:
        return None
    finally:
        transport.close()
    return ConnectionResetError()


class _Probe(asyncio.Protocol):
    """Notes the end of its connection."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
