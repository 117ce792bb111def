"""Tests of the requests that commit, fetch and delete group offsets, and of the expiration of offsets."""

from __future__ import annotations

import pytest

from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.subscription import subscribed_topics
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from support.groups import GroupDriver, consumer_subscription

RETENTION = 7 * 24 * 60 * 60_000
OK = [ErrorCode.NONE]


def fetch_one(driver: GroupDriver, topic: str, partition: int) -> tuple[int, int, str]:
    requested = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    group = driver.shard.fetch(OffsetFetchRequestGroup(group_id=driver.group_id, topics=[requested]))
    part = group.topics[0].partitions[0]
    assert part.error_code == 0
    return part.committed_offset, part.committed_leader_epoch, part.metadata


# -- permission to commit


def test_client_without_member_id_can_commit_offsets_to_an_empty_group() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 5}) == OK
    assert driver.commit({("t", 0): 3, ("u", 1): 9}) == OK * 2
    assert driver.fetch() == {("t", 0): 3, ("u", 1): 9}
    assert driver.group.state == "Empty"


def test_commit_of_a_client_that_is_not_a_member_is_rejected_if_the_group_has_members() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    assert driver.commit({("t", 0): 5}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit({("t", 0): 5}, "unknown-member", 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.fetch() == {}
    driver.leave(member)
    assert driver.commit({("t", 0): 5}) == OK


def test_commit_with_wrong_generation_is_rejected() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    for generation in (0, 2, -1):
        assert driver.commit({("t", 0): 5}, member, generation) == [ErrorCode.ILLEGAL_GENERATION]
    assert driver.commit({("t", 0): 5}, member, 1) == OK


def test_commit_with_current_generation_is_accepted_by_a_group_in_state_preparing_rebalance() -> None:
    driver = GroupDriver()
    first, second = driver.create_stable_group(2)
    join = driver.join(second, protocols={"range": b"new"})
    assert driver.group.state == "PreparingRebalance"
    assert driver.commit({("t", 0): 5}, first, 1) == OK
    driver.join(first)
    generation = driver.responses[join].generation_id
    assert driver.group.state == "CompletingRebalance"
    assert driver.commit({("t", 0): 6}, first, generation) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert driver.commit({("t", 0): 6}, first, 1) == [ErrorCode.ILLEGAL_GENERATION]
    assert driver.fetch() == {("t", 0): 5}


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_commit_to_a_missing_group_is_rejected_if_the_request_contains_a_generation(
    version: int, error: ErrorCode
) -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 5}, "member", 1, version=version) == [error]
    assert not driver.shard.groups


def test_commit_whose_append_fails_does_not_change_the_committed_offset() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 5})
    driver.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit({("t", 0): 6})
    assert driver.fetch() == {("t", 0): 5}


# -- stored values


def test_offset_fetch_returns_the_metadata_and_leader_epoch_that_were_committed_with_the_offset() -> None:
    driver = GroupDriver()
    driver.commit({("t", 3): 5}, metadata="a note, ☃", leader_epoch=11)
    assert fetch_one(driver, "t", 3) == (5, 11, "a note, ☃")
    driver.restart()
    assert fetch_one(driver, "t", 3) == (5, 11, "a note, ☃")
    driver.commit({("t", 3): 6})
    assert fetch_one(driver, "t", 3) == (6, -1, "")


def test_offset_fetch_of_a_partition_without_committed_offset_returns_minus_one() -> None:
    driver = GroupDriver()
    assert fetch_one(driver, "t", 0) == (-1, -1, "")
    driver.commit({("t", 1): 5})
    assert fetch_one(driver, "t", 0) == (-1, -1, "")


def test_commit_with_too_large_metadata_is_rejected() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 5}, metadata="x" * 4096) == OK
    assert driver.commit({("t", 0): 6}, metadata="x" * 4097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert driver.fetch() == {("t", 0): 5}


# -- deleting


def test_offsets_of_a_subscribed_topic_cannot_be_deleted() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group(protocols={"range": consumer_subscription("t")})
    driver.commit({("t", 0): 5, ("u", 0): 6}, member, 1)
    response = driver.delete_offsets(("t", 0), ("u", 0), ("v", 0))
    errors = [topic.partitions[0].error_code for topic in response.topics]
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, 0]
    assert driver.fetch() == {("t", 0): 5}
    driver.leave(member)
    driver.delete_offsets(("t", 0))
    assert driver.fetch() == {}
    assert not driver.replay_log().offsets.group_offsets("g")


def test_offsets_of_a_group_that_is_not_a_consumer_group_can_be_deleted_only_when_the_group_is_empty() -> None:
    driver = GroupDriver()
    assert driver.delete_offsets(("t", 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = driver.create_stable_group(protocol_type="connect")
    assert driver.delete_offsets(("t", 0)).error_code == ErrorCode.NON_EMPTY_GROUP
    driver.leave(member)
    assert driver.delete_offsets(("t", 0)).error_code == 0


def test_topic_deletion_removes_the_offsets_of_the_topic_from_every_group() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 5, ("u", 0): 6})
    driver.group_id = "h"
    driver.commit({("t", 1): 7})
    driver.run(driver.shard.on_topics_deleted(frozenset({"t", "never"})))
    assert driver.fetch("g") == {("u", 0): 6}
    assert driver.fetch("h") == {}
    assert not driver.replay_log().offsets.group_offsets("h")


# -- expiration


def expire(driver: GroupDriver) -> None:
    driver.run(driver.shard.expire(list(driver.shard.groups), driver.now_ms))


def test_offset_retention_of_a_group_that_never_had_members_starts_at_the_commit() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 5})
    driver.advance(1000)
    driver.commit({("t", 1): 6})
    driver.advance(RETENTION - 1001)
    expire(driver)
    assert len(driver.fetch()) == 2
    driver.advance(1)
    expire(driver)
    assert driver.fetch() == {("t", 1): 6}
    driver.advance(1000)
    expire(driver)
    assert driver.fetch() == {}
    assert not driver.shard.groups
    assert not driver.replay_log().groups


def test_offset_retention_starts_when_the_group_becomes_empty() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    driver.commit({("t", 0): 5}, member, 1)
    for _ in range(2):
        driver.advance(9_000)
        driver.heartbeat(member, 1)
    driver.leave(member)
    driver.advance(RETENTION - 1)
    expire(driver)
    assert driver.fetch()
    driver.advance(1)
    expire(driver)
    assert not driver.fetch()
    assert not driver.shard.groups


def test_coordinator_restart_does_not_restart_the_offset_retention_time() -> None:
    driver = GroupDriver()
    (member,) = driver.create_stable_group()
    driver.commit({("t", 0): 5}, member, 1)
    driver.leave(member)
    driver.advance(RETENTION - 1)
    driver.restart()
    expire(driver)
    assert driver.fetch()
    driver.advance(1)
    expire(driver)
    assert not driver.fetch()
    assert not driver.shard.groups


@pytest.mark.parametrize(
    ("protocol_type", "remaining"), [("consumer", {("t", 0): 5}), ("connect", {("t", 0): 5, ("u", 0): 6})]
)
def test_only_offsets_of_unsubscribed_topics_expire_in_a_stable_consumer_group(
    protocol_type: str, remaining: dict[tuple[str, int], int]
) -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=15_000))
    (member,) = driver.create_stable_group(protocol_type=protocol_type)
    driver.commit({("t", 0): 5, ("u", 0): 6}, member, 1)
    for _ in range(2):
        driver.advance(9_000)
        driver.heartbeat(member, 1)
    expire(driver)
    assert driver.fetch() == remaining


def test_offsets_do_not_expire_during_a_rebalance() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=1))
    first, second = driver.create_stable_group(2)
    driver.commit({("u", 0): 6}, first, 1)
    driver.join(second, protocols={"range": b""})
    driver.advance(5_000)
    expire(driver)
    assert driver.fetch() == {("u", 0): 6}


def test_retention_time_of_a_commit_request_overrides_offsets_retention_minutes() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 5}, retention_ms=1_000, version=4)
    driver.restart()
    driver.advance(999)
    expire(driver)
    assert driver.fetch()
    driver.advance(1)
    expire(driver)
    assert not driver.fetch()


def test_group_with_a_pending_member_does_not_expire() -> None:
    driver = GroupDriver()
    member = driver.responses[driver.join()].member_id
    expire(driver)
    token = driver.join(member)
    driver.run_due_timers()
    assert driver.responses[token].error_code == 0


# -- subscriptions


def test_subscribed_topics_of_a_group_are_unknown_if_the_subscription_of_a_member_is_malformed() -> None:
    assert subscribed_topics([consumer_subscription("a", "b", user_data=b"x"), consumer_subscription("c")]) == {
        "a",
        "b",
        "c",
    }
    assert subscribed_topics([]) == frozenset()
    valid = consumer_subscription("topic")
    for invalid in (
        b"",
        valid[:7],
        valid[:9],
        b"\0\0\xff\xff\xff\xff",
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff",
    ):
        assert subscribed_topics([valid, invalid]) is None
