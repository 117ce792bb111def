"""Tests of the records of the status topic: exact bytes of keys and values, and rejected records."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stores.status_records import (
    Key,
    StatusKey,
    TopicKey,
    decode_key,
    decode_status,
    encode_key,
    encode_status,
    encode_topic,
)
from headrace.stores.status_store import State, Status

KEYS: list[tuple[Key, bytes]] = [
    (StatusKey("c", None), b"status-connector-c"),
    (StatusKey("c", 0), b"status-task-c-0"),
    (StatusKey("a-b-1", 12), b"status-task-a-b-1-12"),
    (StatusKey("a-1", None), b"status-connector-a-1"),
    (StatusKey("größe", 3), "status-task-größe-3".encode()),
    (TopicKey("t", "c"), b"status-topic-t:connector-c"),
    (TopicKey("my-topic.1", "a:b-c"), b"status-topic-my-topic.1:connector-a:b-c"),
]


@pytest.mark.parametrize(("key", "data"), KEYS)
def test_encoded_status_topic_key_equals_the_bytes_of_kafka_connect(key: Key, data: bytes) -> None:
    assert encode_key(key) == data
    assert decode_key(data) == key


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"status-",
        b"other-connector-c",
        b"status-connector-",
        b"status-task-",
        b"status-task-c",
        b"status-task-c-",
        b"status-task-c-x",
        b"status-task-0",
        b"status-task--0",
        b"status-topic-t",
        b"status-topic-:connector-c",
        b"status-topic-t:connector-",
        b"t:connector-c",
        b"status-connector-\xff",
    ],
)
def test_invalid_status_topic_key_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"is not a key of the status topic|invalid literal|can't decode"):
        decode_key(data)


STATUSES: list[tuple[Status, str]] = [
    (
        Status(State.RUNNING, "10.0.0.1:8083", 7),
        '{"state":"RUNNING","trace":null,"worker_id":"10.0.0.1:8083","generation":7,"version":null}',
    ),
    (
        Status(State.FAILED, "h:1", 0, 'Traceback:\n  "größe"', "4.1.0"),
        '{"state":"FAILED","trace":"Traceback:\\n  \\"größe\\"","worker_id":"h:1","generation":0,"version":"4.1.0"}',
    ),
    (
        Status(State.UNASSIGNED, "h:1", -1),
        '{"state":"UNASSIGNED","trace":null,"worker_id":"h:1","generation":-1,"version":null}',
    ),
]


@pytest.mark.parametrize(("status", "text"), STATUSES, ids=["RUNNING", "FAILED", "UNASSIGNED"])
def test_encoded_status_equals_the_bytes_of_kafka_connect(status: Status, text: str) -> None:
    assert encode_status(status) == text.encode()
    assert decode_status(text.encode()) == status


@pytest.mark.parametrize("state", State)
def test_state_of_a_status_is_encoded_as_the_name_of_its_enum_member(state: State) -> None:
    assert json.loads(encode_status(Status(state, "h:1")))["state"] == state.name


def test_status_record_of_an_older_worker_without_version_and_trace_is_decoded() -> None:
    value = b'{"state":"PAUSED","worker_id":"h:1","generation":3}'
    assert decode_status(value) == Status(State.PAUSED, "h:1", 3)


def test_unpaired_surrogate_in_a_status_trace_is_written_as_a_json_escape() -> None:
    """Python represents undecodable bytes of a file name as unpaired surrogates."""
    status = Status(State.FAILED, "h:1", 0, "No such file: 'a\udcff'")
    data = encode_status(status)
    assert rb'"No such file: ' in data
    assert rb"\uDCFF" in data
    assert decode_status(data) == status


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"null",
        b'"RUNNING"',
        b"{}",
        b'{"state":"SLEEPING","worker_id":"h:1","generation":3}',
        b'{"state":null,"worker_id":"h:1","generation":3}',
        b'{"state":"RUNNING","generation":3}',
        b'{"state":"RUNNING","worker_id":"h:1"}',
        b'{"state":"RUNNING","worker_id":"h:1","generation":null}',
        b'{"state":"RUNNING","worker_id":"h:1","generation":"many"}',
    ],
)
def test_invalid_status_record_value_is_rejected(value: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_status(value)


def test_encoded_active_topic_record_equals_the_bytes_of_kafka_connect() -> None:
    assert encode_topic(TopicKey("t", "c"), 2, 1_700_000_000_000) == (
        b'{"topic":{"name":"t","connector":"c","task":2,"discoverTimestamp":1700000000000}}'
    )


CONNECTORS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
TOPICS = st.text("abz019._-", min_size=1, max_size=8)


@given(
    key=st.builds(StatusKey, CONNECTORS, st.none() | st.integers(0, 10_000)) | st.builds(TopicKey, TOPICS, CONNECTORS)
)
def test_status_topic_key_round_trips(key: Key) -> None:
    assert decode_key(encode_key(key)) == key


@given(
    status=st.builds(
        Status,
        st.sampled_from(State),
        st.text(max_size=8),
        st.integers(-1, 2**31 - 1),
        st.none() | st.text(max_size=8),
        st.none() | st.text(max_size=4),
    )
)
def test_status_value_round_trips(status: Status) -> None:
    assert decode_status(encode_status(status)) == status
