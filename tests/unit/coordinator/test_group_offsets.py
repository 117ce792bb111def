"""Committing, fetching, deleting and expiring offsets."""

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
    asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    group = driver.shard.fetch(OffsetFetchRequestGroup(group_id=driver.group_id, topics=[asked]))
    part = group.topics[0].partitions[0]
    assert part.error_code == 0
    return part.committed_offset, part.committed_leader_epoch, part.metadata


# -- who may commit


def test_anybody_may_commit_for_a_group_without_members() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 5}) == OK
    assert driver.commit({("t", 0): 3, ("u", 1): 9}) == OK * 2
    assert driver.fetch() == {("t", 0): 3, ("u", 1): 9}
    assert driver.group.state == "Empty"


def test_nobody_from_outside_may_commit_for_a_group_with_members() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    assert driver.commit({("t", 0): 5}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit({("t", 0): 5}, "stranger", 1) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.fetch() == {}
    driver.leave(member)
    assert driver.commit({("t", 0): 5}) == OK


def test_g5_commits_of_an_old_generation_are_refused() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
    for generation in (0, 2, -1):
        assert driver.commit({("t", 0): 5}, member, generation) == [ErrorCode.ILLEGAL_GENERATION]
    assert driver.commit({("t", 0): 5}, member, 1) == OK


def test_g5_commits_of_the_current_generation_during_a_rebalance_are_kept() -> None:
    driver = GroupDriver()
    first, second = driver.stable(2)
    join = driver.join(second, protocols={"range": b"new"})
    assert driver.group.state == "PreparingRebalance"
    assert driver.commit({("t", 0): 5}, first, 1) == OK
    driver.join(first)
    generation = driver.replies[join].generation_id
    assert driver.group.state == "CompletingRebalance"
    assert driver.commit({("t", 0): 6}, first, generation) == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert driver.commit({("t", 0): 6}, first, 1) == [ErrorCode.ILLEGAL_GENERATION]
    assert driver.fetch() == {("t", 0): 5}


@pytest.mark.parametrize(("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_of_a_group_that_does_not_exist(version: int, error: ErrorCode) -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 5}, "member", 1, version=version) == [error]
    assert not driver.shard.groups


def test_a_commit_that_could_not_be_stored_changes_nothing() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 5})
    driver.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit({("t", 0): 6})
    assert driver.fetch() == {("t", 0): 5}


# -- what is kept


def test_g8_metadata_and_leader_epoch_come_back() -> None:
    driver = GroupDriver()
    driver.commit({("t", 3): 5}, metadata="a note, ☃", leader_epoch=11)
    assert fetch_one(driver, "t", 3) == (5, 11, "a note, ☃")
    driver.restart()
    assert fetch_one(driver, "t", 3) == (5, 11, "a note, ☃")
    driver.commit({("t", 3): 6})
    assert fetch_one(driver, "t", 3) == (6, -1, "")


def test_what_was_never_committed_is_minus_one() -> None:
    driver = GroupDriver()
    assert fetch_one(driver, "t", 0) == (-1, -1, "")
    driver.commit({("t", 1): 5})
    assert fetch_one(driver, "t", 0) == (-1, -1, "")


def test_metadata_that_is_too_long_is_refused_for_its_partition() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 5}, metadata="x" * 4096) == OK
    assert driver.commit({("t", 0): 6}, metadata="x" * 4097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert driver.fetch() == {("t", 0): 5}


# -- deleting


def test_g10_offsets_of_a_subscribed_topic_cannot_be_deleted() -> None:
    driver = GroupDriver()
    (member,) = driver.stable(protocols={"range": consumer_subscription("t")})
    driver.commit({("t", 0): 5, ("u", 0): 6}, member, 1)
    reply = driver.delete_offsets(("t", 0), ("u", 0), ("v", 0))
    errors = [topic.partitions[0].error_code for topic in reply.topics]
    assert errors == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0, 0]
    assert driver.fetch() == {("t", 0): 5}
    driver.leave(member)
    driver.delete_offsets(("t", 0))
    assert driver.fetch() == {}
    assert not driver.replayed().offsets.topics_of("g")


def test_offsets_of_a_group_of_another_type_can_be_deleted_only_when_it_is_empty() -> None:
    driver = GroupDriver()
    assert driver.delete_offsets(("t", 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = driver.stable(protocol_type="connect")
    assert driver.delete_offsets(("t", 0)).error_code == ErrorCode.NON_EMPTY_GROUP
    driver.leave(member)
    assert driver.delete_offsets(("t", 0)).error_code == 0


def test_deleting_a_topic_removes_every_groups_offsets() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 5, ("u", 0): 6})
    driver.group_id = "h"
    driver.commit({("t", 1): 7})
    driver.run(driver.shard.topics_deleted(frozenset({"t", "never"})))
    assert driver.fetch("g") == {("u", 0): 6}
    assert driver.fetch("h") == {}
    assert not driver.replayed().offsets.topics_of("h")


# -- expiry


def expire(driver: GroupDriver) -> None:
    driver.run(driver.shard.expire(list(driver.shard.groups), driver.now_ms))


def test_offsets_without_members_expire_each_by_its_commit_time() -> None:
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
    assert not driver.replayed().groups


def test_offsets_of_a_former_group_expire_after_it_became_empty() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
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


def test_a_new_coordinator_counts_from_when_the_group_became_empty() -> None:
    driver = GroupDriver()
    (member,) = driver.stable()
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
    ("protocol_type", "left"), [("consumer", {("t", 0): 5}), ("connect", {("t", 0): 5, ("u", 0): 6})]
)
def test_a_living_group_loses_only_offsets_of_topics_it_no_longer_consumes(
    protocol_type: str, left: dict[tuple[str, int], int]
) -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=15_000))
    (member,) = driver.stable(protocol_type=protocol_type)
    driver.commit({("t", 0): 5, ("u", 0): 6}, member, 1)
    for _ in range(2):
        driver.advance(9_000)
        driver.heartbeat(member, 1)
    expire(driver)
    assert driver.fetch() == left


def test_nothing_expires_while_a_group_rebalances() -> None:
    driver = GroupDriver(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=1))
    first, second = driver.stable(2)
    driver.commit({("u", 0): 6}, first, 1)
    driver.join(second, protocols={"range": b""})
    driver.advance(5_000)
    expire(driver)
    assert driver.fetch() == {("u", 0): 6}


def test_a_retention_of_its_own_overrules_the_brokers() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 5}, retention_ms=1_000, version=4)
    driver.restart()
    driver.advance(999)
    expire(driver)
    assert driver.fetch()
    driver.advance(1)
    expire(driver)
    assert not driver.fetch()


def test_a_group_that_is_just_being_joined_does_not_expire() -> None:
    driver = GroupDriver()
    member = driver.replies[driver.join()].member_id
    expire(driver)
    token = driver.join(member)
    driver.settle()
    assert driver.replies[token].error_code == 0


# -- subscriptions


def test_subscriptions_are_read_in_any_version_and_never_trusted() -> None:
    assert subscribed_topics([consumer_subscription("a", "b", user_data=b"x"), consumer_subscription("c")]) == {
        "a",
        "b",
        "c",
    }
    assert subscribed_topics([]) == frozenset()
    good = consumer_subscription("topic")
    for broken in (b"", good[:7], good[:9], b"\0\0\xff\xff\xff\xff", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\1\xff"):
        assert subscribed_topics([good, broken]) is None
