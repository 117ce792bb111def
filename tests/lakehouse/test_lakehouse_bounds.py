"""Tests that the memory and the time that the lakehouse sink needs are bounded: large batches, large and bad records.

The sink runs in a process of its own, with real brokers and real Spark. `pytest -s` prints the measured memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from support.broker import BrokerProcess, running_broker
from support.lakehouse_records import numbers, produce
from support.measured_task import MeasuredTask, workers_of
from support.peak_memory import PeakMemory, peak_bytes
from support.raw_client import RawClient, create_topic
from support.repeated_batches import random_batches, repeat_batches
from support.spark import SHORT_RUN_PROPS
from support.spark_cluster import EXECUTOR_CONF, running_cluster

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

KEEP_RECORDS = {"log.retention.ms": "-1"}
"""The timestamps of the records are some years old."""
MB = 1_000_000
LARGE = 50 * MB
ROWS = {
    "value.converter.schemas.enable": "false",
    "lakehouse.schema": "n BIGINT, text STRING",
    "lakehouse.batch.rows.max": str(10**9),
    "spark.driver.memory": "512m",
}
ONE_CORE = {**SHORT_RUN_PROPS, **ROWS, "spark.master": "local[1]"}
TOLERATE = {"errors.tolerance": "all"}
DLQ = {
    **TOLERATE,
    "errors.deadletterqueue.topic.name": "dlq",
    "errors.deadletterqueue.topic.replication.factor": "1",
    "errors.deadletterqueue.context.headers.enable": "true",
}
TOPICS, LOADED = 1000, 5


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    properties = {**KEEP_RECORDS, "message.max.bytes": str(LARGE + MB)}
    with running_broker(tmp_path_factory.mktemp("broker"), **properties) as running:
        yield running


def create(broker: BrokerProcess, topic: str) -> None:
    """Create a topic with one partition."""
    with RawClient(broker.address) as client:
        create_topic(client, topic)


# --- large batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("megabytes", "buffer_bytes", "workers_max"),
    [
        (400, 16 << 20, 300 * MB),
        pytest.param(5_000, 256 << 20, 600 * MB, marks=[pytest.mark.prove, pytest.mark.timeout(5_400)]),
    ],
)
def test_batch_and_partition_larger_than_the_memory_of_executors_and_workers_are_loaded_once(
    tmp_path: Path, megabytes: int, buffer_bytes: int, workers_max: int
) -> None:
    """A worker that kept its half of the partition in memory would need more than `workers_max`."""
    batches = random_batches(8, 900, 1000)
    repeats = megabytes * MB // sum(len(value) for values in batches for value in values) + 1
    with running_broker(tmp_path, **KEEP_RECORDS) as broker, running_cluster(tmp_path, 2) as cluster:
        create(broker, "large")
        count = repeat_batches(broker.address, "large", batches, repeats)
        props = {
            "lakehouse.path": str(tmp_path / "lake"),
            "lakehouse.java.archive": "false",
            "lakehouse.batch.bytes.max": str(2 * megabytes * MB),
            "lakehouse.worker.memory.bytes": str(buffer_bytes),
            **EXECUTOR_CONF,
            **ROWS,
            "spark.master": cluster.master,
        }
        with MeasuredTask(broker, ["large"], props) as sink:
            processes = {
                "driver": sink.driver,
                "driver's JVM": sink.jvms,
                "executors": cluster.executors,
                "workers": lambda: workers_of(cluster.executors()),
            }
            with PeakMemory(processes) as peak:
                sink.until(lambda: len(cluster.executors()) == 2, 600)
                started = {executor.pid for executor in cluster.executors()}
                sink.until(lambda: sink.reported("large") == count, 4_800)
                assert {executor.pid for executor in cluster.executors()} == started
            print(f"{megabytes} MB in {sink.batches}: {peak}")
            assert [rows for rows, _ in sink.batches] == [count]
    assert_loaded_once(tmp_path / "lake" / "large", count)
    assert (
        len({Path(file).name.split("-")[3] for file in DeltaTable(tmp_path / "lake" / "large").file_uris()}) == 2
    )  # tasks
    assert peak.bytes["workers"] < workers_max
    assert peak.bytes["executors"] < 600 * MB
    assert peak.bytes["driver"] < 400 * MB
    assert peak.bytes["driver's JVM"] < 512 * MB


def assert_loaded_once(table: Path, count: int) -> None:
    """Check that the table has each offset of one partition once."""
    files = ds.dataset(DeltaTable(table).file_uris(), format="parquet")
    offsets = files.to_table(["_kafka_offset"])["_kafka_offset"]
    assert len(offsets) == count
    assert pc.count_distinct(offsets).as_py() == count
    assert pc.min_max(offsets).as_py() == {"min": 0, "max": count - 1}


def test_driver_memory_that_is_too_small_for_spark_is_reported_with_its_key(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "any", numbers(0, 1))
    props = {**SHORT_RUN_PROPS, "lakehouse.path": str(tmp_path), "spark.driver.memory": "300m"}
    with MeasuredTask(broker, ["any"], props) as sink:
        output = sink.error(300)
    assert "the Spark session did not start" in output
    assert '"spark.driver.memory"' in output
    assert "SIGKILL" not in output


# --- large records ----------------------------------------------------------------------------------------------------


def produce_large(broker: BrokerProcess, topic: str, record: Mapping[str, object]) -> None:
    """Write a large record between two small ones."""
    create(broker, topic)
    producer = Producer({"bootstrap.servers": broker.address, "message.max.bytes": LARGE + MB, "log_level": 0})
    for value in ({"n": 1, "text": "small"}, record, {"n": 3, "text": "small"}):
        producer.produce(topic, json.dumps(value))
    assert producer.flush(60) == 0


def test_record_of_50_mb_is_loaded_without_settings_of_the_connector(broker: BrokerProcess, tmp_path: Path) -> None:
    produce_large(broker, "wide", {"n": 2, "text": "x" * (LARGE - 100)})
    with MeasuredTask(broker, ["wide"], {**ONE_CORE, "lakehouse.path": str(tmp_path)}) as sink:
        sink.until(lambda: sink.reported("wide") == 3, 600)
        sizes = {"driver": sink.driver_peak_bytes()}
        sizes["workers"] = max(peak_bytes(worker.pid) for worker in workers_of(sink.jvms()))
    print(f"50 MB: {sizes}")
    rows = DeltaTable(tmp_path / "wide").to_pyarrow_table().to_pylist()
    assert {row["n"]: len(row["text"]) for row in rows} == {1: 5, 2: LARGE - 100, 3: 5}
    assert sizes["driver"] < 400 * MB
    assert sizes["workers"] < 15 * LARGE


def test_bad_record_of_50_mb_is_dead_lettered_after_the_key_that_the_error_names_was_raised(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    produce_large(broker, "wide-bad", {"n": "two", "text": "x" * (LARGE - 100)})
    props = {**ONE_CORE, **DLQ, "lakehouse.path": str(tmp_path), "errors.deadletterqueue.topic.name": "wide-dlq"}
    with MeasuredTask(broker, ["wide-bad"], props) as sink:
        output = sink.error(300)
    assert "Could not write 1 failed records to the dead letter queue wide-dlq" in output
    assert "is larger than max.request.size=1048576" in output
    props["producer.override.max.request.size"] = str(LARGE + MB)
    with MeasuredTask(broker, ["wide-bad"], props) as sink:
        sink.until(lambda: sink.reported("wide-bad") == 3, 600)
    rows = DeltaTable(tmp_path / "wide-bad").to_pyarrow_table().to_pylist()
    assert sorted(row["n"] for row in rows) == [1, 3]
    assert log_end(broker, "wide-dlq") == 1


def log_end(broker: BrokerProcess, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
    consumer.close()
    return end


# --- many topics ------------------------------------------------------------------------------------------------------


def test_idle_topics_and_empty_topics_delay_no_batch_and_cause_no_commits(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The best of several batches counts, because other processes use the same processors."""
    names = [f"many-{number}" for number in range(TOPICS)]
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(60)
    loaded = names[:: TOPICS // LOADED]
    for name in loaded:
        produce(broker.address, name, numbers(0, 10))
    props = {**SHORT_RUN_PROPS, "lakehouse.path": str(tmp_path), "lakehouse.trigger.interval.ms": "0"}
    with MeasuredTask(broker, [], props, topics_regex="many-.*") as sink:
        started = time.monotonic()
        sink.until(lambda: all(sink.reported(name) == 10 for name in loaded), 600)
        print(f"first batch after {time.monotonic() - started:.1f} s: {sink.batches}")
        seconds = [load_more(broker, sink, loaded[0], 10 + number) for number in range(10)]
        print(f"from the produce request to the commit: {min(seconds):.2f} to {max(seconds):.2f} s")
        produce(broker.address, "many-later", numbers(0, 3))
        sink.until(lambda: sink.reported("many-later") == 3, 600)
    assert min(seconds) <= 1
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("_")} == {*loaded, "many-later"}
    assert [DeltaTable(tmp_path / name).version() for name in loaded[1:]] == [0] * (LOADED - 1)
    assert DeltaTable(tmp_path / loaded[0]).version() == 10


def load_more(broker: BrokerProcess, sink: MeasuredTask, topic: str, offset: int) -> float:
    """Write one record, and return the seconds until it is in the table."""
    repeat_batches(broker.address, topic, [numbers(0, 1)], 1)
    started = time.monotonic()
    sink.until(lambda: sink.reported(topic) == offset + 1, 600)
    return time.monotonic() - started


# --- bad records ------------------------------------------------------------------------------------------------------

BAD = b'{"n":x'
BATCH_RECORDS = 20_000
GROWTH_MAX = 40 * MB


@pytest.mark.parametrize(
    "batches", [1, pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(3_600)])], ids=["20k", "400k"]
)
@pytest.mark.parametrize("errors", [TOLERATE, DLQ], ids=["skip", "dlq"])
def test_memory_of_the_driver_does_not_grow_with_the_number_of_tolerated_bad_records(
    broker: BrokerProcess, tmp_path: Path, errors: Mapping[str, str], batches: int, request: pytest.FixtureRequest
) -> None:
    topic = request.node.callspec.id
    create(broker, topic)
    repeat_batches(broker.address, topic, [[b'{"n":1,"text":"good"}']], 1)
    dlq = f"{topic}-dlq"
    props = {**ONE_CORE, **errors, "lakehouse.path": str(tmp_path)}
    if errors is DLQ:
        props["errors.deadletterqueue.topic.name"] = dlq
    few = produce_bad(broker, topic, batches)
    with MeasuredTask(broker, [topic], props) as sink:
        sink.until(lambda: sink.reported(topic) == 1 + few, 1_800)
        before = sink.driver_peak_bytes()
        more = produce_bad(broker, topic, 4 * batches)
        sink.until(lambda: sink.reported(topic) == 1 + few + more, 1_800)
        growth = sink.driver_peak_bytes() - before
        print(f"{topic}: {before / MB:.0f} MB, then {growth / MB:.0f} MB more; {sink.batches}")
    assert growth < GROWTH_MAX
    if errors is DLQ:
        assert log_end(broker, dlq) == few + more


def test_memory_of_the_driver_does_not_grow_with_the_number_of_bad_records_that_fail_the_task(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    peaks = []
    for topic, batches in [("fail-few", 1), ("fail-many", 8)]:
        create(broker, topic)
        produce_bad(broker, topic, batches)
        props = {**ONE_CORE, "lakehouse.path": str(tmp_path / topic)}
        with MeasuredTask(broker, [topic], props) as sink, PeakMemory({"driver": sink.driver}) as peak:
            output = sink.error(300)
        assert f"topic {topic}, partition 0, offset 0: " in output, output
        peaks.append(peak.bytes["driver"])
    print(f"driver: {peaks[0] / MB:.0f} MB with 20,000 bad records, {peaks[1] / MB:.0f} MB with 160,000")
    assert peaks[1] - peaks[0] < GROWTH_MAX


def produce_bad(broker: BrokerProcess, topic: str, batches: int) -> int:
    """Produce batches of bad records. Return the number of records."""
    return repeat_batches(broker.address, topic, [[BAD] * BATCH_RECORDS], batches)
