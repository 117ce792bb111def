"""Tests of the texts in log lines."""

from __future__ import annotations

import logging

from headrace.herder.assignment import Assignment
from headrace.metrics import log_text
from headrace_broker.client.delivery import RecordMetadata


def test_listing_of_many_items_counts_the_items_that_are_not_listed() -> None:
    assert str(log_text.Listing([])) == "none"
    assert str(log_text.Listing(range(10))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert str(log_text.Listing(range(13))) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 3 more"


def test_partitions_and_offsets_are_listed_with_their_topics() -> None:
    assert str(log_text.partitions([("a", 0), ("b", 12)])) == "a-0, b-12"
    assert str(log_text.partition_offsets({("a", 0): 5, ("b", 12): 6})) == "a-0: 5, b-12: 6"
    assert str(log_text.source_offsets([({"file": "x"}, {"position": 4}), ({"file": "y"}, None)])) == (
        "{'file': 'x'}: {'position': 4}, {'file': 'y'}: None"
    )


def test_acknowledged_records_are_listed_with_their_offsets() -> None:
    parts = [RecordMetadata("a", 0, 100, 50), RecordMetadata("a", 1, 7, 1)]
    assert str(log_text.written(parts)) == "a-0 offsets 100-149, a-1 offsets 7-7"


def test_assignment_is_shown_with_the_names_of_its_connectors_and_tasks() -> None:
    assert str(Assignment(frozenset({"b", "a"}), frozenset({("b", 1), ("a", 0)}))) == "connectors a, b; tasks a-0, b-1"
    assert str(Assignment()) == "connectors none; tasks none"


def test_text_is_not_created_if_the_line_is_not_written() -> None:
    created: list[str] = []

    def text_of(item: str) -> str:
        created.append(item)
        return item

    logger = logging.getLogger("test_log_text")
    logger.setLevel(logging.INFO)
    logger.debug("Topics %s", log_text.Listing(["a"], text_of))
    assert created == []
