from __future__ import annotations

import pytest

from headrace_broker.client.assignors import (
    ASSIGNORS,
    SubscribedMember,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
)
from headrace_broker.client.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_user_data,
    encode_subscription,
)
from headrace_broker.client.errors import ProtocolViolationError


def member(
    name: str, *topics: str, owned: list[tuple[str, int]] | None = None, generation: int = 1
) -> SubscribedMember:
    return SubscribedMember(name, None, Subscription(list(topics), owned=owned or [], generation_id=generation))


def test_consumer_subscription_is_encoded_in_kafkas_format() -> None:
    subscription = Subscription(["b", "a"], b"\1\2", [("a", 1), ("a", 0)], 7, "rack")
    data = encode_subscription(subscription)
    assert data.hex() == (
        "000300000002000161000162000000020102000000010001610000000200000000000000010000000700047261636b"
    )
    decoded = decode_subscription(data)
    assert (decoded.topics, decoded.user_data, decoded.owned, decoded.generation_id, decoded.rack_id) == (
        ["a", "b"],
        b"\1\2",
        [("a", 0), ("a", 1)],
        7,
        "rack",
    )


def test_consumer_subscriptions_of_older_and_newer_versions_are_decoded() -> None:
    version_0 = bytes.fromhex("000000000001000161ffffffff")
    assert decode_subscription(version_0).topics == ["a"]
    newer = b"\0\x09" + encode_subscription(Subscription(["a"]))[2:] + b"more"
    assert decode_subscription(newer).topics == ["a"]


@pytest.mark.parametrize("data", [b"\0", b"\0\1\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\5ab"])
def test_corrupt_consumer_subscriptions_are_rejected(data: bytes) -> None:
    with pytest.raises(ProtocolViolationError):
        decode_subscription(data)


def test_consumer_assignment_is_encoded_in_kafkas_format() -> None:
    data = encode_assignment([("t", 2), ("t", 0)])
    assert data.hex() == "000000000001000174000000020000000000000002ffffffff"
    assert decode_assignment(data) == [("t", 0), ("t", 2)]
    assert decode_assignment(b"") == []


def test_sticky_assignor_user_data_with_and_without_a_generation_is_decoded() -> None:
    data = encode_sticky_user_data([("t", 1)], 3)
    assert decode_sticky_user_data(data) == ([("t", 1)], 3)
    assert decode_sticky_user_data(data[:-4]) == ([("t", 1)], -1)


def test_range_assignor_assigns_consecutive_partitions_and_one_extra_partition_to_each_of_the_first_members() -> None:
    members = [member("b", "t", "u"), member("a", "t"), member("c", "t")]
    assert assign_range(members, {"t": 7, "u": 2}) == {
        "a": [("t", 0), ("t", 1), ("t", 2)],
        "b": [("t", 3), ("t", 4), ("u", 0), ("u", 1)],
        "c": [("t", 5), ("t", 6)],
    }


def test_assignors_sort_static_members_by_instance_id() -> None:
    one = SubscribedMember("z", "instance-1", Subscription(["t"]))
    two = SubscribedMember("a", "instance-2", Subscription(["t"]))
    dynamic = member("b", "t")
    assert assign_range([dynamic, two, one], {"t": 3}) == {"z": [("t", 0)], "a": [("t", 1)], "b": [("t", 2)]}


def test_round_robin_assignor_assigns_only_subscribed_topics() -> None:
    members = [member("a", "t"), member("b", "t", "u"), member("c", "u")]
    assert assign_round_robin(members, {"t": 3, "u": 2}) == {
        "a": [("t", 0), ("t", 2)],
        "b": [("t", 1), ("u", 0)],
        "c": [("u", 1)],
    }


def test_sticky_assignor_keeps_owned_partitions_and_balances_members() -> None:
    members = [
        member("a", "t", owned=[("t", n) for n in range(6)]),
        member("b", "t", owned=[("t", 6)]),
        member("c", "t"),
    ]
    assignment = assign_sticky(members, {"t": 8})
    assert sorted(partition for assigned in assignment.values() for partition in assigned) == [
        ("t", n) for n in range(8)
    ]
    assert sorted(map(len, assignment.values())) == [2, 3, 3]
    assert set(assignment["a"]) <= {("t", n) for n in range(6)}
    assert ("t", 6) in assignment["b"]


def test_sticky_assignor_prefers_owner_with_newest_generation() -> None:
    old = member("a", "t", owned=[("t", 0), ("t", 1)], generation=3)
    new = member("b", "t", owned=[("t", 0)], generation=4)
    assert assign_sticky([old, new], {"t": 2}) == {"a": [("t", 1)], "b": [("t", 0)]}


def test_cooperative_sticky_assignor_moves_a_partition_only_after_its_owner_has_released_it() -> None:
    holder = member("a", "t", owned=[("t", 0), ("t", 1)])
    fresh = member("b", "t", generation=-1)
    first = assign_cooperative_sticky([holder, fresh], {"t": 2})
    assert len(first["a"]) == 1
    assert first["b"] == []
    second = assign_cooperative_sticky(
        [member("a", "t", owned=first["a"], generation=2), member("b", "t", generation=2)], {"t": 2}
    )
    assert second["a"] == first["a"]
    assert len(second["b"]) == 1


def test_assignor_names_equal_those_of_the_java_client() -> None:
    assert list(ASSIGNORS) == ["range", "roundrobin", "sticky", "cooperative-sticky"]
