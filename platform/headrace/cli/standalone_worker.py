"""Runs a standalone worker's process, from start to clean shutdown.

This includes the configuration, the embedded broker, the herder, the REST server and signals.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.embedded_broker import EmbeddedBroker, EmbeddedBrokerError
from headrace.cli.exit_codes import CONNECTOR_FAILED, INTERRUPTED, WORKER_FAILED
from headrace.cli.files import ConnectorFile, FileError, read_connector
from headrace.cli.worker_process import (
    Signals,
    StartupError,
    advertised_address,
    ignore_signals,
    run_event_loop,
    worker_config,
)
from headrace.metrics import logs
from headrace.runtime.converter_check import ConverterCheck
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.file_offsets import FileOffsetStore, OffsetFileError

if TYPE_CHECKING:
    from headrace.herder.standalone import StandaloneHerder
    from headrace.runtime.processes import Processes

log = logging.getLogger(__name__)


def run(worker_file: Path, connector_files: Sequence[Path], overrides: Mapping[str, str] | None = None) -> int:
    """Run a worker until a signal stops it; return the exit code. `overrides` replace values of the worker file."""
    started = time.monotonic()
    logs.configure_logging()
    log.info("Kafka Connect worker initializing ...")
    broker: EmbeddedBroker | None = None
    check: ConverterCheck | None = None
    try:
        config = worker_config(worker_file, overrides or {}, WorkerConfig.standalone)
        connectors = _connector_files(connector_files)
        if config.embedded_broker:
            broker = EmbeddedBroker(Path(config["headrace.data.dir"]))
            broker.launch()  # the broker starts while the worker imports the remaining modules
        check = ConverterCheck(config)  # the check also runs in parallel with the imports
        return run_event_loop(_StandaloneWorker(config, connectors, broker, check, started).run)
    except StartupError as error:
        for line in error.lines:
            log.error("%s", line)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        ignore_signals()  # no signal can interrupt the embedded broker's shutdown, which has a timeout
        if check is not None:
            check.kill()
        if broker is not None:
            broker.stop()


class _StandaloneWorker:
    """A standalone worker, from its start to its shutdown."""

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
        self._signals = Signals()

    async def run(self) -> int:
        """Start the worker, serve until a signal arrives, and shut down."""
        self._signals.install()  # before the imports: a signal may arrive during them
        processes = self._processes()
        from headrace.herder.standalone import StandaloneHerder
        from headrace.rest.server import ListenerError, RestServer
        from headrace.runtime.worker import Worker

        rest = RestServer(self._config)
        try:
            scheme, host, port = rest.bind()
        except ListenerError as error:
            raise StartupError(WORKER_FAILED, [str(error)]) from None
        config = await self._signals.run_unless_received(self._config_with_broker())
        if config is None:
            return 0
        herder = StandaloneHerder(
            config,
            _offset_store(config),
            advertised_address(config, port),
            lambda events: Worker(config, events, processes),
        )
        await herder.start()
        await rest.start(herder)
        address = f"{scheme}://{host}:{port}/"
        log.info("REST server listening at %s, %.0f ms after startup began", address, self._elapsed_ms())
        try:
            await self._signals.run_unless_received(self._create_connectors(herder))
            if not self._signals.received.is_set():
                herder.ready = True
                log.info("Kafka Connect started")
                await self._wait_for_shutdown()
            log.info("Kafka Connect stopping")
        finally:
            stopping_since = time.monotonic()
            await herder.stop()
            await rest.stop(stopping_since)
        log.info("Kafka Connect stopped")
        return 0

    def _processes(self) -> Processes:
        """Create the manager of connector processes. If there are connectors, start the fork server.

        The fork server starts now, so that it runs in parallel with the worker's remaining imports.
        """
        from headrace.runtime.processes import Processes

        processes = Processes({self._check.pid} if self._broker is None else {self._check.pid, self._broker.pid})
        if self._connectors and self._config["task.isolation"] != "thread":
            processes.start()
        return processes

    async def _config_with_broker(self) -> WorkerConfig:
        """If there is an embedded broker, wait until it serves requests.

        Return the configuration with the broker's address.
        """
        if self._broker is None:
            return self._config
        try:
            address = await self._broker.address()
        except EmbeddedBrokerError as error:
            raise StartupError(WORKER_FAILED, [str(error)]) from None
        data = Path(self._config["headrace.data.dir"])
        log.info(
            "bootstrap.servers is not set: started an embedded broker at %s with the data directory %s "
            "(set bootstrap.servers to use another cluster)",
            address,
            data,
        )
        properties = {**self._config.properties, "bootstrap.servers": address}
        properties.setdefault("headrace.static.members", "true")  # safe: no other worker uses this broker
        return WorkerConfig.standalone(properties)

    async def _create_connectors(self, herder: StandaloneHerder) -> None:
        """Create the connectors in the order of their files. Raises StartupError with the errors of all files."""
        from headrace.herder.errors import HerderError

        if errors := await self._check.errors(self._config["connector.validation.timeout.ms"] / 1000):
            raise StartupError(WORKER_FAILED, errors)
        messages: list[str] = []
        for file in self._connectors:
            try:
                if messages:  # as in Kafka Connect, no connector is created after an error
                    await herder.check(file.config)
                    continue
                await herder.put(file.name, file.config, target=file.initial_state, replace=False)
            except HerderError as error:
                messages.append(f"Failed to create connector for {file.path}: {error}")
            else:
                log.info("Created connector %s", file.name)
        if messages:
            raise StartupError(CONNECTOR_FAILED, messages)

    async def _wait_for_shutdown(self) -> None:
        signalled = asyncio.ensure_future(self._signals.received.wait())
        if self._broker is None:
            await signalled
            return
        broker_ended = asyncio.ensure_future(self._broker.wait())
        await asyncio.wait({signalled, broker_ended}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            signalled.cancel()
            status = broker_ended.result()
            raise StartupError(WORKER_FAILED, [f"The embedded broker exited unexpectedly (exit status {status})"])
        broker_ended.cancel()

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self._started) * 1000


def _connector_files(paths: Sequence[Path]) -> list[ConnectorFile]:
    found: list[ConnectorFile] = []
    messages: list[str] = []
    for path in paths:
        try:
            found.append(read_connector(path))
        except FileError as error:
            messages.append(str(error))
    for number, file in enumerate(found):
        if (first := next((other for other in found[:number] if other.name == file.name), None)) is not None:
            messages.append(f"{file.path}: the connector name {file.name} is already used in {first.path}")
    if messages:
        raise StartupError(CONNECTOR_FAILED, messages)
    return found


def _offset_store(config: WorkerConfig) -> FileOffsetStore:
    store = FileOffsetStore(Path(config["offset.storage.file.filename"]))
    try:
        store.lock()
        store.load()
    except OffsetFileError as error:
        raise StartupError(WORKER_FAILED, [str(error)]) from None
    if not config.properties.get("offset.storage.file.filename", "").strip():
        log.info("offset.storage.file.filename is not set: source offsets are stored in %s", store.path.absolute())
    return store


if __name__ == "__main__":
    sys.exit("use connect-standalone")
