"""Tests of the consumer properties of `KafkaRecordReader`."""

from __future__ import annotations

import pytest

from headrace.api.errors import ConnectError
from headrace.runtime import client_configs
from headrace.runtime.record_access.reader import KafkaRecordReader

WORKER = {"bootstrap.servers": "localhost:1", "consumer.fetch.max.wait.ms": "7"}


def properties_of(**overrides: str) -> dict[str, str]:
    own = {f"consumer.override.{name.replace('_', '.')}": text for name, text in overrides.items()}
    consumer = client_configs.consumer_properties(WORKER, {"name": "c", **own}, "c-0")
    return dict(KafkaRecordReader.from_consumer_properties(consumer).properties)


def test_reader_has_the_consumer_properties_of_the_connector_without_the_group() -> None:
    assert properties_of(group_id="g", group_instance_id="i") == {
        "bootstrap.servers": "localhost:1",
        "client.id": "connector-consumer-c-0",
        "fetch.max.wait.ms": "7",
        "fetch.max.bytes": "8388608",
        "max.partition.fetch.bytes": "4194304",
        "isolation.level": "read_committed",
        "auto.offset.reset": "none",
        "allow.auto.create.topics": "false",
    }


def test_overrides_of_the_connector_have_precedence_except_those_that_would_skip_records_or_create_topics() -> None:
    found = properties_of(
        isolation_level="read_uncommitted",
        max_partition_fetch_bytes="5",
        auto_offset_reset="latest",
        allow_auto_create_topics="true",
    )
    assert (found["isolation.level"], found["max.partition.fetch.bytes"]) == ("read_uncommitted", "5")
    assert (found["auto.offset.reset"], found["allow.auto.create.topics"]) == ("none", "false")


def test_invalid_property_is_reported_when_the_reader_is_opened() -> None:
    reader = KafkaRecordReader.from_consumer_properties({"bootstrap.servers": "localhost:1", "fetch.max.bytes": "x"})
    with pytest.raises(ConnectError, match=r"fetch\.max\.bytes=x"):
        reader.open()
