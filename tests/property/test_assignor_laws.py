"""What every assignor must hold, whoever is subscribed to what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.client.assignors import ASSIGNORS, Member
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
    lambda subscriptions: [Member(f"m{index}", None, item) for index, item in enumerate(subscriptions)]
)


@pytest.mark.parametrize("name", list(ASSIGNORS))
@given(members=MEMBERS, counts=COUNTS)
def test_partitions_go_once_and_to_subscribers_only(name: str, members: list[Member], counts: dict[str, int]) -> None:
    assignment = ASSIGNORS[name].assign(members, counts)
    topics = {member.member_id: set(member.subscription.topics) for member in members}
    given_out = [item for held in assignment.values() for item in held]
    assert len(given_out) == len(set(given_out))
    assert all(topic in topics[member_id] for member_id, held in assignment.items() for topic, _ in held)
    if name != "cooperative-sticky":  # that one may hold partitions back for a round
        wanted = {(topic, n) for topic, count in counts.items() for n in range(count)}
        subscribed = set().union(*topics.values())
        assert set(given_out) == {item for item in wanted if item[0] in subscribed}


@given(members=MEMBERS, counts=COUNTS)
def test_sticky_is_balanced_where_all_subscribe_alike(members: list[Member], counts: dict[str, int]) -> None:
    for member in members:
        member.subscription.topics = list(TOPICS)
    sizes = [len(held) for held in ASSIGNORS["sticky"].assign(members, counts).values()]
    assert max(sizes) - min(sizes) <= 1


@given(members=MEMBERS, counts=COUNTS)
def test_sticky_moves_nothing_the_second_time(members: list[Member], counts: dict[str, int]) -> None:
    first = ASSIGNORS["sticky"].assign(members, counts)
    again = [
        Member(m.member_id, None, Subscription(m.subscription.topics, owned=first[m.member_id], generation_id=9))
        for m in members
    ]
    assert ASSIGNORS["sticky"].assign(again, counts) == first
