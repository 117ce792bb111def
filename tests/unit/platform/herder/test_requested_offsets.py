"""Tests of the offsets in requests to alter a connector's offsets."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.herder.errors import BadRequestError
from headrace.herder.requested_offsets import sink_offsets, source_offsets


def partition(number: Any, topic: Any = "t") -> dict[str, Any]:
    return {"kafka_topic": topic, "kafka_partition": number}


def test_last_requested_offset_of_a_sink_partition_is_used_and_strings_are_converted_to_numbers() -> None:
    requested: Any = [
        (partition("0"), {"kafka_offset": "+5"}),
        (partition(1), None),
        (partition(0), {"kafka_offset": 7, "other": 1}),
        (partition(0, 3), {"kafka_offset": "007"}),
    ]
    assert sink_offsets(requested) == [
        (partition(0), {"kafka_offset": 7}),
        (partition(1), None),
        (partition(0, "3"), {"kafka_offset": 7}),
    ]


@pytest.mark.parametrize("number", [True, 1.0, "1.0", "", " 1", "١", "0x1", 1 << 31, -(1 << 31) - 1, [1], {}])
def test_requested_kafka_partition_that_is_not_a_32_bit_integer_is_rejected(number: Any) -> None:
    with pytest.raises(BadRequestError, match="Failed to parse the following Kafka partition value"):
        sink_offsets([(partition(number), None)])


@pytest.mark.parametrize("number", [None, False, 2.5, "x", 1 << 63, [1]])
def test_requested_kafka_offset_that_is_not_a_64_bit_integer_is_rejected(number: Any) -> None:
    with pytest.raises(BadRequestError, match="Failed to parse the following Kafka offset value"):
        sink_offsets([(partition(0), {"kafka_offset": number})])


def test_requested_negative_sink_offset_is_rejected() -> None:
    with pytest.raises(BadRequestError, match="The offset -1 is negative, but must be at least 0"):
        sink_offsets([(partition(0), {"kafka_offset": "-1"})])


def test_requested_source_offsets_with_primitive_values_are_returned_unchanged() -> None:
    requested: Any = [({"a": 1, "b": None, "c": True}, {"d": 1.5, "e": "x"}), ({}, None)]
    assert source_offsets(requested) == requested
