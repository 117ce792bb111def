"""Property tests of the partition assignors with random subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.client.assignors import ASSIGNORS, SubscribedMember
from headrace_broker.client.consumer_protocol import Subscription

TOPICS = ["a", "b", "c"]
COUNTS = st.fixed_dictionaries({topic: st.integers(1, 6) for topic in TOPICS})
PARTITION = st.tuples(st.sampled_from(TOPICS), st.integers(0, 6))
SUBSCRIPTION = st.builds(
    Subscription,
    topics=st.lists(st.sampled_from(TOPICS), min_size=1, unique=True),
    owned=st.lists(PARTITION, max_size=5, unique=True),
    generation_id=st.integers(-1, 2),
)
MEMBERS = st.lists(SUBSCRIPTION, min_size=1, max_size=6).map(
    lambda subscriptions: [SubscribedMember(f"m{index}", None, item) for index, item in enumerate(subscriptions)]
)


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(members=MEMBERS, counts=COUNTS)
def test_each_partition_is_assigned_to_exactly_one_member_that_subscribes_to_its_topic(
    name: str, members: list[SubscribedMember], counts: dict[str, int]
) -> None:
    assignment = ASSIGNORS[name].assign(members, counts)
    topics = {member.member_id: set(member.subscription.topics) for member in members}
    all_assigned = [item for assigned in assignment.values() for item in assigned]
    assert len(all_assigned) == len(set(all_assigned))
    assert all(topic in topics[member_id] for member_id, assigned in assignment.items() for topic, _ in assigned)
    if name != "cooperative-sticky":  # cooperative-sticky may leave revoked partitions unassigned for one rebalance
        wanted = {(topic, n) for topic, count in counts.items() for n in range(count)}
        subscribed = set().union(*topics.values())
        assert set(all_assigned) == {item for item in wanted if item[0] in subscribed}


@given(members=MEMBERS, counts=COUNTS)
def test_sticky_assignment_is_balanced_if_all_members_have_equal_subscriptions(
    members: list[SubscribedMember], counts: dict[str, int]
) -> None:
    for member in members:
        member.subscription.topics = list(TOPICS)
    sizes = [len(assigned) for assigned in ASSIGNORS["sticky"].assign(members, counts).values()]
    assert max(sizes) - min(sizes) <= 1


@given(members=MEMBERS, counts=COUNTS)
def test_sticky_assignor_keeps_the_previous_assignment_if_members_and_topics_do_not_change(
    members: list[SubscribedMember], counts: dict[str, int]
) -> None:
    first = ASSIGNORS["sticky"].assign(members, counts)
    again = [
        SubscribedMember(
            m.member_id, None, Subscription(m.subscription.topics, owned=first[m.member_id], generation_id=9)
        )
        for m in members
    ]
    assert ASSIGNORS["sticky"].assign(again, counts) == first
