"""Tests that `/metrics` of a real cluster has every metric name that Kafka dashboards and alerts use.

The names are those of jmx_exporter's rules for Kafka. If Confluent uses another name for a metric, the page has both
names. The page has no metrics of a transaction coordinator, because transactions are not supported yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import leader_of
from support.metrics import Samples, scrape, value
from support.raw_client import RawClient, fetch_request

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NODES = (1, 2, 3)


def named(prefix: str, *names: str) -> set[str]:
    return {prefix + name for name in names}


def meters(prefix: str, *names: str) -> set[str]:
    """Return two names for each meter: jmx_exporter's and Confluent's. Each name begins with `prefix`."""
    return {f"{prefix}{name}{ending}" for name in names for ending in ("_total", "persec")}


NAMES = {
    *meters(
        "kafka_server_brokertopicmetrics_",
        *("messagesin", "bytesin", "bytesout", "bytesrejected", "totalproducerequests", "totalfetchrequests"),
        *("failedproducerequests", "failedfetchrequests", "producemessageconversions", "fetchmessageconversions"),
    ),
    *named(
        "kafka_server_replicamanager_",
        *("leadercount", "partitioncount", "underreplicatedpartitions", "underminisrpartitioncount"),
        *("atminisrpartitioncount", "offlinereplicacount"),
    ),
    *meters("kafka_server_replicamanager_", "isrshrinks", "isrexpands"),
    *named("kafka_cluster_partition_", "underminisr", "atminisr", "replicascount", "underreplicated"),
    *named("kafka_server_replicafetchermanager_", "maxlag", "minfetchrate"),
    *named(
        "kafka_controller_kafkacontroller_",
        *("activecontrollercount", "offlinepartitionscount", "preferredreplicaimbalancecount", "globaltopiccount"),
        *("globalpartitioncount", "activebrokercount", "fencedbrokercount", "metadataerrorcount"),
    ),
    *meters("kafka_controller_controllerstats_", "uncleanleaderelections"),
    *meters("kafka_network_requestmetrics_", "requests", "errors"),
    *(
        f"kafka_network_requestmetrics_{name}{ending}"
        for name in (
            *("totaltimems", "localtimems", "remotetimems"),
            *("requestqueuetimems", "responsequeuetimems", "responsesendtimems"),
        )
        for ending in ("", "_count")
    ),
    *named("kafka_network_requestchannel_", "requestqueuesize", "responsequeuesize"),
    *named("kafka_network_socketserver_", "networkprocessoravgidle_percent", "networkprocessoravgidlepercent"),
    *named(
        "kafka_server_kafkarequesthandlerpool_",
        *("requesthandleravgidle_percent", "requesthandleravgidlepercent_oneminuterate"),
    ),
    *(
        f"kafka_server_{group}_{name}"
        for group in ("socket_server_metrics", "socketservermetrics")
        for name in ("connection_count", "connection_creation_rate", "connection_close_rate")
    ),
    *named("kafka_log_log_", "size", "logendoffset", "logstartoffset", "numlogsegments"),
    "kafka_log_logmanager_offlinelogdirectorycount",
    *named("kafka_log_logflushstats_logflushrateandtimems", "", "_count"),
    *named(
        "kafka_coordinator_group_groupmetadatamanager_numgroups",
        *("", "stable", "empty", "dead", "preparingrebalance", "completingrebalance"),
    ),
    "kafka_server_BrokerTopicMetrics_FifteenMinuteRate",
    "kafka_server_fetchsessioncache_numincrementalfetchsessions",
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    *(
        f"kafka_server_{group}_{name}"
        for group in ("raft_metrics", "raftmetrics")
        for name in (
            *("current_leader", "current_epoch", "current_vote", "high_watermark", "log_end_offset"),
            *("commit_latency_avg", "append_records_rate", "fetch_records_rate"),
        )
    ),
    "kafka_server_raft_metrics_current_state_info",
    "kafka_server_raftmetrics_current_state",
    *(
        f"kafka_server_{group}_{name}"
        for group in ("raft_channel_metrics", "raftchannelmetrics")
        for name in ("connection_count", "request_total", "request_rate", "response_total", "response_rate")
    ),
    *named("kafka_server_kafkaserver_", "brokerstate", "linux_disk_read_bytes", "linux_disk_write_bytes"),
    *named("kafka_server_app_info", "", "_starttimems"),
    *named("process_", "cpu_seconds_total", "open_fds", "resident_memory_bytes"),
    *named("jvm_", "memory_bytes_used", "memory_bytes_max", "memory_used_bytes", "memory_max_bytes", "threads_current"),
    *named("jvm_gc_collection_seconds_", "sum", "count"),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    directory = tmp_path_factory.mktemp("metrics-names") / "c"
    with running_cluster(directory, headrace_metrics_listeners="http://127.0.0.1:0") as cluster:
        yield cluster


def pages(cluster: ClusterProcess) -> dict[int, Samples]:
    return {node: scrape(cluster.log(node)) for node in NODES}


def total(cluster: ClusterProcess, name: str, **labels: str) -> float:
    key = (name, tuple(sorted(labels.items())))
    return sum(page.get(key, 0.0) for page in pages(cluster).values())


def await_that(holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def admin_of(cluster: ClusterProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def create(cluster: ClusterProcess, topic: str, replicas: list[list[int]], **config: str) -> None:
    wanted = NewTopic(topic, len(replicas), replica_assignment=replicas, config=config)
    admin = admin_of(cluster)
    admin.create_topics([wanted])[topic].result(30)


def produce(cluster: ClusterProcess, topic: str, count: int) -> list[str]:
    """Produce records. Return the names of the errors that occurred."""
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "message.timeout.ms": 5000, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"x" * 100, on_delivery=lambda error, _: error and errors.append(error.name()))
        if number % 100 == 0:
            producer.poll(0)
    producer.flush(30)
    return errors


def test_every_node_exports_all_metric_names_of_kafka_dashboards(cluster: ClusterProcess) -> None:
    create(cluster, "names", [[1, 2, 3], [2, 3, 1], [3, 1, 2]], **{"flush.messages": "1"})
    produce(cluster, "names", 300)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "names", "log_level": 0})
    consumer.assign([TopicPartition("names", index, 0) for index in range(3)])
    read = 0
    while read < 300:
        read += len(consumer.consume(300, 10))
    consumer.close()
    for node in NODES:  # cause one error on each node
        with RawClient(cluster.address(node)) as client:
            assert client.call(fetch_request("no-such-topic"), 12).responses[0].partitions[0].error_code
    for node, page in pages(cluster).items():
        missing = NAMES - {name for name, _ in page}
        assert not missing, f"node {node} has no {sorted(missing)}"
        labels = {key for name, pairs in page for key, _ in pairs}
        assert labels <= {
            *("topic", "partition", "request", "version", "error", "quantile", "listener", "networkProcessor"),
            *("clientId", "delayedOperation", "state", "current_state", "area", "gc", "name", "consumergroup"),
        }
    assert total(cluster, "kafka_server_brokertopicmetrics_messagesin_total", topic="names") == 300
    sent = total(cluster, "kafka_server_brokertopicmetrics_bytesout_total", topic="names")
    got = total(cluster, "kafka_server_brokertopicmetrics_bytesin_total", topic="names")
    assert got <= sent < 1.5 * got  # `sent` does not include the bytes that followers fetch


def test_quorum_metrics_agree_with_the_state_of_the_quorum(cluster: ClusterProcess) -> None:
    create(cluster, "quorum", [[1, 2, 3]])
    raft = "kafka_server_raft_metrics"
    found = pages(cluster)
    leaders = {value(page, f"{raft}_current_leader") for page in found.values()}
    assert len(leaders) == 1
    leader = int(leaders.pop())
    assert value(found[leader], f"{raft}_current_state_info", state="leader") == 1
    assert value(found[leader], f"{raft}_commit_latency_avg") > 0
    assert value(found[leader], f"{raft}_append_records_rate") > 0
    for node, page in found.items():
        if node != leader:
            assert value(page, f"{raft}_fetch_records_rate") > 0
            assert value(page, "kafka_server_raft_channel_metrics_connection_count") >= 1
        assert value(page, "kafka_log_logflushstats_logflushrateandtimems_count") > 0
        assert 0 <= value(page, "kafka_network_socketserver_networkprocessoravgidle_percent") <= 1
        assert value(page, "kafka_server_raft_channel_metrics_request_total") > 0
        assert value(page, "kafka_controller_kafkacontroller_metadataerrorcount") == 0


def test_request_errors_are_counted_by_error_name(cluster: ClusterProcess) -> None:
    create(cluster, "strict", [[1, 2]], **{"min.insync.replicas": "2", "max.message.bytes": "50"})
    assert set(produce(cluster, "strict", 1)) == {"MSG_SIZE_TOO_LARGE"}
    errors = "kafka_network_requestmetrics_errors_total"
    assert total(cluster, errors, request="Produce", error="MESSAGE_TOO_LARGE") == 1
    assert total(cluster, "kafka_server_brokertopicmetrics_bytesrejected_total", topic="strict") > 100
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "none",
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("strict", 0, 1000)])
    message = consumer.poll(10)
    assert message is not None
    assert message.error() is not None
    consumer.close()
    assert total(cluster, errors, request="Fetch", error="OFFSET_OUT_OF_RANGE") >= 1
    assert total(cluster, "kafka_server_brokertopicmetrics_failedfetchrequests_total", topic="strict") >= 1
    with pytest.raises(KafkaException):
        create(cluster, "strict", [[1]])
    assert total(cluster, errors, request="CreateTopics", error="TOPIC_ALREADY_EXISTS") >= 1


def test_unclean_leader_election_increments_its_metric(cluster: ClusterProcess) -> None:
    """An out-of-sync replica becomes the leader after the last in-sync replica was killed."""
    unclean = "kafka_controller_controllerstats_uncleanleaderelections_total"
    create(cluster, "unclean", [[1, 2]], **{"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
    assert produce(cluster, "unclean", 10) == []
    assert total(cluster, unclean) == 0
    cluster.kill(2)
    await_that(lambda: in_sync(cluster) == [1], "node 2 is still in the ISR")
    assert produce(cluster, "unclean", 10) == []
    cluster.kill(1)
    cluster.start_node(2)
    await_that(lambda: leader_of(cluster.bootstrap_servers, "unclean") == 2, "node 2 is not the leader")
    watched = scrape(cluster.log(3))
    assert value(watched, unclean) == 1
    assert value(watched, unclean.replace("_total", "persec")) == 1
    assert value(watched, "kafka_controller_kafkacontroller_fencedbrokercount") == 1
    cluster.start_node(1)


def in_sync(cluster: ClusterProcess) -> list[int]:
    found: list[int] = admin_of(cluster).list_topics("unclean", 10).topics["unclean"].partitions[0].isrs
    return found


def commit(cluster: ClusterProcess, group: str, *offsets: TopicPartition) -> int:
    """Commit offsets of a group. Return the node that coordinates the group."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0})
    consumer.commit(offsets=list(offsets), asynchronous=False)
    consumer.close()
    current_offset = "kafka_consumergroup_current_offset"
    (coordinator,) = (
        node
        for node, page in pages(cluster).items()
        if any(name == current_offset and ("consumergroup", group) in labels for name, labels in page)
    )
    return coordinator


def test_coordinator_exports_the_lag_of_a_group_for_partitions_on_any_broker(cluster: ClusterProcess) -> None:
    """Each partition has one replica, so two of the leaders are not the coordinator."""
    create(cluster, "lagging", [[1], [2], [3]])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for number in range(300):
        producer.produce("lagging", b"x", partition=number % 3)
    producer.flush(30)
    coordinator = commit(cluster, "lagging", *(TopicPartition("lagging", index, 10 * index) for index in range(3)))
    for node, page in pages(cluster).items():
        for index in range(3):
            labels = {"consumergroup": "lagging", "topic": "lagging", "partition": str(index)}
            key = tuple(sorted(labels.items()))
            expected = (10 * index, 100 - 10 * index) if node == coordinator else (None, None)
            found = page.get(("kafka_consumergroup_current_offset", key)), page.get(("kafka_consumergroup_lag", key))
            assert found == expected


def test_page_lacks_only_the_lag_of_partitions_whose_leader_does_not_respond(cluster: ClusterProcess) -> None:
    create(cluster, "paused", [[1], [2], [3]])
    coordinator = commit(cluster, "paused", *(TopicPartition("paused", index, 0) for index in range(3)))
    paused = next(node for node in NODES if node != coordinator)
    cluster.pause(paused)
    try:
        page = scrape(cluster.log(coordinator))
    finally:
        cluster.resume(paused)
    with_lag = {
        int(dict(labels)["partition"]) + 1
        for name, labels in page
        if name == "kafka_consumergroup_lag" and ("consumergroup", "paused") in labels
    }
    assert with_lag == set(NODES) - {paused}
