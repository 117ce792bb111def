"""Tests that transforms, predicates and converters return the same results as the classes of Kafka Connect.

`support.connect_cases` generates configurations, schemas, values and headers. docs/connect.md lists the differences
that `support.connect_differences` excludes. A case is a configuration and a record (or data, or bytes).
`make test-long` runs 200 cases per class with 40 configurations, and `make prove` runs 20,000 with 1,000.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from support import generators as generate
from support.connect_cases import (
    CONVERTERS,
    PREDICATES,
    READ_DATA,
    SIMPLE_HEADER_CONVERTER,
    TRANSFORMS,
    date_text_examples,
    read_cases,
    record_cases,
    write_cases,
)
from support.connect_differences import agree
from support.connect_oracle import (
    ConnectOracle,
    Request,
    connect_oracle,
    deep_recursion,
    is_error,
    run_headrace,
    unavailable_reason,
)
from support.generators import Generator

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or ""),
]

CONNECT = "org.apache.kafka.connect."
ONLY_EXAMPLE = os.environ.get("CONNECT_EXAMPLE")
Cases = Callable[[int], Generator[Any]]
Examples = Callable[[int], Generator[Any]]
COUNTS = [200, pytest.param(20_000, marks=[pytest.mark.prove, pytest.mark.timeout(3600)])]


@pytest.fixture(scope="module")
def oracle() -> Iterator[ConnectOracle]:
    """A JVM that runs the classes of Kafka Connect for all tests of this module."""
    with connect_oracle() as running:
        yield running


def used_schemas(request: Request, case: list[Any]) -> dict[int, Any]:
    """Return the schemas of a case by their indexes. The message of a failure contains them."""
    if request.kind in ("converter", "header"):
        indexes = {case[1]} if case[0] == "from" else set()
    else:
        indexes = {case[3], case[5], *(index for _, index, _ in case[8])}
    return {index: request.schemas[index] for index in indexes - {None}}


def failures_of(oracle: ConnectOracle, request: Request) -> list[str]:
    """Describe each case for which the results of headrace and Kafka Connect are not the same."""
    oracle.send(request)
    headrace: Any = None
    try:
        headrace = run_headrace(request)
    except AssertionError as error:  # the results for single records and for batches differ
        oracle.receive(request)
        return [f"{request.config} {request.schemas} {error}"]
    java = oracle.receive(request)
    with deep_recursion():
        if is_error(java) or is_error(headrace):
            if agree(request, None, java, headrace):
                return []
            return [f"{request.config}: Kafka Connect returns {str(java)[:500]}, headrace {str(headrace)[:500]}"]
        return [
            f"{request.config} {used_schemas(request, case)} {case}:\n"
            f"Kafka Connect returns {expected}\nheadrace returns {actual}"
            for case, expected, actual in zip(request.cases, java, headrace, strict=True)
            if not agree(request, case, expected, actual)
        ]


def run_examples(
    oracle: ConnectOracle, count: int, kind: str, java_class: str, configs: Generator[dict[str, str]], cases: Cases
) -> None:
    """Compare the results of `count` cases. An example is a configuration, and schemas and cases."""
    run_whole_examples(oracle, count, kind, java_class, lambda size: generate.tuples(configs, cases(size)))


def run_whole_examples(oracle: ConnectOracle, count: int, kind: str, java_class: str, examples: Examples) -> None:
    """Compare the results of `count` cases, and report the shortest of the failures.

    A class and the number of an example are the seed of the example.
    """
    size = 5 if count <= 200 else 20
    generator = examples(size)
    failures = []
    for number in range(count // size) if ONLY_EXAMPLE is None else (int(ONLY_EXAMPLE),):
        config, (schemas, cases) = generator.draw(Random(f"{java_class} {number}"))
        request = Request(kind, java_class, config, cases, schemas, config.get("converter.type") == "key")
        failures += [(number, failure) for failure in failures_of(oracle, request)]
    if failures:
        number, shortest = min(failures, key=lambda failure: len(failure[1]))
        numbers = sorted({number for number, _ in failures})
        pytest.fail(
            f"{len(failures)} cases fail, in the examples {numbers}. The shortest is in example {number}: {shortest}\n"
            f"CONNECT_EXAMPLE={number} repeats only this example."
        )


SIDES = [(name, side) for name in TRANSFORMS for side in (("Key", "Value") if name.endswith("$") else ("",))]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("name", "side"), SIDES)
def test_transform_returns_the_same_records_as_kafka_connect(
    oracle: ConnectOracle, name: str, side: str, count: int
) -> None:
    cases = partial(record_cases, "key" if side == "Key" else "value")
    run_examples(oracle, count, "transform", f"{CONNECT}transforms.{name}{side}", TRANSFORMS[name], cases)


@pytest.mark.parametrize("count", COUNTS)
def test_texts_of_dates_are_parsed_as_in_kafka_connect(oracle: ConnectOracle, count: int) -> None:
    java_class = f"{CONNECT}transforms.TimestampConverter$Value"
    run_whole_examples(oracle, count, "transform", java_class, date_text_examples)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", PREDICATES)
def test_predicate_returns_the_same_results_as_kafka_connect(oracle: ConnectOracle, name: str, count: int) -> None:
    java_class = f"{CONNECT}transforms.predicates.{name}"
    run_examples(oracle, count, "predicate", java_class, PREDICATES[name], partial(record_cases, "value"))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", CONVERTERS)
@pytest.mark.parametrize("direction", ["read", "write"])
def test_converter_returns_the_same_data_and_bytes_as_kafka_connect(
    oracle: ConnectOracle, name: str, direction: str, count: int
) -> None:
    cases = write_cases if direction == "write" else partial(read_cases, READ_DATA[name])
    run_examples(oracle, count, "converter", CONNECT + name, CONVERTERS[name], cases)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("direction", ["read", "write"])
def test_simple_header_converter_returns_the_same_data_and_bytes_as_kafka_connect(
    oracle: ConnectOracle, direction: str, count: int
) -> None:
    cases = write_cases if direction == "write" else partial(read_cases, READ_DATA[SIMPLE_HEADER_CONVERTER])
    run_examples(oracle, count, "header", CONNECT + SIMPLE_HEADER_CONVERTER, generate.just({}), cases)
