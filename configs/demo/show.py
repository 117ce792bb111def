"""Prints the demo's output: progress bars or lines during the run, and the summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from observe import TableCheck, query
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PLAIN_INTERVAL_S = 2.0
STAGES = ("rows read", "records in topics", "rows committed")
BUSIEST_ROUTES = """
    SELECT f.origin, f.dest, coalesce(a.name, '(not in the list of airports)') AS destination,
           count(DISTINCT f.id) AS flights
    FROM flights f LEFT JOIN airports a ON f.dest = a.faa
    GROUP BY f.origin, f.dest, a.name ORDER BY flights DESC, f.origin, f.dest LIMIT 10
"""


@dataclass(frozen=True, slots=True)
class ProgressCounts:
    """The number of rows at each stage of the pipeline, for all tables together.

    `loaded` is the number of rows that this run has loaded into the lakehouse tables.
    """

    read: int
    topics: int
    tables: int
    loaded: int


Update = Callable[[ProgressCounts, float], None]


@contextmanager
def bars(console: Console, expected: int) -> Iterator[Update]:
    """Show the progress as three bars, if the output is a terminal. `expected` is the final number of rows."""
    text, count = TextColumn("{task.description:<18}"), TextColumn("{task.fields[count]}")
    bar = BarColumn(bar_width=32, complete_style="cyan", finished_style="green")  # color names work in any terminal
    with Progress(text, bar, count, TimeElapsedColumn(), console=console) as progress:
        tasks = [progress.add_task(name, total=expected, count="") for name in STAGES]

        def update(counts: ProgressCounts, seconds: float) -> None:
            rate = f"  {counts.loaded / seconds:,.0f} rows/s" if counts.loaded else ""
            texts = (f"{counts.read:,}", f"{counts.topics:,}", f"{counts.tables:,}{rate}")
            for task, completed, text in zip(tasks, (counts.read, counts.topics, counts.tables), texts, strict=True):
                progress.update(task, completed=completed, count=text)

        yield update


@contextmanager
def plain_lines(console: Console, expected: int) -> Iterator[Update]:
    """Show the progress as a line every two seconds, if the output is a file or a pipe.

    `expected` is the final number of rows.
    """
    printed_at = [-PLAIN_INTERVAL_S]

    def update(counts: ProgressCounts, seconds: float) -> None:
        if seconds - printed_at[0] < PLAIN_INTERVAL_S:
            return
        printed_at[0] = seconds
        text = f"read {counts.read:>9,}  in topics {counts.topics:>9,}  committed {counts.tables:>9,} of {expected:,}"
        console.print(
            f"{seconds:5.1f} s  {text}  ({counts.loaded / seconds:,.0f} rows/s)", highlight=False, soft_wrap=True
        )

    yield update


def print_summary(
    console: Console, directory: Path, checks: list[TableCheck], rows_before: int, seconds: float, total_seconds: float
) -> None:
    """Print the row counts per table and stage, the throughput, the tables' directory and the result of a query.

    `rows_before` is the number of rows that the tables had before this run. `seconds` is the time from the start of the
    worker to the last commit, and `total_seconds` is the duration of the whole run.
    """
    console.print(_counts(checks))
    rows = sum(check.table for check in checks) - rows_before
    rate = f"{rows / seconds:,.0f} rows/s"
    throughput = f"loaded {rows:,} rows in {seconds:.1f} s, {rate} from the worker's start to the last commit"
    if not rows:
        throughput = f"the tables already had all rows; starting the worker and checking took {seconds:.1f} s"
    elif rows_before:
        throughput += f"; {rows_before:,} rows were loaded in earlier runs"
    console.print(f"{throughput}; total time {total_seconds:.1f} s", highlight=False, soft_wrap=True)
    reread = sum(check.reread for check in checks)
    if reread:
        console.print(
            f"the source read {reread:,} rows again after a crash (at-least-once delivery); "
            "each record of a topic is in its table exactly once"
        )
    console.print(f"Delta tables: {directory / 'lakehouse'}/<table>", highlight=False, soft_wrap=True)
    console.print(_busiest_routes(directory))


def _counts(checks: list[TableCheck]) -> Table:
    counts = Table(title="rows at each stage", title_justify="left")
    counts.add_column("table")
    for name in ("database", "topic", "lakehouse", "distinct ids", "re-read"):
        counts.add_column(name, justify="right")
    counts.add_column("")
    for check in checks:
        numbers = (check.database, check.topic, check.table, check.distinct_ids, check.reread)
        result = "exact" if check.is_exact else "[red]DIFFERS[/red]"
        counts.add_row(check.name, *(f"{number:,}" for number in numbers), result)
    return counts


def _busiest_routes(directory: Path) -> Table:
    routes = Table(title="ten busiest routes (SQL query on the Delta tables)", title_justify="left")
    for name in ("origin", "dest", "destination"):
        routes.add_column(name)
    routes.add_column("flights", justify="right")
    for origin, dest, destination, flights in query(directory, BUSIEST_ROUTES, ("flights", "airports")):
        routes.add_row(origin, dest, destination, f"{flights:,}")
    return routes
