"""Runs a distributed worker's process, from start to clean shutdown: configuration, REST server, herder, signals."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.exit_codes import INTERRUPTED, WORKER_FAILED
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

if TYPE_CHECKING:
    from headrace.herder.distributed import DistributedHerder

log = logging.getLogger(__name__)


def run(worker_file: Path, overrides: Mapping[str, str] | None = None) -> int:
    """Run a worker until a signal stops it; return the exit code. `overrides` replace values of the worker file."""
    started = time.monotonic()
    logs.configure_logging()
    log.info("Kafka Connect worker initializing ...")
    check: ConverterCheck | None = None
    try:
        config = worker_config(worker_file, overrides or {}, WorkerConfig.distributed)
        check = ConverterCheck(config)  # runs in parallel with the imports
        return run_event_loop(_DistributedWorker(config, check, started).run)
    except StartupError as error:
        for line in error.lines:
            log.error("%s", line)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        ignore_signals()
        if check is not None:
            check.kill()


class _DistributedWorker:
    """A distributed worker, from its start to its shutdown."""

    def __init__(self, config: WorkerConfig, check: ConverterCheck, started: float) -> None:
        self._config = config
        self._check = check
        self._started = started
        self._signals = Signals()

    async def run(self) -> int:
        """Start the worker, serve until a signal arrives, and shut down."""
        self._signals.install()  # before the imports: a signal may arrive during them
        from headrace.herder.distributed import DistributedHerder
        from headrace.rest.server import ListenerError, RestServer
        from headrace.runtime.processes import Processes
        from headrace.runtime.worker import Worker

        processes = Processes({self._check.pid})
        if self._config["task.isolation"] != "thread":
            processes.start()
        rest = RestServer(self._config)
        try:
            scheme, host, port = rest.bind()
        except ListenerError as error:
            raise StartupError(WORKER_FAILED, [str(error)]) from None
        worker_id = advertised_address(self._config, port)
        url = f"{scheme}://{worker_id}/"
        herder = DistributedHerder(self._config, worker_id, url, lambda events: Worker(self._config, events, processes))
        await rest.start(herder)
        log.info("REST server listening at %s://%s:%s/, advertised URL %s", scheme, host, port, url)
        try:
            await self._signals.run_unless_received(self._start(herder))
            await self._signals.received.wait()
            log.info("Kafka Connect stopping")
        finally:
            stopping_since = time.monotonic()
            await herder.stop()
            await rest.stop(stopping_since)
        log.info("Kafka Connect stopped")
        return 0

    async def _start(self, herder: DistributedHerder) -> None:
        from headrace.stores.internal_topics import InternalTopicError

        if errors := await self._check.errors(self._config["connector.validation.timeout.ms"] / 1000):
            raise StartupError(WORKER_FAILED, errors)
        try:
            await herder.start()
        except InternalTopicError as error:
            raise StartupError(WORKER_FAILED, [str(error)]) from None
        await herder.wait_until_started()
        log.info("Kafka Connect started, %.0f ms after startup began", (time.monotonic() - self._started) * 1000)
