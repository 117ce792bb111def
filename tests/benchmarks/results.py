"""Results of a run: rows with ratios, as a table to read and as JSON to compare."""

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
    """One measured thing: headrace's figure, the peer's (None where there is no peer), and the goal for their ratio."""

    area: str
    what: str
    unit: str
    headrace: float
    peer: float | None = None
    goal: float | None = None
    more_is_better: bool = True
    limit: str = ""
    """What else than headrace kept a missed goal from being met, where that was measured."""

    @property
    def ratio(self) -> float | None:
        return self.headrace / self.peer if self.peer else None

    @property
    def verdict(self) -> str:
        """Whether the goal is met."""
        if self.goal is None or self.ratio is None:
            return ""
        met = self.ratio >= self.goal if self.more_is_better else self.ratio <= self.goal
        return "met" if met else f"missed: {self.limit}" if self.limit else "missed"

    def cells(self) -> list[str]:
        """The row as text."""
        goal = "" if self.goal is None else f"{'>=' if self.more_is_better else '<='} {self.goal:g}x"
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}x"
        peer = "" if self.peer is None else _number(self.peer)
        return [self.area, self.what, _number(self.headrace), peer, self.unit, ratio, goal, self.verdict]


HEADINGS = ["area", "what", "headrace", "peer", "unit", "ratio", "goal", ""]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def save(area: str, rows: Sequence[Row], command: str) -> Path:
    """Write the results of an area in place of its earlier ones; return the table's path."""
    about = {"date": dt.date.today().isoformat(), "command": command, "client under load": client_name(), **machine()}
    heading = "".join(f"- {name}: {value}\n" for name, value in about.items())
    note = "Medians; ratios are headrace's figure over the peer's, in one run."
    table = RESULTS / f"{area}.md"
    table.write_text(f"# Benchmarks: {area}\n\n{heading}\n{note}\n\n{markdown(rows)}")
    content = {"about": about, "rows": [asdict(row) for row in rows]}
    table.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    return table
