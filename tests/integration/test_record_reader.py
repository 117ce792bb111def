"""Tests that `KafkaRecordReader` reads exact ranges of offsets, and reports what it cannot read."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.api.record_access import ClusterUnavailableError, RangeReadError
from headrace.runtime.record_access.reader import KafkaRecordReader, KafkaRecords, OpenKafkaReader
from headrace.testing import KafkaBroker
from headrace_broker.client.cluster import Cluster
from support.repeated_batches import repeat_batches

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def reader_of(broker: KafkaBroker, **properties: str) -> KafkaRecordReader:
    own = {name.replace("_", "."): value for name, value in properties.items()}
    return KafkaRecordReader.from_consumer_properties(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "connect-c", **own}
    )


@pytest.fixture
def reader(kafka_broker: KafkaBroker) -> Iterator[OpenKafkaReader]:
    with reader_of(kafka_broker).open() as opened:
        yield opened


def values_of(found: Iterable[KafkaRecords]) -> list[Any]:
    return [value for records in found for value in records.raw.values]


def with_admin(broker: KafkaBroker, request: Callable[[AdminClient], dict[Any, Any]]) -> list[Any]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return [future.result(30) for future in request(admin).values()]


def delete_records(broker: KafkaBroker, offset: int) -> None:
    with_admin(broker, lambda admin: admin.delete_records([TopicPartition("t", 0, offset)]))


def create_again(broker: KafkaBroker) -> None:
    with_admin(broker, lambda admin: admin.delete_topics(["t"]))
    broker.create_topic("t")


def test_ranges_have_exactly_the_requested_offsets_and_no_gaps(
    kafka_broker: KafkaBroker, reader: OpenKafkaReader
) -> None:
    kafka_broker.create_topic("t", 2)
    kafka_broker.produce("t", [str(number) for number in range(10_000)], partition=1)
    kafka_broker.produce("t", ["other"], partition=0)
    for start, end in [(0, 10_000), (17, 9_003), (9_999, 10_000), (5, 5), (0, 1)]:
        found = list(reader.read("t", 1, start, end))
        assert values_of(found) == [str(number).encode() for number in range(start, end)]
        assert [offset for records in found for offset in records.offsets] == list(range(start, end))
        ranges = [(records.start, records.end) for records in found]
        assert [start for start, _ in ranges] == [start, *(end for _, end in ranges)][: len(ranges)]
        assert [*(end for _, end in ranges)][-1:] == ([end] if start < end else [])
    assert values_of(reader.read("t", 0, 0, 1)) == [b"other"]


def test_large_batch_is_yielded_in_parts(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    kafka_broker.create_topic("t")
    values = [b"%d" % number for number in range(12_000)]
    repeat_batches(kafka_broker.bootstrap_servers, "t", [values], 1)
    found = list(reader.read("t", 0, 3, 11_998))
    assert [(records.start, records.end) for records in found] == [(3, 5_003), (5_003, 10_003), (10_003, 11_998)]
    assert values_of(found) == values[3:11_998]


def test_range_at_the_end_of_the_log_does_not_delay_the_next_range(kafka_broker: KafkaBroker) -> None:
    """With a fetch in flight at the end of the log, the second range would wait for `fetch.max.wait.ms`."""
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ["a", "b"])
    with reader_of(kafka_broker, fetch_max_wait_ms="200000", request_timeout_ms="400000").open() as opened:
        assert values_of(opened.read("t", 0, 0, 2)) == [b"a", b"b"]
        assert values_of(opened.read("t", 0, 0, 2)) == [b"a", b"b"]


def test_reader_is_picklable_and_its_text_contains_no_properties(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ["a"])
    copy = pickle.loads(pickle.dumps(reader_of(kafka_broker, client_id="secret")))
    assert "secret" not in repr(copy)
    with copy.open() as opened:
        assert values_of(opened.read("t", 0, 0, 1)) == [b"a"]


def test_range_can_be_abandoned_before_its_end(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", [str(number) for number in range(9_000)])
    abandoned = reader.read("t", 0, 0, 9_000)
    next(abandoned)
    with pytest.raises(RuntimeError, match="one range at a time"):
        next(reader.read("t", 0, 0, 1))
    abandoned.close()
    assert values_of(reader.read("t", 0, 3, 4)) == [b"3"]


def test_deleted_records_are_reported_and_other_ranges_are_still_read(
    kafka_broker: KafkaBroker, reader: OpenKafkaReader
) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", [str(number) for number in range(10)])
    delete_records(kafka_broker, 4)
    with pytest.raises(RangeReadError, match="topic t, partition 0: retention deleted offsets 2 to 3 before they were"):
        list(reader.read("t", 0, 2, 10))
    assert values_of(reader.read("t", 0, 8, 10)) == [b"8", b"9"]


def test_log_that_ends_before_the_range_is_reported(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ["a", "b"])
    expected = (
        "topic t, partition 0: the log ends at offset 2, but offsets 2 to 4 are to be read; the log was truncated"
    )
    with pytest.raises(RangeReadError, match=expected):
        list(reader.read("t", 0, 0, 5))
    with pytest.raises(
        RangeReadError, match="offset 7: the log no longer contains this offset; it starts at offset 0 a"
    ):
        list(reader.read("t", 0, 7, 9))


def test_topic_that_was_created_again_is_reported(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ["old"])
    old = reader.describe_topics(["t"], None)["t"].id
    create_again(kafka_broker)
    kafka_broker.produce("t", ["new"])
    new = reader.describe_topics(["t"], None)["t"].id
    assert old != new
    text = f"topic t was deleted and created again (its id was {old}, now it is {new})"
    with pytest.raises(RangeReadError, match=re.escape(text)):
        list(reader.read("t", 0, 0, 1, old))
    assert values_of(reader.read("t", 0, 0, 1, new)) == [b"new"]


def test_reader_that_has_read_a_topic_reads_the_topic_that_replaced_it(
    kafka_broker: KafkaBroker, reader: OpenKafkaReader
) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ["old"])
    assert values_of(reader.read("t", 0, 0, 1)) == [b"old"]
    for value, uses_id in (("new", True), ("newer", False)):
        create_again(kafka_broker)
        kafka_broker.produce("t", [value])
        topic_id = reader.describe_topics(["t"], None)["t"].id if uses_id else None
        assert values_of(reader.read("t", 0, 0, 1, topic_id)) == [value.encode()]


def test_topic_that_is_created_again_while_it_is_read_is_reported(
    kafka_broker: KafkaBroker, reader: OpenKafkaReader
) -> None:
    records = [f"{number:0200}" for number in range(100_000)]
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", records)
    reading = reader.read("t", 0, 0, len(records))
    next(reading)
    create_again(kafka_broker)
    kafka_broker.produce("t", records)
    with pytest.raises(RangeReadError, match="topic t was deleted and created again"):
        list(reading)


def test_topic_ids_have_the_text_form_in_which_librdkafka_prints_them(
    kafka_broker: KafkaBroker, reader: OpenKafkaReader
) -> None:
    """Lakehouse tables store this form, with the standard alphabet of base64. Kafka's tools print `-` and `_`."""
    names = [f"t{number}" for number in range(30)]
    for name in names:
        kafka_broker.create_topic(name)
    described = with_admin(kafka_broker, lambda admin: admin.describe_topics(TopicCollection(names)))
    assert {name: topic.id for name, topic in reader.describe_topics(names, None).items()} == {
        topic.name: str(topic.topic_id) for topic in described
    }


def test_topics_are_described_by_name_or_by_regex(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    for name, partitions in (("orders", 3), ("orders.eu", 1), ("x-orders", 1)):
        kafka_broker.create_topic(name, partitions)
    found = reader.describe_topics(["orders", "missing"], None)
    assert {name: topic.partitions for name, topic in found.items()} == {"orders": (0, 1, 2)}
    assert sorted(reader.describe_topics([], r"orders(\.eu)?")) == ["orders", "orders.eu"]
    assert sorted(reader.describe_topics([], ".*")) == ["orders", "orders.eu", "x-orders"]
    assert reader.describe_topics([], None) == {}


def test_log_bounds_are_the_first_and_the_next_offset(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    kafka_broker.create_topic("t", 2)
    kafka_broker.produce("t", [str(number) for number in range(10)], partition=0)
    delete_records(kafka_broker, 4)
    assert reader.log_bounds([("t", 0), ("t", 1)]) == ({("t", 0): 4, ("t", 1): 0}, {("t", 0): 10, ("t", 1): 0})
    assert reader.log_bounds([]) == ({}, {})


def test_average_record_size_includes_keys_and_values(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.create_topic("empty")
    kafka_broker.produce("t", [("key", "x" * 97)] * 100)
    assert reader.average_record_bytes({("t", 0): 3, ("empty", 0): 0}) == {"t": 100}
    assert values_of(reader.read("t", 0, 0, 1)) == [b"x" * 97]


def test_metadata_of_all_topics_are_requested_once_if_the_topics_are_known_before(
    kafka_broker: KafkaBroker, reader: OpenKafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[set[str]] = []
    fetch = Cluster.fetch_metadata

    async def count(cluster: Cluster, topics: Iterable[str] | None, **options: Any) -> Any:
        requests.append(set(topics or ()))
        return await fetch(cluster, topics, **options)

    topics = {f"t{number}" for number in range(20)}
    for topic in topics:
        kafka_broker.create_topic(topic)
        kafka_broker.produce(topic, ["a"])
    described = reader.describe_topics(topics, None)
    monkeypatch.setattr(Cluster, "fetch_metadata", count)
    reader.prepare(topics)
    for topic in topics:
        assert values_of(reader.read(topic, 0, 0, 1, described[topic].id)) == [b"a"]
    assert requests == [topics]


def test_reader_without_a_broker_reports_that_the_cluster_is_unavailable(kafka_broker: KafkaBroker) -> None:
    reader = reader_of(kafka_broker, default_api_timeout_ms="300")
    kafka_broker.stop()
    with reader.open() as opened:
        with pytest.raises(ClusterUnavailableError):
            opened.describe_topics(["t"], None)
        with pytest.raises(ClusterUnavailableError):
            opened.log_bounds([("t", 0)])
        with pytest.raises(ClusterUnavailableError):
            list(opened.read("t", 0, 0, 1))


def test_reader_continues_after_the_broker_has_restarted(kafka_broker: KafkaBroker, reader: OpenKafkaReader) -> None:
    records = [f"{number:0200}" for number in range(50_000)]
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", records)
    reading = reader.read("t", 0, 0, len(records))
    found = values_of([next(reading)])
    kafka_broker.restart()
    found += values_of(reading)
    assert found == [record.encode() for record in records]


def test_corrupt_records_are_reported_with_the_offset_from_which_they_cannot_be_read(tmp_path: Path) -> None:
    with KafkaBroker(data_dir=tmp_path) as broker:
        broker.create_topic("t")
        for value in ("first", "second"):
            broker.produce("t", [value * 10])
        broker.stop()
        [log] = [path for path in tmp_path.rglob("*.log") if path.parent.name.startswith("t-")]
        damaged = log.read_bytes().replace(b"second", b"SECOND", 1)
        log.write_bytes(damaged)
        broker.start()
        with reader_of(broker).open() as opened:
            reading = opened.read("t", 0, 0, 2)
            with pytest.raises(RangeReadError, match="topic t, partition 0, offset 0: the records are corrupt: "):
                list(reading)
