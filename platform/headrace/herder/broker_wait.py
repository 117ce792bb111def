"""Waits for the brokers during the startup of a worker.

If no broker responds, the worker waits without a time limit. It logs a line when it begins to wait, and another line
when a broker responds. Kafka Connect's workers exit instead. Errors that do not disappear by waiting are raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headrace_broker.client.errors import ClientError

log = logging.getLogger(__name__)

RETRY_S = 0.5


class BrokerWait:
    """Repeats the steps of a startup until a broker responds."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self.error: str | None = "no broker has responded yet"
        """Why no broker responds; None if one does."""
        self._has_logged = False

    async def run(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step until it ends without ClientError and TimeoutError."""
        while True:
            try:
                await step()
            except (ClientError, TimeoutError) as error:
                self.report(error)
                await asyncio.sleep(RETRY_S)
            else:
                if self._has_logged:
                    log.info("bootstrap.servers=%s: a broker responds", self._bootstrap_servers)
                self.error, self._has_logged = None, False
                return

    def report(self, error: ClientError | TimeoutError) -> None:
        """Report that no broker responds. Only the first report is logged, until a step ends without error."""
        self.error = str(error) or "no response within the timeout"
        if not self._has_logged:
            self._has_logged = True
            log.error(
                "bootstrap.servers=%s: no broker responds; the worker waits until one does (%s)",
                self._bootstrap_servers,
                self.error,
            )
