"""Functions that standalone and distributed worker processes share: configuration, signals, exit codes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from headrace.api.errors import ConfigErrors, ConnectError
from headrace.cli.exit_codes import WORKER_FAILED
from headrace.cli.files import FileError, read_properties
from headrace.metrics import logs
from headrace.runtime.group_signals import GROUP_SIGNALS, withheld
from headrace.runtime.rest_config import advertised_listener
from headrace.runtime.worker_checks import check_worker
from headrace.runtime.worker_config import WorkerConfig

if TYPE_CHECKING:
    from headrace.plugins.variables import UnresolvedVariable

log = logging.getLogger(__name__)

SIGNAL_REPEAT_S = 2.0  # `timeout` and process supervisors send a signal twice: to the process and to its group
_T = TypeVar("_T")


class StartupError(Exception):
    """The worker or a connector cannot start. `lines` contain the reasons, and `code` is the exit code."""

    def __init__(self, code: int, lines: Iterable[str]) -> None:
        self.code = code
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class Signals:
    """Records a signal that stops the worker. A second signal terminates the process immediately."""

    def __init__(self) -> None:
        self.received = asyncio.Event()
        self._first_s = 0.0

    def install(self) -> None:
        """Handle signals on the running event loop."""
        loop = asyncio.get_running_loop()
        for number in GROUP_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    async def run_unless_received(self, work: Coroutine[None, None, _T]) -> _T | None:
        """Run a coroutine and return its result. If a signal arrives first, cancel the coroutine and return None."""
        task, received = asyncio.ensure_future(work), asyncio.ensure_future(self.received.wait())
        try:
            await asyncio.wait({task, received}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            received.cancel()

    def _on_signal(self, number: int) -> None:
        now = time.monotonic()
        if not self.received.is_set():
            self._first_s = now
            self.received.set()
            return
        if now - self._first_s < SIGNAL_REPEAT_S:
            return
        from headrace.runtime import process_tree

        log.warning("Received a second signal: terminating immediately, without a clean shutdown")
        process_tree.kill_descendants()
        os._exit(128 + number)


def run_event_loop(main: Callable[[], Coroutine[None, None, int]]) -> int:
    """Run the coroutine that `main` returns on a new uvloop event loop, and return its result.

    Raises KeyboardInterrupt if SIGINT arrives before the coroutine runs.
    """
    import uvloop

    with ExitStack() as stack:
        with withheld():  # an exception while the loop is created would leave a loop that nothing closes
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(main())


def ignore_signals() -> None:
    """Ignore further signals during the shutdown."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def worker_config(
    path: Path, overrides: Mapping[str, str], parse: Callable[[Mapping[str, str]], WorkerConfig]
) -> WorkerConfig:
    """Parse the worker file with `overrides` applied, and log the configuration's warnings. Raises StartupError."""
    try:
        originals = {**read_properties(path), **overrides}
        properties, unresolved = resolve_variables(originals)
    except FileError as error:
        raise StartupError(WORKER_FAILED, [str(error)]) from None
    except ConfigErrors as error:
        raise StartupError(WORKER_FAILED, [f"{path}: {each}" for each in error.errors]) from None
    except ConnectError as error:
        raise StartupError(WORKER_FAILED, [f"{path}: {error}"]) from None
    logs.mask_secrets_of(properties)
    result = check_worker(properties, parse, originals, unresolved)
    for warning in result.warnings:
        log.warning("%s: %s", path, warning)
    if result.config is None:
        raise StartupError(WORKER_FAILED, [f"{path}: {error}" for error in result.errors])
    return result.config


def resolve_variables(properties: dict[str, str]) -> tuple[dict[str, str], list[UnresolvedVariable]]:
    """Return the properties with variables resolved, and the variables that could not be resolved.

    Raises ConfigError, ConfigErrors.
    """
    if not properties.get("config.providers", "").strip():
        return properties, []
    if not any("${" in value for key, value in properties.items() if key != "plugin.path"):
        return properties, []  # the converter check validates the providers
    # This is a late import, because it takes a third of the startup time.
    from headrace.plugins.variables import resolve_worker

    return resolve_worker(properties)


def advertised_address(config: WorkerConfig, port: int) -> str:
    """Return the `host:port` at which other workers reach the REST server. This is also the worker's id.

    `port` is the port of the advertised listener. If that listener is bound to all addresses, the host is the local
    address from which the worker reaches the brokers.
    """
    _, listener = advertised_listener(config["listeners"], config["rest.advertised.listener"])
    host = config["rest.advertised.host.name"] or listener.host
    if host in ("", "0.0.0.0", "::"):
        host = _own_address(config)
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{config['rest.advertised.port'] or port}"


def _own_address(config: WorkerConfig) -> str:
    for server in config["bootstrap.servers"] or ():
        host, _, port = server.rpartition(":")
        try:
            family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
            with socket.socket(family[0], socket.SOCK_DGRAM) as probe:
                probe.connect(family[4])  # sends nothing: selects the local address of the route
                return str(probe.getsockname()[0])
        except (OSError, ValueError):
            continue
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
