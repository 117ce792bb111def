"""Every built-in converter, transform and predicate gives the same rows in the lakehouse sink as in the S3 sink.

A seed determines the connectors, whose topics have different transforms, and the records. The tests compare values,
keys, headers, topics, the order, and the records and reasons in the dead letter queues. To repeat a seed:

    PARITY_SEED=7 .venv/bin/python -m pytest tests/lakehouse/test_lakehouse_parity.py -k quick
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from headrace.plugins import registry
from headrace.testing import ConnectWorker, KafkaBroker
from headrace_connectors.lakehouse.spark.jobs import JobSettings, open_jobs
from support import rclone, s3
from support.converter_parity import converter_connectors
from support.lakehouse_load import InProcessJobs, SharedSpark
from support.sink_parity import ParitySinks
from support.spark import SHORT_RUN_CONF
from support.transform_parity import ParityConnector, parity_connectors

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(rclone.unavailable_reason() is not None, reason=str(rclone.unavailable_reason())),
]

SEED = 1
JOBS_MAX = 20
"""The number of Spark jobs that may load all topics of a seed."""
SEEDS = [
    pytest.param((int(os.environ.get("PARITY_SEED", SEED)),), id="quick"),
    pytest.param(range(2, 8), id="long", marks=pytest.mark.slow),
    pytest.param(range(1000, 1200), id="prove", marks=[pytest.mark.prove, pytest.mark.timeout(4 * 3600)]),
]


@cache
def connectors_of(seed: int) -> list[ParityConnector]:
    return [*parity_connectors(seed, count=5, topics=8), *converter_connectors(seed)]


@pytest.fixture(scope="module")
def sinks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ParitySinks]:
    directory = tmp_path_factory.mktemp("s3") / "buckets"
    with (
        KafkaBroker() as broker,
        rclone.running(directory) as server,
        ConnectWorker(broker.bootstrap_servers) as worker,
    ):
        yield ParitySinks(broker, worker, server, directory / s3.BUCKET)


@pytest.mark.parametrize("seeds", SEEDS)
def test_tables_have_the_rows_of_the_s3_sink(sinks: ParitySinks, tmp_path: Path, seeds: Sequence[int]) -> None:
    for seed in seeds:
        jobs = InProcessJobs()
        found = sinks.differences(seed, connectors_of(seed), tmp_path, jobs)
        assert not found, "\n".join([f"seed {seed} (repeat it with PARITY_SEED={seed} and -k quick):", *found])
        assert jobs.jobs <= JOBS_MAX


@pytest.mark.slow
@pytest.mark.spark
def test_tables_that_spark_loads_have_the_rows_of_the_s3_sink(sinks: ParitySinks, tmp_path: Path) -> None:
    spark = open_jobs(SHORT_RUN_CONF, None, "tests", tmp_path / "spark", JobSettings(java_archive=False))
    spark.start()
    try:
        jobs = SharedSpark(spark)
        assert not sinks.differences(SEED + 10, connectors_of(SEED + 10), tmp_path / "tables", jobs)
        assert jobs.jobs <= JOBS_MAX
    finally:
        spark.stop()


@pytest.mark.parametrize("kind", ["transform", "predicate", "converter", "header_converter"])
def test_connectors_have_all_built_in_plugins_and_rows_of_them(kind: str) -> None:
    used = {each for connector in connectors_of(SEED) for each in _used(kind, connector)}
    assert used == _built_in(kind)


def _used(kind: str, connector: ParityConnector) -> Iterator[Any]:
    """Yield the plug-ins of the topics that have rows."""
    properties = connector.properties
    if kind in ("converter", "header_converter"):
        keys = ("key.converter", "value.converter") if kind == "converter" else ("header.converter",)
        yield from (registry.find(kind, properties[key]) for key in keys)
        return
    if kind == "predicate":
        names = [text for key, text in properties.items() if key.startswith("predicates.") and key.endswith(".type")]
    else:
        steps = [*connector.common, *(step for topic in connector.topics if topic.rows for step in topic.transforms)]
        names = [step["type"] for step in steps]
    yield from (registry.find(kind, name) for name in names)


def _built_in(kind: str) -> set[Any]:
    found = entry_points(group=f"headrace.{kind}s")
    return {point.load() for point in found if point.value.partition(".")[0] in ("headrace", "headrace_transforms")}
