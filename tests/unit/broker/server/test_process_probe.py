"""Tests of the process probe, which opens connections to check whether a node's process is dead.

If two consecutive connection attempts are refused, the process is dead. Each attempt tries all addresses of the host.
An attempt counts as refused if at least one address refuses the connection and no address times out.
"""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from headrace_broker.server.liveness import process_probe
from headrace_broker.server.liveness.process_probe import is_connection_refused, refuses_connections
from support.virtual_time import run_in_virtual_time


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
def test_connection_counts_as_refused_if_one_address_refuses_it_and_no_address_times_out(
    error: BaseException | None, refused: bool
) -> None:
    assert is_connection_refused(error) is refused


def test_process_that_first_closes_and_then_refuses_connections_is_considered_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While a process exits, its socket may accept and close some connections before it refuses the next ones."""
    outcomes = iter(
        [ConnectionResetError(), ConnectionResetError(), ConnectionRefusedError(), ConnectionRefusedError()]
    )

    async def connect(host: str, port: int) -> BaseException | None:
        return next(outcomes)

    async def check() -> None:
        assert await refuses_connections("host", 1)

    monkeypatch.setattr(process_probe, "_connect", connect)
    run_in_virtual_time(check())


def test_process_that_accepts_and_closes_every_connection_is_not_considered_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect(host: str, port: int) -> BaseException | None:
        return ConnectionResetError()

    async def check() -> None:
        assert not await refuses_connections("host", 1)

    monkeypatch.setattr(process_probe, "_connect", connect)
    run_in_virtual_time(check())


def test_process_that_was_restarted_between_two_connection_attempts_is_not_considered_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = iter([ConnectionRefusedError(), None])

    async def connect(host: str, port: int) -> BaseException | None:
        return next(outcomes)

    async def check() -> None:
        assert not await refuses_connections("host", 1)

    monkeypatch.setattr(process_probe, "_connect", connect)
    run_in_virtual_time(check())


def test_probe_distinguishes_a_listening_socket_from_a_socket_that_is_bound_but_not_listening() -> None:
    async def check() -> None:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert await refuses_connections("127.0.0.1", port)  # the socket is bound but not listening
        listening.listen()
        assert not await refuses_connections("127.0.0.1", port)
        listening.close()

    asyncio.run(check())
