"""Formats and saves the results of a benchmark run as a Markdown table and as JSON."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from process_stats import machine
from produce_load import client_name

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement: headrace's value, the `baseline` that it is compared with, and the goal for their ratio."""

    area: str
    what: str
    unit: str
    headrace: float
    baseline: float | None = None
    goal: float | None = None
    more_is_better: bool = True
    limit: str = ""
    """The cause of a missed goal if headrace is not the cause, for example a saturated client."""

    @property
    def ratio(self) -> float | None:
        return self.headrace / self.baseline if self.baseline else None

    @property
    def verdict(self) -> str:
        """Return "met" or "missed", or "" if there is no goal."""
        if self.goal is None or self.ratio is None:
            return ""
        met = self.ratio >= self.goal if self.more_is_better else self.ratio <= self.goal
        return "met" if met else f"missed: {self.limit}" if self.limit else "missed"

    def cells(self) -> list[str]:
        """Return the text of each cell of the row."""
        goal = "" if self.goal is None else f"{'>=' if self.more_is_better else '<='} {self.goal:g}x"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}x"
        baseline = "" if self.baseline is None else _number(self.baseline)
        return [self.area, self.what, _number(self.headrace), baseline, self.unit, ratio, goal, self.verdict]


HEADINGS = ["area", "measurement", "headrace", "baseline", "unit", "ratio", "goal", ""]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def markdown(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def save(area: str, rows: Sequence[Row], command: str) -> Path:
    """Replace the saved results of an area, and return the path of the Markdown file.

    `command` is the command that measured `rows`.
    """
    about = {"date": dt.date.today().isoformat(), "command": command, "load generator": client_name(), **machine()}
    heading = "".join(f"- {name}: {value}\n" for name, value in about.items())
    note = "Values are medians; each ratio is headrace's value divided by the baseline's value of the same run."
    table = RESULTS / f"{area}.md"
    table.write_text(f"# Benchmarks: {area}\n\n{heading}\n{note}\n\n{markdown(rows)}")
    content = {"about": about, "rows": [asdict(row) for row in rows]}
    table.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    return table
