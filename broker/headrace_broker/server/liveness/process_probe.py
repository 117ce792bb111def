"""Probes whether a node's process is alive: a refused connection proves that it is dead, a timeout does not.

A process that dies closes its connections before its listening socket. For a moment the kernel still accepts new
connections and then closes them immediately. So only a connection that stays open shows that the process is alive.
"""

from __future__ import annotations

import asyncio
import errno
import re

_TRIES = 10
_PAUSE_S = 0.02
_CONNECT_TIMEOUT_S = 1.0
_STABLE_AFTER_S = 0.1
_REFUSED = str(errno.ECONNREFUSED)
_ADDRESS_UNUSABLE = {str(errno.EADDRNOTAVAIL), str(errno.ENETUNREACH), str(errno.EAFNOSUPPORT)}


def is_connection_refused(error: BaseException | None) -> bool:
    """Return whether a connection failed because no process listens on its port at any address of the host."""
    if isinstance(error, ConnectionRefusedError):
        return True
    if not isinstance(error, OSError):
        return False
    # asyncio's text is "Multiple exceptions: [Errno 111] ..., [Errno 99] ..."
    numbers = set(re.findall(r"\[Errno (\d+)\]", str(error)))
    return _REFUSED in numbers and numbers <= {_REFUSED, *_ADDRESS_UNUSABLE}


async def refuses_connections(host: str, port: int) -> bool:
    """Return whether this address refused two connections in a row, which means that its process is dead."""
    refusals = 0
    for _ in range(_TRIES):
        error = await _connect(host, port)
        if error is None:
            return False
        refusals = refusals + 1 if is_connection_refused(error) else 0
        if refusals == 2:
            return True
        await asyncio.sleep(_PAUSE_S)
    return False


async def _connect(host: str, port: int) -> BaseException | None:
    """Try to connect. Return None if the connection stays open or the result is inconclusive, else the error."""
    loop = asyncio.get_running_loop()
    probe = _ProbeProtocol()
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            transport, _ = await loop.create_connection(lambda: probe, host, port)
    except TimeoutError:
        return None
    except OSError as error:
        return error if is_connection_refused(error) or isinstance(error, ConnectionError) else None
    try:
        async with asyncio.timeout(_STABLE_AFTER_S):
            await probe.closed.wait()
    except TimeoutError:
        return None
    finally:
        transport.close()
    return ConnectionResetError()


class _ProbeProtocol(asyncio.Protocol):
    """Sets an event when its connection is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
