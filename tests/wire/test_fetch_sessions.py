"""Tests of incremental fetch sessions over TCP (KIP-227)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, batch, create_topic, fetch_request, produce_request

pytestmark = pytest.mark.wire

PARTITIONS = 4
VERSION = 13


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("sessions")) as process:
        yield process


def topic_id(client: RawClient, name: str) -> bytes:
    found: bytes = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12).topics[0].topic_id
    return found


def fetch(
    client: RawClient,
    topic: bytes,
    offsets: dict[int, int],
    session: tuple[int, int],
    *,
    max_bytes: int = 150_000,
    min_bytes: int = 1,
    max_wait_ms: int = 300,
) -> FetchResponse:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1_000_000)
        for index, offset in offsets.items()
    ]
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic_id=topic, partitions=partitions)] if partitions else [],
    )
    response: FetchResponse = client.call(request, VERSION)
    return response


def test_incremental_fetches_return_all_records_in_several_small_responses(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "many", partitions=PARTITIONS)
        wanted = topic_id(client, "many")
        for index in range(PARTITIONS):
            for _ in range(3):
                client.call(produce_request("many", batch(bytes(100_000)), partition=index), 9)
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        response = fetch(client, wanted, offsets, (0, 0))
        assert response.session_id > 0
        assert len(response.responses[0].partitions) == PARTITIONS  # the response to a full fetch has all partitions
        changed: dict[int, int] = {}
        for epoch in range(1, 40):
            for topic in response.responses:
                for item in topic.partitions:
                    assert item.error_code == ErrorCode.NONE
                    if item.records:
                        offsets[item.partition_index] += 1  # each response has room for one batch of one record
                        changed[item.partition_index] = offsets[item.partition_index]
            if all(offset >= 3 for offset in offsets.values()):
                break
            response = fetch(client, wanted, changed, (response.session_id, epoch))
            assert response.error_code == ErrorCode.NONE
            assert response.responses, f"the response is empty, although only {offsets} was read"
            changed = {}
        assert all(offset >= 3 for offset in offsets.values()), offsets


def read_order(
    client: RawClient, topic: bytes, partitions: int, fetches: int, *, min_bytes: int = 1, max_wait_ms: int = 20
) -> list[list[int]]:
    """Fetch `fetches` times in one session. Return the partitions of which each response has records.

    A response has room for one batch of 10 KB. Each batch contains one record.
    """
    offsets = changed = dict.fromkeys(range(partitions), 0)
    session, order = (0, 0), []
    for epoch in range(1, fetches + 1):
        response = fetch(
            client, topic, changed, session, max_bytes=15_000, min_bytes=min_bytes, max_wait_ms=max_wait_ms
        )
        assert response.error_code == ErrorCode.NONE
        received = [item.partition_index for found in response.responses for item in found.partitions if item.records]
        changed = {index: offsets[index] + 1 for index in received}
        offsets = offsets | changed
        session = (response.session_id, epoch)
        order.append(received)
    return order


def test_partition_whose_next_batch_did_not_fit_into_a_response_is_first_in_the_next_response(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address) as client:
        wanted = create_topic(client, "one-large", partitions=3)
        for index in [0] * 10 + [1, 2]:
            client.call(produce_request("one-large", batch(bytes(10_000)), partition=index), 9)
        assert read_order(client, wanted, 3, fetches=12) == [[0], [1], [2], *[[0]] * 9]


def test_partitions_with_many_large_batches_are_served_in_turn(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        wanted = create_topic(client, "all-large", partitions=3)
        for index in [0, 1, 2] * 4:
            client.call(produce_request("all-large", batch(bytes(10_000)), partition=index), 9)
        assert read_order(client, wanted, 3, fetches=12) == [[0], [1], [2]] * 4


def test_fetch_does_not_wait_for_min_bytes_if_the_next_batch_does_not_fit_into_the_response(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address, timeout_s=20) as client:
        wanted = create_topic(client, "waits", partitions=2)
        for index in [0, 1] * 3:
            client.call(produce_request("waits", batch(bytes(10_000)), partition=index), 9)
        order = read_order(client, wanted, 2, fetches=5, min_bytes=15_000, max_wait_ms=60_000)
        assert order == [[0], [1], [0], [1], [0]]


def test_fetch_does_not_wait_for_more_bytes_than_the_response_may_contain(broker: BrokerProcess) -> None:
    with RawClient(broker.address, timeout_s=20) as client:
        create_topic(client, "small-limit")
        client.call(produce_request("small-limit", batch(bytes(3000))), 9)
        request = fetch_request("small-limit", max_wait_ms=60_000, min_bytes=100_000, max_bytes=2000)
        assert client.call(request, 12).responses[0].partitions[0].records


def test_incremental_fetch_response_contains_only_changed_partitions(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client, RawClient(broker.address) as producer:
        create_topic(client, "quiet", partitions=PARTITIONS)
        wanted = topic_id(client, "quiet")
        response = fetch(client, wanted, dict.fromkeys(range(PARTITIONS), 0), (0, 0))
        session_id = response.session_id
        assert fetch(client, wanted, {}, (session_id, 1)).responses == []
        producer.call(produce_request("quiet", batch(b"news"), partition=2), 9)
        changed = fetch(client, wanted, {}, (session_id, 2)).responses
        assert [item.partition_index for topic in changed for item in topic.partitions] == [2]


def test_first_fetch_of_a_session_waits_for_records(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client, RawClient(broker.address) as producer:
        wanted = create_topic(client, "first", partitions=2)
        request = session_request(0, 0, max_wait_ms=60_000)
        request.topics = [
            FetchTopic(topic_id=wanted, partitions=[FetchPartition(partition=0), FetchPartition(partition=1)])
        ]
        client.send(request, VERSION)
        producer.call(produce_request("first", batch(b"v"), partition=1), 9)
        _, response = client.receive(FetchRequest, VERSION, FetchResponse)
        assert response.session_id > 0
        assert [bool(item.records) for item in response.responses[0].partitions] == [False, True]


def test_fetch_with_an_unknown_session_id_or_a_wrong_session_epoch_is_rejected(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "turn")
        wanted = topic_id(client, "turn")
        assert fetch(client, wanted, {}, (12345, 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        session_id = fetch(client, wanted, {0: 0}, (0, 0)).session_id
        assert fetch(client, wanted, {}, (session_id, 5)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_fetch_that_adds_too_many_partitions_to_its_session_is_rejected(broker: BrokerProcess) -> None:
    """For each fetch, the broker checks all partitions of the session. Other requests wait during this check."""
    with RawClient(broker.address) as client:
        session_id = fetch(client, bytes(16), {}, (0, 0)).session_id
        codes = [
            fetch(client, bytes([epoch] * 16), dict.fromkeys(range(900), 0), (session_id, epoch)).error_code
            for epoch in (1, 2, 3)
        ]
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST]


MAX_WAIT_MS = 300


def fetch_all(client: RawClient, topics: Sequence[bytes], session: tuple[int, int] = (0, -1)) -> tuple[Any, float]:
    """Fetch partition 0 of each topic. Return (response, duration in ms)."""
    request = FetchRequest(
        max_wait_ms=MAX_WAIT_MS,
        min_bytes=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic_id=topic, partitions=[FetchPartition(partition=0)]) for topic in topics],
    )
    started_s = time.monotonic()
    response = client.call(request, VERSION)
    return response, (time.monotonic() - started_s) * 1000


def error_codes(response: FetchResponse) -> dict[bytes, int]:
    return {topic.topic_id: item.error_code for topic in response.responses for item in topic.partitions}


def delete_topic(client: RawClient, name: str) -> None:
    response = client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000), 6)
    assert response.responses[0].error_code == ErrorCode.NONE


def test_session_fetch_waits_for_the_other_topics_if_one_topic_was_deleted(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        kept, deleted = create_topic(client, "kept"), create_topic(client, "deleted")
        session_id = fetch_all(client, [kept, deleted], (0, 0))[0].session_id
        delete_topic(client, "deleted")
        for epoch in (1, 2):
            response, duration_ms = fetch_all(client, [], (session_id, epoch))
            assert error_codes(response) == {deleted: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert duration_ms >= MAX_WAIT_MS - 10
        with RawClient(broker.address) as producer:
            client.send(session_request(session_id, 3, max_wait_ms=20_000), VERSION)
            producer.call(produce_request("kept", batch(b"v")), 9)
            _, response = client.receive(FetchRequest, VERSION, FetchResponse)
        assert error_codes(response) == {kept: ErrorCode.NONE, deleted: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def session_request(session_id: int, epoch: int, max_wait_ms: int) -> FetchRequest:
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, session_id=session_id, session_epoch=epoch)


def test_session_fetch_returns_inconsistent_topic_id_immediately_if_a_topic_was_recreated(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address) as client:
        kept, recreated = create_topic(client, "kept-too"), create_topic(client, "recreated")
        session_id = fetch_all(client, [kept, recreated], (0, 0))[0].session_id
        delete_topic(client, "recreated")
        create_topic(client, "recreated")
        client.send(session_request(session_id, 1, max_wait_ms=60_000), VERSION)
        _, response = client.receive(FetchRequest, VERSION, FetchResponse)
        assert error_codes(response) == {recreated: ErrorCode.INCONSISTENT_TOPIC_ID}


def test_session_fetch_responds_immediately_if_all_its_topics_were_deleted(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        only = create_topic(client, "only")
        session_id = fetch_all(client, [only], (0, 0))[0].session_id
        delete_topic(client, "only")
        client.send(session_request(session_id, 1, max_wait_ms=60_000), VERSION)
        _, response = client.receive(FetchRequest, VERSION, FetchResponse)
        assert error_codes(response) == {only: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_partition_of_a_session_whose_topic_id_was_never_known_does_not_end_the_wait(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        kept, unknown = create_topic(client, "kept-three"), bytes(15) + b"u"
        session_id = fetch_all(client, [kept, unknown], (0, 0))[0].session_id
        response, duration_ms = fetch_all(client, [], (session_id, 1))
        assert error_codes(response) == {unknown: ErrorCode.UNKNOWN_TOPIC_ID}
        assert duration_ms >= MAX_WAIT_MS - 10


def test_fetch_without_a_session_waits_unless_all_its_topics_are_unknown(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        kept, unknown = create_topic(client, "kept-four"), bytes(15) + b"v"
        response, duration_ms = fetch_all(client, [kept, unknown])
        assert error_codes(response) == {kept: ErrorCode.NONE, unknown: ErrorCode.UNKNOWN_TOPIC_ID}
        assert duration_ms >= MAX_WAIT_MS - 10
        client.send(fetch_request("no-such-topic", max_wait_ms=60_000), 12)
        _, response = client.receive(FetchRequest, 12, FetchResponse)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_delayed_fetch_without_a_session_returns_unknown_topic_or_partition_if_a_topic_is_deleted(
    broker: BrokerProcess,
) -> None:
    """The topic id was known when the fetch arrived, so the error is the same as for a fetch by name."""
    with RawClient(broker.address) as client, RawClient(broker.address) as admin:
        kept, deleted = create_topic(client, "kept-five"), create_topic(client, "deleted-five")
        topics = [FetchTopic(topic_id=topic, partitions=[FetchPartition(partition=0)]) for topic in (kept, deleted)]
        request = FetchRequest(max_wait_ms=60_000, min_bytes=1, topics=topics, session_epoch=-1)
        client.send(request, VERSION)
        delete_topic(admin, "deleted-five")
        _, response = client.receive(FetchRequest, VERSION, FetchResponse)
        assert error_codes(response)[deleted] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
