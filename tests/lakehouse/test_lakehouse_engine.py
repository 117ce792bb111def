"""Tests of the lakehouse sink's engine with real brokers and tables: routing, positions, owners, keys, layouts."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.base import CommitOutcomeUnknownError
from headrace_connectors.lakehouse.committers.delta import DeltaCommitter
from headrace_connectors.lakehouse.driver.positions import alter_table_offsets
from headrace_connectors.lakehouse.job.results import FAILED_RECORDS_MAX
from headrace_connectors.lakehouse.planner import Planner
from headrace_connectors.lakehouse.s3_access import S3Access
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig
from support.broker import BrokerProcess, running_broker
from support.lakehouse_load import TIMEOUT_S, InProcessJobs, Load
from support.lakehouse_records import envelope, field, numbers, produce, rows_of
from support.worker import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TRANSFORMS = "org.apache.kafka.connect.transforms."
ROUTE_ODD = {
    "transforms": "route",
    "transforms.route.type": f"{TRANSFORMS}RegexRouter",
    "transforms.route.regex": "(.*)",
    "transforms.route.replacement": "routed-$1",
    "transforms.route.predicate": "marked",
    "predicates": "marked",
    "predicates.marked.type": f"{TRANSFORMS}predicates.HasHeaderKey",
    "predicates.marked.name": "odd",
}
START_AT_LATEST = {"consumer.override.auto.offset.reset": "latest"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def load(broker: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., Load]]:
    loads: list[Load] = []

    def start(*topics: str, committed: Any = None, metadata: Any = None, path: Any = tmp_path, **props: str) -> Load:
        dotted = {key.replace("__", "."): value for key, value in props.items()}
        loads.append(Load(broker.address, path, topics, dotted, committed=committed, metadata=metadata))
        return loads[-1]

    yield start
    for started in loads:
        started.stop()


def produce_marked(broker: BrokerProcess, topic: str, first: int, count: int) -> None:
    """Write numbers; the odd ones have the header `odd`."""
    for n in range(first, first + count):
        produce(broker.address, topic, numbers(n, 1), headers={"odd": b"x"} if n % 2 else None)


def test_transforms_that_change_the_topic_determine_the_table(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce_marked(broker, "mixed", 0, 10)
    routed = load("mixed", **ROUTE_ODD)
    routed.until_offsets(mixed=10)
    assert [row["n"] for row in rows_of(tmp_path / "mixed")] == [0, 2, 4, 6, 8]
    rows = rows_of(tmp_path / "routed-mixed")
    assert [(row["_kafka_topic"], row["_kafka_offset"], row["n"]) for row in rows] == [
        ("mixed", n, n) for n in (1, 3, 5, 7, 9)
    ]


def test_task_without_new_records_and_without_a_trigger_interval_pauses_between_its_checks(
    load: Callable[..., Load], broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[float] = []
    describe_topics = Planner.describe_topics

    def note(planner: Planner) -> Any:
        checks.append(time.monotonic())
        return describe_topics(planner)

    monkeypatch.setattr(Planner, "describe_topics", note)
    produce(broker.address, "idle", numbers(0, 1))
    load("idle", lakehouse__trigger__interval__ms="0").until_offsets(idle=1)
    checks.clear()
    wait_for(lambda: len(checks) > 3, "the task has checked for new records")
    assert checks[3] - checks[1] >= 0.2


def test_tables_skip_the_records_they_have_if_the_group_committed_no_offsets_after_their_commits(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce_marked(broker, "twice", 0, 6)
    first = load("twice", **ROUTE_ODD)
    first.until_offsets(twice=6)
    first.stop()
    produce_marked(broker, "twice", 6, 4)
    load("twice", committed={("twice", 0): 2}, **ROUTE_ODD).until_offsets(twice=10)
    found = [row["n"] for name in ("twice", "routed-twice") for row in rows_of(tmp_path / name)]
    assert Counter(found) == Counter(range(10))


def test_table_that_failed_to_commit_gets_its_rows_after_a_restart_and_the_other_table_does_not_get_them_again(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce_marked(broker, "halves", 0, 10)
    commit = DeltaCommitter.commit

    def fail_for_routed(committer: DeltaCommitter, change: Any) -> None:
        if committer.name == "routed-halves":
            raise CommitOutcomeUnknownError("no answer")
        commit(committer, change)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaCommitter, "commit", fail_for_routed)
        with pytest.raises(ConnectError, match="no answer"):
            load("halves", **ROUTE_ODD).until_offsets(halves=10)
    load("halves", **ROUTE_ODD).until_offsets(halves=10)
    found = [row["n"] for name in ("halves", "routed-halves") for row in rows_of(tmp_path / name)]
    assert Counter(found) == Counter(range(10))


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_task_fails_if_the_group_has_offsets_but_the_tables_of_a_routed_topic_are_in_another_directory(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path, format_: str
) -> None:
    topic, props = f"away-{format_}", {"lakehouse.format": format_, **ROUTE_ODD}
    produce_marked(broker, topic, 0, 4)
    first = load(topic, path=tmp_path / "a", **props)
    first.until_offsets(**{topic: 4})
    first.stop()
    group = {"committed": first.context.offsets, "metadata": first.context.metadata}
    produce_marked(broker, topic, 4, 2)
    with pytest.raises(ConnectError, match=r"tables .* missing in .*/b, but group connect-sink has committed offset 4"):
        load(topic, path=tmp_path / "b", **group, **props).until_offsets(**{topic: 6})
    assert not (tmp_path / "b" / "_headrace").exists()
    load(topic, path=tmp_path / "a", **group, **props).until_offsets(**{topic: 6})
    # The offsets were reset, or set over REST, which removes the metadata.
    load(topic, path=tmp_path / "b", committed={(topic, 0): 5}, **props).until_offsets(**{topic: 6})
    other = load(topic, path=tmp_path / "b", **group, **props)
    with pytest.raises(ConnectError, match="missing in"):
        other.until_offsets(**{topic: 6})


def test_topic_from_a_transform_that_is_no_table_name_is_a_bad_record(
    load: Callable[..., Load], broker: BrokerProcess
) -> None:
    produce(broker.address, "badname", numbers(0, 2))
    route = {**ROUTE_ODD, "transforms.route.replacement": "a b"}
    del route["transforms.route.predicate"]
    with pytest.raises(ConnectError, match=r"offset 0: the topic 'a b' gives the table name 'a b', which must be"):
        load("badname", **route).until_offsets(badname=2)


def test_failed_transform_is_reported_with_its_alias_and_counted(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    values = [envelope([field("n", "string")], {"n": text}) for text in ("1", "x", "3")]
    produce(broker.address, "cast", values)
    cast = {"transforms": "c", "transforms.c.type": f"{TRANSFORMS}Cast$Value", "transforms.c.spec": "n:int32"}
    with pytest.raises(ConnectError, match=r"topic cast, partition 0, offset 1: transform c: "):
        load("cast", **cast).until_offsets(cast=3)
    tolerant = load("cast", errors__tolerance="all", **cast)
    tolerant.until_offsets(cast=3)
    assert [row["n"] for row in rows_of(tmp_path / "cast")] == [1, 3]
    assert (value_of(tolerant, "bad-records-total"), value_of(tolerant, "rows-total")) == (1, 1)


def test_keys_and_headers_are_stored_in_columns(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "keyed", numbers(0, 1), keys=[b"k"], headers={"h": b"v"})
    load("keyed", lakehouse__key__columns="key", lakehouse__headers__column="headers").until_offsets(keyed=1)
    (row,) = rows_of(tmp_path / "keyed")
    assert row["_kafka_key"] == "k"
    assert row["headers"] == [{"key": "h", "value": b"v"}]


def test_nulls_do_not_determine_the_columns_of_a_new_table(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    shorts = [None, b"\0\1", b"\0\2"]
    produce(broker.address, "nulls", shorts, keys=[b"\0\3", None, b"\0\4"])
    converter = "org.apache.kafka.connect.converters.ShortConverter"
    cast = {
        "transforms": "value,key",
        "transforms.value.type": f"{TRANSFORMS}Cast$Value",  # does not change the schema of a null
        "transforms.value.spec": "float64",
        "transforms.key.type": f"{TRANSFORMS}Cast$Key",
        "transforms.key.spec": "string",
    }
    props = {"key.converter": converter, "value.converter": converter, "lakehouse.key.columns": "key", **cast}
    load("nulls", **props).until_offsets(nulls=3)
    found = [(row["_kafka_key"], row["value"]) for row in rows_of(tmp_path / "nulls")]
    assert found == [("3", None), (None, 1.0), ("4", 2.0)]


def test_iceberg_table_is_loaded_exactly_once_across_restarts(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    fields = [
        field("n", "int32"),
        field("tiny", "int8"),
        field("at", "int64", name="org.apache.kafka.connect.data.Timestamp"),
    ]
    values = [envelope(fields, {"n": n, "tiny": n, "at": n * 86_400_000}) for n in range(4)]
    props = {"lakehouse.format": "iceberg", "lakehouse.partition.by": "day(at), bucket(2, n)"}
    produce(broker.address, "ice", values)
    first = load("ice", **props)
    first.until_offsets(ice=4)
    first.stop()
    produce(broker.address, "ice", values)
    load("ice", **props).until_offsets(ice=8)
    catalog = SqlCatalog("iceberg", uri=f"sqlite:///{tmp_path / 'catalog.db'}")
    rows = catalog.load_table("default.ice").scan().to_arrow().to_pylist()
    assert sorted((row["_kafka_offset"], row["n"], row["tiny"]) for row in rows) == [
        (n, n % 4, n % 4) for n in range(8)
    ]


def test_partitioned_and_sorted_delta_table_is_readable(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    fields = [field("n", "int32"), field("region", "string")]
    values = [envelope(fields, {"n": 9 - n, "region": "ab"[n % 2]}) for n in range(10)]
    produce(broker.address, "regions", values)
    load("regions", lakehouse__partition__by="region", lakehouse__sort__by="n").until_offsets(regions=10)
    table = DeltaTable(tmp_path / "regions")
    assert table.metadata().partition_columns == ["region"]
    files = [path.removeprefix("file://") for path in table.file_uris()]
    assert len(files) == 2
    for path in files:
        found = pq.ParquetFile(path).read(columns=["n"]).column("n").to_pylist()
        assert found == sorted(found)
    assert Counter(row["region"] for row in rows_of(tmp_path / "regions")) == {"a": 5, "b": 5}


def test_task_fails_if_the_group_has_offsets_but_the_table_is_missing(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "moved", numbers(0, 3))
    first = load("moved")
    first.until_offsets(moved=3)
    first.stop()
    shutil.rmtree(tmp_path / "moved")
    with pytest.raises(ConnectError, match=r"table .*/moved is missing, but group connect-sink has committed offset 3"):
        load("moved", committed={("moved", 0): 3}).until_offsets(moved=3)
    load("moved").until_offsets(moved=3)  # the offsets were reset
    assert [row["n"] for row in rows_of(tmp_path / "moved")] == [0, 1, 2]


def test_table_of_another_connector_is_refused_and_can_be_taken_over(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "owned", numbers(0, 3))
    first = load("owned", name="old")
    first.until_offsets(owned=3)
    produce(broker.address, "owned", numbers(3, 2))
    first.until_offsets(owned=5)
    first.stop()
    with pytest.raises(ConnectError, match=r"which connector old loaded; .* set lakehouse.take.over=old"):
        load("owned", name="new").until_offsets(owned=5)
    produce(broker.address, "owned", numbers(5, 2))
    load("owned", name="new", lakehouse__take__over="old").until_offsets(owned=7)
    assert [row["n"] for row in rows_of(tmp_path / "owned")] == list(range(7))


def test_tables_refuse_the_records_of_a_topic_that_was_created_again_if_transforms_change_the_topic(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    """The broker deletes the group's offsets with the topic, but the tables would skip offsets that they have."""
    produce(broker.address, "again", numbers(0, 4))
    first = load("again", **ROUTE_ODD)
    first.until_offsets(again=4)
    first.stop()
    recreate_topic(broker, "again")
    produce(broker.address, "again", numbers(100, 6))
    with pytest.raises(ConnectError, match="topic again was deleted and created again"):
        load("again", **ROUTE_ODD).until_offsets(again=6)
    assert [row["n"] for row in rows_of(tmp_path / "again")] == [0, 1, 2, 3]


def recreate_topic(broker: BrokerProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in admin.list_topics(timeout=30).topics, "the topic is deleted", 30)


def test_connector_that_starts_at_the_end_of_the_log_can_be_restarted_before_the_first_record(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "end", numbers(0, 5))
    first = load("end", **START_AT_LATEST)
    until_started(first)
    first.stop()
    second = load("end", committed=dict(first.context.offsets), **START_AT_LATEST)
    until_started(second)
    produce(broker.address, "end", numbers(5, 1))
    second.until_offsets(end=6)
    assert [row["n"] for row in rows_of(tmp_path / "end")] == [5]


@pytest.mark.parametrize("format_", ["delta", "iceberg", "parquet"])
def test_connector_that_starts_at_the_end_of_the_log_loads_the_records_that_were_written_during_a_restart(
    load: Callable[..., Load], broker: BrokerProcess, format_: str
) -> None:
    """Also those of partitions that had no records before the restart."""
    topic = f"ends-{format_}"
    produce(broker.address, topic, numbers(0, 4), partitions=2)
    first = load(topic, lakehouse__format=format_, **START_AT_LATEST)
    until_started(first)
    first.pause(lambda: produce(broker.address, topic, numbers(4, 1)))  # to partition 0
    first.until_offsets(**{topic: 3})
    first.stop()
    produce(broker.address, topic, numbers(5, 2), partitions=2)
    second = load(topic, committed=dict(first.context.offsets), lakehouse__format=format_, **START_AT_LATEST)
    second.until(lambda offsets: value_of(second, "rows-total") == 2)


def test_credentials_can_be_renewed_after_a_pause(load: Callable[..., Load], broker: BrokerProcess) -> None:
    """The committers of the run before the pause do not know the commits of the run after it."""
    produce(broker.address, "renewed", numbers(0, 3))
    loaded = load("renewed", lakehouse__format="iceberg")
    loaded.until_offsets(renewed=3)
    loaded.pause(lambda: produce(broker.address, "renewed", numbers(3, 2)))
    loaded.until_offsets(renewed=5)
    loaded.session._access._use(S3Access("key", "secret"))


def test_all_bad_records_are_sent_to_the_dead_letter_queue_if_they_exceed_the_limit_of_a_result(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    count = FAILED_RECORDS_MAX + 50
    produce(broker.address, "mostly-bad", [*numbers(0, 1), *[b"no json"] * count])
    props = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "mostly-bad.dlq",
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    running = load("mostly-bad", **props)
    running.until_offsets(**{"mostly-bad": count + 1})
    assert value_of(running, "bad-records-total") == count
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    assert consumer.get_watermark_offsets(TopicPartition("mostly-bad.dlq", 0), timeout=30) == (0, count)
    consumer.close()
    assert [row["n"] for row in rows_of(tmp_path / "mostly-bad")] == [0]


class OffsetsContext:
    """The context of `Connector.alter_offsets`."""

    connector_name = "sink"

    def __init__(self, load: Load, *, is_reset: bool = False, changes_topics: bool = False) -> None:
        self.props = {**load.context.props, "topics": ",".join(load.context.topics)}
        self.client_properties = dict(load.context.client_properties)
        self.is_reset = is_reset
        self.changes_topics = changes_topics
        self.record_reader = load.context.record_reader


@pytest.mark.parametrize("format_", ["delta", "iceberg", "parquet"])
def test_position_that_is_set_over_rest_is_written_into_the_table(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path, format_: str
) -> None:
    topic = f"position-{format_}"
    produce(broker.address, topic, numbers(0, 6))
    first = load(topic, lakehouse__format=format_)
    first.until_offsets(**{topic: 6})
    first.stop()
    config = LakehouseSinkConfig.parse(first.context.props)
    produce(broker.address, topic, numbers(6, 2))
    forward: Any = OffsetsContext(first)
    assert alter_table_offsets(config, forward, {(topic, 0): {"kafka_offset": 7}}) == ""
    second = load(topic, lakehouse__format=format_)
    second.until_offsets(**{topic: 8})
    second.stop()
    text = alter_table_offsets(config, OffsetsContext(first, is_reset=True), {})  # type: ignore[arg-type]
    assert f"loads records of {topic}-0 from offset 0 again" in text
    third = load(topic, lakehouse__format=format_)
    third.until(lambda offsets: value_of(third, "rows-total") == 8)


@pytest.mark.parametrize("format_", ["delta", "iceberg", "parquet"])
def test_position_that_goes_back_over_rest_is_written_into_all_tables_of_a_routed_topic(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path, format_: str
) -> None:
    topic, odd = f"back-{format_}", "folder/odd"
    props = {**ROUTE_ODD, "transforms.route.replacement": odd, "lakehouse.format": format_}
    produce_marked(broker, topic, 0, 6)
    first = load(topic, **props)
    first.until_offsets(**{topic: 6})
    first.stop()
    other = load(topic, name="other", **{**props, "lakehouse.table.name.format": "${topic}_other"})
    other.until_offsets(**{topic: 6})
    other.stop()
    write_deltalake(tmp_path / "foreign", pa.table({"a": [1]}))
    config = LakehouseSinkConfig.parse(first.context.props)
    context: Any = OffsetsContext(first, changes_topics=True)
    text = alter_table_offsets(config, context, {(topic, 0): {"kafka_offset": 3}})
    is_iceberg = format_ == "iceberg"
    names = f"default.{topic}, folder.odd" if is_iceberg else f"{tmp_path / topic}, {tmp_path / odd}"
    assert f"loads records of {topic}-0 from offset 3 again, and the tables {names} then contain" in text
    assert alter_table_offsets(config, context, {(topic, 0): {"kafka_offset": 3}}) == ""
    again = load(topic, committed={(topic, 0): 3}, **props)
    again.until_offsets(**{topic: 6})
    assert value_of(again, "rows-total") == 3
    again.stop()
    reset: Any = OffsetsContext(first, is_reset=True, changes_topics=True)
    assert f"loads records of {topic}-0 from offset 0 again" in alter_table_offsets(config, reset, {})
    last = load(topic, **props)
    last.until_offsets(**{topic: 6})
    assert value_of(last, "rows-total") == 6
    empty = LakehouseSinkConfig.parse({**first.context.props, "lakehouse.path": str(tmp_path / "empty")})
    assert "No table that this worker finds" in alter_table_offsets(empty, context, {(topic, 0): {"kafka_offset": 3}})


def test_reset_moves_the_position_to_the_end_if_the_workers_consumers_start_there(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "at-end", numbers(0, 3))
    first = load("at-end")
    first.until_offsets(**{"at-end": 3})
    first.stop()
    produce(broker.address, "at-end", numbers(3, 2))
    context: Any = OffsetsContext(first, is_reset=True)
    context.client_properties["auto.offset.reset"] = "latest"  # as consumer.auto.offset.reset of the worker sets it
    assert alter_table_offsets(LakehouseSinkConfig.parse(first.context.props), context, {}) == ""
    load("at-end").until_offsets(**{"at-end": 5})
    assert [row["n"] for row in rows_of(tmp_path / "at-end")] == [0, 1, 2]


def test_offset_of_a_missing_partition_is_rejected_and_no_table_changes(
    load: Callable[..., Load], broker: BrokerProcess, tmp_path: Path
) -> None:
    produce(broker.address, "missing", numbers(0, 3))
    first = load("missing")
    first.until_offsets(missing=3)
    first.stop()
    version = DeltaTable(tmp_path / "missing").version()
    context: Any = OffsetsContext(first)
    with pytest.raises(ConnectError, match="no offset was changed, because these partitions do not exist: missing-7"):
        alter_table_offsets(
            LakehouseSinkConfig.parse(first.context.props),
            context,
            {("missing", 0): {"kafka_offset": 1}, ("missing", 7): {"kafka_offset": 1}},
        )
    assert DeltaTable(tmp_path / "missing").version() == version


class BlockedJobs(InProcessJobs):
    """Starts no job before `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def run(self, work: Any, tasks: int, description: str) -> list[bytes]:
        """Wait until jobs may start, and run the job."""
        assert self.released.wait(TIMEOUT_S)
        return super().run(work, tasks, description)


def test_lag_is_reported_while_spark_is_starting_and_no_table_exists(broker: BrokerProcess, tmp_path: Path) -> None:
    produce(broker.address, "lagging", numbers(0, 3))
    jobs = BlockedJobs()
    load = Load(broker.address, tmp_path, ["lagging"], {}, jobs=jobs)
    try:
        load.until(lambda _: value_of(load, "records-lag") == 3)
        jobs.released.set()
        load.until(lambda _: value_of(load, "records-lag") == 0)
    finally:
        jobs.released.set()
        load.stop()


def test_position_beyond_the_end_of_the_log_is_refused(load: Callable[..., Load], broker: BrokerProcess) -> None:
    produce(broker.address, "beyond", numbers(0, 6))
    loaded = load("beyond")
    loaded.until_offsets(beyond=6)
    loaded.stop()
    context: Any = OffsetsContext(loaded)
    config = LakehouseSinkConfig.parse(loaded.context.props)
    with pytest.raises(ConnectError, match="offset 7 of topic beyond, partition 0 is beyond the end of the log"):
        alter_table_offsets(config, context, {("beyond", 0): {"kafka_offset": 7}})
    with pytest.raises(ConnectError, match="is beyond the end of the log, which is 6"):
        alter_table_offsets(config, context, {("beyond", 0): {"kafka_offset": 2**63 - 1}})
    load("beyond").until_offsets(beyond=6)
    assert len(rows_of(Path(loaded.context.props["lakehouse.path"]) / "beyond")) == 6


def until_started(load: Load) -> None:
    """Wait until a run that starts at the end of the log knows its position."""
    load.until(lambda offsets: bool(load.session._starts))


def value_of(load: Load, metric: str) -> float:
    """Return the value of a metric of the task."""
    return next(each.value for each in load.context.metrics.current() if each.name == metric)
