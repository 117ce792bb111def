"""Tests of `support.transform_parity`, which generates connectors, topics and the rows that the S3 sink would write."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest

from headrace.plugins import registry
from headrace_connectors.s3.parquet import ArrowRows, encode_rows
from support.table_rows import table_row
from support.transform_parity import (
    COMMON,
    EVENTS,
    PLAIN,
    ROUTERS,
    ParityConnector,
    parity_connectors,
    rows_of,
    run_transforms,
)


@pytest.fixture(scope="module")
def connectors() -> list[ParityConnector]:
    return list(parity_connectors(seed=1, count=6, topics=8))


def test_connectors_have_all_built_in_transforms_and_predicates() -> None:
    common = [transform["type"] for transform, _ in COMMON]
    predicates = [text for _, props in COMMON for name, text in props.items() if name.endswith(".type")]
    names = [*PLAIN, EVENTS, *ROUTERS, *common]
    assert _built_in("transform") == {registry.find("transform", name) for name in names}
    assert _built_in("predicate") == {registry.find("predicate", name) for name in (*predicates, "TopicNameMatches")}


def _built_in(kind: str) -> set[Any]:
    points = entry_points(group=f"headrace.{kind}s")
    return {point.load() for point in points if point.value.startswith("headrace_transforms.")}


def test_most_records_become_rows_and_some_fail(connectors: list[ParityConnector]) -> None:
    topics = [topic for connector in connectors for topic in connector.topics]
    records = sum(len(topic.records) for topic in topics)
    assert len(topics) >= 40
    assert sum(len(topic.rows) for topic in topics) > records * 0.6
    assert 0 < sum(len(topic.failed) for topic in topics) < records * 0.3
    assert any(row.topic != topic.name for topic in topics for row in topic.rows)


def test_rows_of_a_topic_do_not_depend_on_the_transforms_of_other_topics(connectors: list[ParityConnector]) -> None:
    for connector in connectors:
        for topic in connector.topics:
            batches, failed = run_transforms(connector.properties, topic)
            assert tuple(row for batch in batches for row in rows_of(batch)) == topic.rows
            assert failed == topic.failed


def test_rows_are_those_of_the_s3_sinks_parquet_format(connectors: list[ParityConnector]) -> None:
    compared = 0
    for connector in connectors:
        for topic in connector.topics:
            expected = {row.offset: row.columns for row in topic.rows}
            for batch in run_transforms(connector.properties, topic)[0]:
                if batch.value_schema is None or not batch.value_schema.fields or batch.has_null_values:
                    continue
                arrow = encode_rows(batch.value_schema, batch.values, True)
                assert isinstance(arrow, ArrowRows)
                for offset, row in zip(batch.original_offsets, arrow.batch.to_pylist(), strict=True):
                    assert table_row(arrow.batch.schema, row) == expected[offset]
                    compared += 1
    assert compared > 300
