"""kafka-server-start: run a broker with Kafka's command line, `[-daemon] server.properties [--override KEY=VALUE]…`.

The tool does the same as `headrace broker start`. With `-daemon`, the broker runs in the background and writes to
`$LOG_DIR/kafkaServer.out` (default LOG_DIR: `logs`). In this case, the tool exits when the broker is ready. If the
broker fails to start, the tool exits with an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace_broker.tools.command_line import Parser, run_and_exit

_READY_TIMEOUT_S = 60


def main(argv: Sequence[str] | None = None) -> int:
    """Run a broker in the foreground, or start it in the background with -daemon; return the exit code."""
    parser = Parser("kafka-server-start", "Run a Kafka-compatible broker.")
    parser.add_argument("-daemon", action="store_true", help="Run in the background.")
    parser.add_argument("-name", default="kafkaServer", help="Name of the background process's output file.")
    parser.add_argument("-loggc", action="store_true", help="Accepted for compatibility; has no effect.")
    parser.add_argument("file", metavar="server.properties", help="The broker's properties file.")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="Override a property. May be repeated."
    )
    options = parser.parse(argv)
    arguments = [options.file, *(part for pair in options.override for part in ("--override", pair))]
    if options.daemon:
        return _start_in_background(arguments, Path(os.environ.get("LOG_DIR", "logs")) / f"{options.name}.out")
    from headrace_broker.server.main import main as run_broker

    return run_broker(arguments)


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _start_in_background(arguments: list[str], log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    ready_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "headrace_broker.server", *arguments, "--ready-fd", str(write_fd)]
    start = log.stat().st_size if log.exists() else 0
    with open(log, "ab") as output:
        broker = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[write_fd],
            start_new_session=True,
        )
    os.close(write_fd)
    if _is_ready(ready_fd):
        print(_last_line(log, start, "headrace broker"))
        return 0
    status = broker.poll()
    print(_last_line(log, start, "headrace broker:") or f"the broker did not start; see {log}", file=sys.stderr)
    return status or 1


def _is_ready(ready_fd: int) -> bool:
    """Wait until the broker writes to the pipe `ready_fd`, which means that the broker is ready.

    Return False if the broker exits or does not become ready in time.
    """
    import select

    try:
        readable, _, _ = select.select([ready_fd], [], [], _READY_TIMEOUT_S)
        return bool(readable and os.read(ready_fd, 256))
    finally:
        os.close(ready_fd)


def _last_line(log: Path, start: int, prefix: str) -> str:
    """Return the last line that starts with `prefix` after byte `start` of the log file."""
    with open(log, "rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    return next((line for line in reversed(lines) if line.startswith(prefix)), "")


if __name__ == "__main__":
    entry()
