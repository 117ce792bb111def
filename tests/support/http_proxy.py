"""Runs an HTTP proxy (tinyproxy) that requires a user and a password."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.ports import free_port

USER, PASSWORD = "crosser", "letmepass"
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """A running proxy."""

    port: int
    log: Path

    def requests(self, method: str) -> int:
        """Return the number of requests with this method that the proxy has received."""
        return self.log.read_text().count(f"): {method} ")

    def address(self) -> dict[str, str]:
        """Return the settings of a connector that sends requests to the proxy without a user."""
        return {"proxy.host": "127.0.0.1", "proxy.port": str(self.port)}

    def settings(self) -> dict[str, str]:
        """Return the settings of a connector that sends requests to the proxy with the user and the password."""
        return self.address() | {"proxy.username": USER, "proxy.password": PASSWORD}


def unavailable_reason() -> str | None:
    """Return why no proxy can run here, or None."""
    return None if shutil.which("tinyproxy") else "tinyproxy is not installed (apt-get install tinyproxy)"


@contextmanager
def running(directory: Path) -> Iterator[HttpProxy]:
    """Run a proxy on a free port. `directory` receives its configuration and log."""
    proxy = HttpProxy(free_port(), directory / "tinyproxy.log")
    config = directory / "tinyproxy.conf"
    config.write_text(
        f'Port {proxy.port}\nListen 127.0.0.1\nLogFile "{proxy.log}"\nLogLevel Connect\nBasicAuth {USER} {PASSWORD}\n'
    )
    process = subprocess.Popen(["tinyproxy", "-d", "-c", str(config)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", proxy.port)).close()
                break
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield proxy
    finally:
        process.kill()
        process.wait()
