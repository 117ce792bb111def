"""Tests that docs/reference lists the configuration keys as the code defines them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli import key_reference

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return key_reference.pages()


def test_configuration_key_reference_in_docs_equals_the_generated_reference(pages: dict[str, str]) -> None:
    committed = {path.name: path.read_text() for path in REFERENCE.iterdir()}
    outdated = [name for name in sorted({*pages, *committed}) if pages.get(name) != committed.get(name)]
    assert outdated == [], "run make docs"


def test_reference_lists_keys_with_their_types_defaults_and_descriptions(pages: dict[str, str]) -> None:
    assert (
        "| `offset.flush.interval.ms` | LONG | `60000` | low | Interval between offset commits, in ms. |"
        in (pages["worker.md"])
    )
    assert "| `topic` | STRING | required | high |" in pages["connectors.md"]
    assert "### HoistField\n" in pages["transforms.md"]
    assert "| `schemas.enable` | BOOLEAN | `true` |" in pages["converters.md"]
    assert "| `num.partitions` | INT | `1` |" in pages["broker.md"]


def test_every_configuration_key_has_a_description(pages: dict[str, str]) -> None:
    rows = [line for name in pages if name != "broker.md" for line in pages[name].splitlines() if line[:3] == "| `"]
    assert [row for row in rows if row.endswith("|  |")] == []
