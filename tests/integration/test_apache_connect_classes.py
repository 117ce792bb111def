"""Tests that transforms, predicates and converters return the same results as the classes of Kafka Connect.

Hypothesis generates schemas, values, headers and configurations. docs/connect.md lists the differences that
`support.connect_differences` excludes. `make test-long` runs about 200 cases per class, and `make prove` about 20,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

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
from support.connect_differences import is_known_difference
from support.connect_oracle import (
    ConnectOracle,
    Request,
    connect_oracle,
    deep_recursion,
    run_headrace,
    unavailable_reason,
)

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.integration,
    pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or ""),
]

CONNECT = "org.apache.kafka.connect."
CASES_PER_EXAMPLE = 4
COUNTS = [200, pytest.param(20_000, marks=[pytest.mark.prove, pytest.mark.timeout(3600)])]


@pytest.fixture(scope="module")
def oracle() -> Iterator[ConnectOracle]:
    """A JVM that runs the classes of Kafka Connect for all tests of this module."""
    with connect_oracle() as running:
        yield running


def assert_same_results(oracle: ConnectOracle, request: Request) -> None:
    """Check that headrace and Kafka Connect return the same result for each case, or fail at the same point."""
    java, headrace = oracle.run(request), run_headrace(request)
    with deep_recursion():
        if isinstance(java, str) or isinstance(headrace, str):
            assert headrace == java or is_known_difference(request, None, java, headrace), request
            return
        for case, expected, actual in zip(request.cases, java, headrace, strict=True):
            if actual != expected and not is_known_difference(request, case, expected, actual):
                schemas = request.schemas
                assert actual == expected, f"{request.java_class} {dict(request.config)} {schemas} {case}"


def run_examples(
    oracle: ConnectOracle, count: int, kind: str, java_class: str, examples: st.SearchStrategy[Any]
) -> None:
    """Compare the results of about `count` cases. An example is a configuration, and a pair of schemas and cases."""

    @seed(1)
    @settings(
        max_examples=max(count // CASES_PER_EXAMPLE, 1),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(example=examples)
    def compare(example: tuple[dict[str, str], tuple[list[Any], list[Any]]]) -> None:
        config, (schemas, cases) = example
        is_key = config.get("converter.type") == "key"
        assert_same_results(oracle, Request(kind, java_class, config, cases, schemas, is_key))

    compare()


SIDES = [(name, side) for name in TRANSFORMS for side in (("Key", "Value") if name.endswith("$") else ("",))]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("name", "side"), SIDES)
def test_transform_returns_the_same_records_as_kafka_connect(
    oracle: ConnectOracle, name: str, side: str, count: int
) -> None:
    examples = st.tuples(TRANSFORMS[name], record_cases("key" if side == "Key" else "value"))
    run_examples(oracle, count, "transform", f"{CONNECT}transforms.{name}{side}", examples)


@pytest.mark.parametrize("count", COUNTS)
def test_texts_of_dates_are_parsed_as_in_kafka_connect(oracle: ConnectOracle, count: int) -> None:
    java_class = f"{CONNECT}transforms.TimestampConverter$Value"
    run_examples(oracle, count, "transform", java_class, date_text_examples())


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", PREDICATES)
def test_predicate_returns_the_same_results_as_kafka_connect(oracle: ConnectOracle, name: str, count: int) -> None:
    java_class = f"{CONNECT}transforms.predicates.{name}"
    run_examples(oracle, count, "predicate", java_class, st.tuples(PREDICATES[name], record_cases("value")))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", CONVERTERS)
@pytest.mark.parametrize("direction", ["read", "write"])
def test_converter_returns_the_same_data_and_bytes_as_kafka_connect(
    oracle: ConnectOracle, name: str, direction: str, count: int
) -> None:
    cases = write_cases() if direction == "write" else read_cases(READ_DATA[name])
    run_examples(oracle, count, "converter", CONNECT + name, st.tuples(CONVERTERS[name], cases))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("direction", ["read", "write"])
def test_simple_header_converter_returns_the_same_data_and_bytes_as_kafka_connect(
    oracle: ConnectOracle, direction: str, count: int
) -> None:
    cases = write_cases() if direction == "write" else read_cases(READ_DATA[SIMPLE_HEADER_CONVERTER])
    run_examples(oracle, count, "header", CONNECT + SIMPLE_HEADER_CONVERTER, st.tuples(st.just({}), cases))
