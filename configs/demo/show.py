"""What a person sees of the demo: progress while it works, and the summary at the end."""

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
class Stage:
    """One moment of the run: how many rows each stage of the pipeline holds, all tables together.

    `loaded` of the tables' rows came in this run.
    """

    read: int
    topics: int
    tables: int
    loaded: int


Update = Callable[[Stage, float], None]


@contextmanager
def bars(console: Console, expected: int) -> Iterator[Update]:
    """Three bars, for a terminal."""
    text, count = TextColumn("{task.description:<18}"), TextColumn("{task.fields[count]}")
    bar = BarColumn(bar_width=32, complete_style="cyan", finished_style="green")  # plain names: for any terminal
    with Progress(text, bar, count, TimeElapsedColumn(), console=console) as progress:
        tasks = [progress.add_task(name, total=expected, count="") for name in STAGES]

        def update(stage: Stage, seconds: float) -> None:
            rate = f"  {stage.loaded / seconds:,.0f} rows/s" if stage.loaded else ""
            counts = (f"{stage.read:,}", f"{stage.topics:,}", f"{stage.tables:,}{rate}")
            for task, done, shown in zip(tasks, (stage.read, stage.topics, stage.tables), counts, strict=True):
                progress.update(task, completed=done, count=shown)

        yield update


@contextmanager
def plain_lines(console: Console, expected: int) -> Iterator[Update]:
    """A line every two seconds, for files and pipes."""
    said = [-PLAIN_INTERVAL_S]

    def update(stage: Stage, seconds: float) -> None:
        if seconds - said[0] < PLAIN_INTERVAL_S:
            return
        said[0] = seconds
        counts = f"read {stage.read:>9,}  in topics {stage.topics:>9,}  committed {stage.tables:>9,} of {expected:,}"
        console.print(
            f"{seconds:5.1f} s  {counts}  ({stage.loaded / seconds:,.0f} rows/s)", highlight=False, soft_wrap=True
        )

    yield update


def summarise(
    console: Console, directory: Path, checks: list[TableCheck], rows_before: int, seconds: float, total_seconds: float
) -> None:
    """Counts per table at each stage, the pace, where the tables are, and the answer of a query."""
    console.print(_counts(checks))
    rows = sum(check.table for check in checks) - rows_before
    pace = (
        f"{rows:,} rows in {seconds:.1f} s = {rows / seconds:,.0f} rows/s, from the worker's start to the last commit"
    )
    if not rows:
        pace = f"nothing was left to load: the tables held every row before ({seconds:.1f} s to start and see)"
    elif rows_before:
        pace += f"; {rows_before:,} rows were there before"
    console.print(f"{pace}; {total_seconds:.1f} s in all", highlight=False, soft_wrap=True)
    again = sum(check.read_again for check in checks)
    if again:
        console.print(
            f"{again:,} rows were read again after a crash (at-least-once source); "
            "each record of a topic stands once in its table"
        )
    console.print(f"tables: {directory / 'lakehouse'}/<table> (Delta)", highlight=False, soft_wrap=True)
    console.print(_busiest_routes(directory))


def _counts(checks: list[TableCheck]) -> Table:
    counts = Table(title="rows at each stage", title_justify="left")
    counts.add_column("table")
    for name in ("database", "topic", "lakehouse", "distinct ids", "read again"):
        counts.add_column(name, justify="right")
    counts.add_column("")
    for check in checks:
        numbers = (check.database, check.topic, check.table, check.distinct_ids, check.read_again)
        verdict = "exact" if check.exact else "[red]DIFFERS[/red]"
        counts.add_row(check.name, *(f"{number:,}" for number in numbers), verdict)
    return counts


def _busiest_routes(directory: Path) -> Table:
    routes = Table(title="the ten busiest routes (SQL over the Delta tables)", title_justify="left")
    for name in ("origin", "dest", "destination"):
        routes.add_column(name)
    routes.add_column("flights", justify="right")
    for origin, dest, destination, flights in query(directory, BUSIEST_ROUTES, ("flights", "airports")):
        routes.add_row(origin, dest, destination, f"{flights:,}")
    return routes
