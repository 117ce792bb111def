"""What counts as a dead process: only connections that are refused, at every address of its host."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from headrace_broker.server.membership import probing
from headrace_broker.server.membership.probing import refuses_connections, was_refused


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), True),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] Connect call failed"), True),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 99] Cannot assign"), True),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 110] Timed out"), False),
        (OSError(errno.EHOSTUNREACH, "No route to host"), False),
        (OSError("Multiple exceptions: [Errno 99] Cannot assign"), False),
        (TimeoutError(), False),
        (None, False),
    ],
)
def test_refusals_are_told_from_silence(error: BaseException | None, refused: bool) -> None:
    assert was_refused(error) is refused


def test_a_process_that_cuts_off_and_then_refuses_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dying process still has its listening socket for a moment."""
    outcomes = iter(
        [ConnectionResetError(), ConnectionResetError(), ConnectionRefusedError(), ConnectionRefusedError()]
    )

    async def connect(host: str, port: int) -> BaseException | None:
        return next(outcomes)

    monkeypatch.setattr(probing, "_connect", connect)
    assert asyncio.run(refuses_connections("host", 1))


def test_a_process_that_only_cuts_off_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(host: str, port: int) -> BaseException | None:
        return ConnectionResetError()

    monkeypatch.setattr(probing, "_connect", connect)
    monkeypatch.setattr(probing, "_PAUSE_S", 0)
    assert not asyncio.run(refuses_connections("host", 1))


def test_a_restart_between_two_refusals_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([ConnectionRefusedError(), None])

    async def connect(host: str, port: int) -> BaseException | None:
        return next(outcomes)

    monkeypatch.setattr(probing, "_connect", connect)
    assert not asyncio.run(refuses_connections("host", 1))


def test_real_sockets() -> None:
    async def check() -> None:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert await refuses_connections("127.0.0.1", port)  # bound, but nobody listens
        listening.listen()
        assert not await refuses_connections("127.0.0.1", port)
        listening.close()

    asyncio.run(check())
