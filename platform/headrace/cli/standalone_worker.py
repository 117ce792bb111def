"""The worker process: configuration, embedded broker, herder, REST, signals; from start to a clean end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.api.errors import ConfigErrors, ConnectError
from headrace.cli.embedded_broker import BrokerFailed, EmbeddedBroker
from headrace.cli.exit_codes import INTERRUPTED, PREPARING, STARTING
from headrace.cli.files import ConnectorFile, FileError, read_connector, read_properties
from headrace.metrics import logs
from headrace.runtime.converter_check import ConverterCheck
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.file_offsets import FileOffsetStore, OffsetFileError

if TYPE_CHECKING:
    from headrace.herder.standalone import StandaloneHerder
    from headrace.runtime.processes import Processes

log = logging.getLogger("headrace.worker")
_T = TypeVar("_T")


class CannotStart(Exception):
    """The worker or a connector file cannot be used; `lines` say why, `code` is the exit code."""

    def __init__(self, code: int, lines: Iterable[str]) -> None:
        self.code = code
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def run(worker_file: Path, connector_files: Sequence[Path], overrides: Mapping[str, str] | None = None) -> int:
    """Run until a signal ends it; the exit code. `overrides` go over the worker file's keys."""
    started = time.monotonic()
    logs.set_up()
    log.info("Kafka Connect worker initializing ...")
    broker: EmbeddedBroker | None = None
    check: ConverterCheck | None = None
    try:
        config = _worker_config(worker_file, overrides or {})
        connectors = _connector_files(connector_files)
        if config.embedded_broker:
            broker = EmbeddedBroker(Path(config["headrace.data.dir"]))
            broker.launch()  # it starts while the worker imports the rest
        check = ConverterCheck(config.properties)  # so does this
        return _run_loop(_Standalone(config, connectors, broker, check, started))
    except CannotStart as error:
        for line in error.lines:
            log.error("%s", line)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if check is not None:
            check.kill()
        if broker is not None:
            broker.stop()


def _run_loop(worker: _Standalone) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(worker.run())


class _Standalone:
    """One run of a worker."""

    def __init__(
        self,
        config: WorkerConfig,
        connectors: Sequence[ConnectorFile],
        broker: EmbeddedBroker | None,
        check: ConverterCheck,
        started: float,
    ) -> None:
        self._check = check
        self._config = config
        self._connectors = connectors
        self._broker = broker
        self._started = started
        self._signalled = asyncio.Event()

    async def run(self) -> int:
        """Start, serve until a signal comes, stop."""
        processes = self._processes()
        from headrace.herder.standalone import StandaloneHerder
        from headrace.rest.server import ListenerError, RestServer
        from headrace.runtime.worker import Worker

        self._listen_to_signals()
        rest = RestServer(self._config)
        try:
            scheme, host, port = rest.bind()
        except ListenerError as error:
            raise CannotStart(PREPARING, [str(error)]) from None
        config = await self._unless_signalled(self._with_broker())
        if config is None:
            return 0
        herder = StandaloneHerder(
            config,
            _offset_store(config),
            _worker_id(config, host, port),
            lambda events: Worker(config, events, processes),
        )
        await rest.start(herder)
        address = f"{scheme}://{host}:{port}/"
        log.info("REST server listening at %s, %.0f ms after the start", address, self._elapsed_ms())
        try:
            await self._unless_signalled(self._create_connectors(herder))
            if not self._signalled.is_set():
                herder.ready = True
                log.info("Kafka Connect started")
                await self._wait_for_end()
            log.info("Kafka Connect stopping")
        finally:
            await herder.stop()
            await rest.stop()
        log.info("Kafka Connect stopped")
        return 0

    def _processes(self) -> Processes:
        """For connectors: the fork server starts at once where there are some, beside what the worker imports."""
        from headrace.runtime.processes import Processes

        processes = Processes({self._check.pid} if self._broker is None else {self._check.pid, self._broker.pid})
        if self._connectors and self._config["task.isolation"] != "thread":
            processes.start()
        return processes

    async def _with_broker(self) -> WorkerConfig:
        """The configuration with the embedded broker's address in it, once it serves."""
        if self._broker is None:
            return self._config
        try:
            address = await self._broker.address()
        except BrokerFailed as error:
            raise CannotStart(PREPARING, [str(error)]) from None
        data = Path(self._config["headrace.data.dir"])
        log.info(
            "No bootstrap.servers given: an embedded broker serves at %s, its data in %s "
            "(set bootstrap.servers to use another cluster)",
            address,
            data,
        )
        properties = {**self._config.properties, "bootstrap.servers": address}
        properties.setdefault("headrace.static.members", "true")  # nobody else knows this broker's address
        properties.setdefault("offset.storage.file.filename", str(data / "connect.offsets"))
        return WorkerConfig.standalone(properties)

    async def _create_connectors(self, herder: StandaloneHerder) -> None:
        from headrace.herder.errors import HerderError

        if errors := await self._check.errors(self._config["connector.validation.timeout.ms"] / 1000):
            raise CannotStart(PREPARING, errors)
        complaints: list[str] = []

        async def create(file: ConnectorFile) -> None:
            try:
                await herder.put(file.name, file.config, target=file.initial_state, replace=False)
            except HerderError as error:
                complaints.append(f"Failed to create connector for {file.path}: {error}")
            else:
                log.info("Created connector %s", file.name)

        await asyncio.gather(*map(create, self._connectors))
        if complaints:
            raise CannotStart(STARTING, complaints)

    async def _unless_signalled(self, work: Coroutine[Any, Any, _T]) -> _T | None:
        """The work's result; None when a signal came first, which ends the work."""
        task, signalled = asyncio.ensure_future(work), asyncio.ensure_future(self._signalled.wait())
        try:
            await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            signalled.cancel()

    async def _wait_for_end(self) -> None:
        signalled = asyncio.ensure_future(self._signalled.wait())
        if self._broker is None:
            await signalled
            return
        broker_ended = asyncio.ensure_future(self._broker.wait())
        await asyncio.wait({signalled, broker_ended}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            signalled.cancel()
            raise CannotStart(PREPARING, [f"The embedded broker ended by itself (status {broker_ended.result()})"])
        broker_ended.cancel()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if not self._signalled.is_set():
            self._signalled.set()
            return
        from headrace.runtime import process_tree

        log.warning("Second signal: ending at once")
        process_tree.kill_descendants(os.getpid())
        os._exit(128 + number)

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self._started) * 1000


def _worker_config(path: Path, overrides: Mapping[str, str]) -> WorkerConfig:
    try:
        config = WorkerConfig.standalone(_resolved({**read_properties(path), **overrides}))
    except FileError as error:
        raise CannotStart(PREPARING, [str(error)]) from None
    except ConfigErrors as error:
        raise CannotStart(PREPARING, [f"{path}: {each}" for each in error.errors]) from None
    except ConnectError as error:
        raise CannotStart(PREPARING, [f"{path}: {error}"]) from None
    logs.hide_secrets_of(config.properties)
    for warning in config.warnings:
        log.warning("%s: %s", path, warning)
    return config


def _resolved(properties: dict[str, str]) -> dict[str, str]:
    """The properties without variables. Raises ConfigError, ConfigErrors."""
    if not properties.get("config.providers", "").strip():
        return properties
    from headrace.plugins.variables import resolve_worker  # a third of a worker's start: for those who need it

    return resolve_worker(properties)


def _connector_files(paths: Sequence[Path]) -> list[ConnectorFile]:
    found: list[ConnectorFile] = []
    complaints: list[str] = []
    for path in paths:
        try:
            found.append(read_connector(path))
        except FileError as error:
            complaints.append(str(error))
    for number, file in enumerate(found):
        if (first := next((other for other in found[:number] if other.name == file.name), None)) is not None:
            complaints.append(f"{file.path}: the name {file.name} is already that of {first.path}")
    if complaints:
        raise CannotStart(STARTING, complaints)
    return found


def _offset_store(config: WorkerConfig) -> FileOffsetStore:
    store = FileOffsetStore(Path(config["offset.storage.file.filename"]))
    try:
        store.lock()
        store.load()
    except OffsetFileError as error:
        raise CannotStart(PREPARING, [str(error)]) from None
    return store


def _worker_id(config: WorkerConfig, host: str, port: int) -> str:
    name = config["rest.advertised.host.name"] or (host if host not in ("0.0.0.0", "::") else _own_address())
    return f"{name}:{config['rest.advertised.port'] or port}"


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


if __name__ == "__main__":
    sys.exit("use connect-standalone")
