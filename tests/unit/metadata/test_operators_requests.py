"""What operators ask for: moves, elections, features, configs that elections follow; and internal topics that grow."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_broker.metadata.cluster import bootstrap_records
from headrace_broker.metadata.configs import alter_configs
from headrace_broker.metadata.elections import elect_leaders
from headrace_broker.metadata.features import update_features
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, TopicImage
from headrace_broker.metadata.leadership import imbalanced
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.reassignment import alter_reassignments, grow_internal_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace_broker.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from headrace_broker.protocol.metadata_records import ConfigRecord
from headrace_broker.server.topic_rules import topic_rules
from support.images import after, cluster_image, partition_image, rules, shown


def move(
    image: MetadataImage, target: str | None, *, index: int = 0, unclean: bool = False, **more: Any
) -> Outcome[Any]:
    replicas = None if target is None else list(map(int, target))
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])], **more)
    return alter_reassignments(image, request, rules(unclean=unclean))


def error_of(outcome: Outcome[Any]) -> int:
    answer = outcome.response.responses[0].partitions[0]
    assert (answer.error_code == 0) == (answer.error_message is None)
    assert answer.error_code == 0 or not outcome.records
    return int(answer.error_code)


def replicas_of(image: MetadataImage) -> tuple[str, str, str]:
    partition = image.topics["t"].partitions[0]
    found = (partition.replicas, partition.adding_replicas, partition.removing_replicas)
    return tuple("".join(map(str, item)) for item in found)  # type: ignore[return-value]


class TestMoves:
    def test_a_move_adds_first(self) -> None:
        image = cluster_image(partition_image("12", "12", 1), brokers="1234")
        moved = after(image, move(image, "34"))
        assert replicas_of(moved) == ("3412", "34", "12")
        assert shown(moved) == "1/12//"

    def test_a_move_to_where_the_replicas_are_is_complete_at_once(self) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        assert replicas_of(after(image, move(image, "21"))) == ("21", "", "")
        assert move(image, "12").records == []
        assert replicas_of(after(image, move(image, "2"))) == ("2", "", "")

    def test_another_move_begins_with_what_the_partition_had(self) -> None:
        image = cluster_image(partition_image("12", "12", 1), brokers="12345")
        image = after(image, move(image, "34"))
        assert replicas_of(after(image, move(image, "35"))) == ("35412", "35", "412")
        assert replicas_of(after(image, move(image, "12"))) == ("12", "", "")

    def test_a_move_is_called_off(self) -> None:
        image = cluster_image(partition_image("12", "12", 1), brokers="1234")
        assert error_of(move(image, None)) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        moving = after(image, move(image, "34"))
        back = after(moving, move(moving, None))
        assert replicas_of(back) == ("12", "", "")
        assert shown(back) == "1/12//"
        assert back.topics["t"].partitions[0].leader_epoch > moving.topics["t"].partitions[0].leader_epoch

    def test_a_move_is_not_called_off_when_that_would_lose_records(self) -> None:
        image = cluster_image(
            partition_image("312", "3", 3, adding_replicas=(3,), removing_replicas=(1,)), brokers="123"
        )
        assert error_of(move(image, None)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        outcome = move(image, None, unclean=True)
        assert error_of(outcome) == 0
        assert shown(after(image, outcome)) == "1/1//"
        assert after(image, outcome).topics["t"].partitions[0].leader_recovery_state == 1

    @pytest.mark.parametrize("target", ["", "11", "19"])
    def test_impossible_targets_are_refused(self, target: str) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        assert error_of(move(image, target)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_the_replication_factor_changes_only_where_that_is_allowed(self) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        answer = move(image, "123", allow_replication_factor_change=False)
        assert error_of(answer) == ErrorCode.INVALID_REPLICATION_FACTOR
        assert error_of(move(image, "13", allow_replication_factor_change=False)) == 0
        assert error_of(move(image, "123")) == 0

    def test_unknown_partitions_and_repeated_ones_are_refused(self) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        assert error_of(move(image, "12", index=3)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        twice = [ReassignablePartition(partition_index=0, replicas=[item]) for item in (1, 2)]
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=twice)])
        first, second = alter_reassignments(image, request, rules()).response.responses[0].partitions
        assert (first.error_code, second.error_code) == (0, ErrorCode.INVALID_REQUEST)


class TestElections:
    def elect(self, image: MetadataImage, kind: int, wanted: list[int] | None) -> tuple[Outcome[Any], dict[int, int]]:
        topics = None if wanted is None else [TopicPartitions(topic="t", partitions=wanted)]
        outcome = elect_leaders(image, ElectLeadersRequest(election_type=kind, topic_partitions=topics), rules())
        results = outcome.response.replica_election_results
        return outcome, {item.partition_id: item.error_code for topic in results for item in topic.partition_result}

    def test_preferred(self) -> None:
        image = cluster_image(
            partition_image("123", "123", 2), partition_image("12", "12", 1), partition_image("12", "2", 2)
        )
        outcome, codes = self.elect(image, 0, [0, 1, 2, 9, 0])
        assert codes == {
            0: 0,
            1: ErrorCode.ELECTION_NOT_NEEDED,
            2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert shown(after(image, outcome)) == "1/123//"
        assert self.elect(image, 0, None)[1] == {0: 0, 2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}

    def test_unclean(self) -> None:
        image = cluster_image(partition_image("12", "2", -1), partition_image("12", "12", 1), fenced="2")
        outcome, codes = self.elect(image, 1, None)
        assert codes == {0: 0}
        assert shown(after(image, outcome)) == "1/1//"
        nobody = cluster_image(partition_image("12", "2", -1), fenced="12")
        assert self.elect(nobody, 1, [0])[1] == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}

    def test_unknown_kinds_are_refused(self) -> None:
        with pytest.raises(ApiError, match="election type 7"):
            self.elect(cluster_image(), 7, None)

    def test_brokers_that_lack_little_are_left_alone(self) -> None:
        lacking = [partition_image("12", "12", 2)]
        image = cluster_image(*lacking, *[partition_image("12", "12", 1)] * 9)
        assert [index for _, index in imbalanced(image, 9)] == [0]
        assert imbalanced(image, 10) == []
        assert imbalanced(cluster_image(*lacking, fenced="1")) == []
        assert imbalanced(cluster_image(partition_image("12", "2", 2))) == []


class TestConfigs:
    RULES = topic_rules({"min.insync.replicas": "4"})

    def alter(self, image: MetadataImage, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Outcome[Any]:
        return alter_configs(image, [(kind, name, changes)], self.RULES)

    def test_unclean_elections_happen_as_soon_as_they_are_allowed(self) -> None:
        image = cluster_image(partition_image("12", "2", -1), fenced="2")
        allow = ("unclean.leader.election.enable", 0, "true")
        assert shown(after(image, self.alter(image, TOPIC_RESOURCE, "t", allow))) == "1/1//"
        assert shown(after(image, self.alter(image, BROKER_RESOURCE, "", allow))) == "1/1//"
        tested = alter_configs(image, [(BROKER_RESOURCE, "", [allow])], self.RULES, validate_only=True)
        assert (tested.response, tested.records) == ([None], [])

    def test_a_lower_min_isr_forgets_the_eligible(self) -> None:
        image = cluster_image(partition_image("123", "1", 1, elr="2"))
        outcome = self.alter(image, TOPIC_RESOURCE, "t", ("min.insync.replicas", 0, "1"))
        assert shown(after(image, outcome)) == "1/1//"

    def test_what_cannot_be_altered_is_told_with_the_way_to_do_it(self) -> None:
        image = cluster_image()
        refused = [
            self.alter(image, BROKER_RESOURCE, name, (key, 0, value)).response[0].message
            for name, key, value in [
                ("1", "node.id", "2"),
                ("1", "min.insync.replicas", "2"),
                ("", "log.retention.ms", "soon"),
                ("one", "log.retention.ms", "1"),
            ]
        ]
        assert "node.id cannot be altered: set it in the broker's properties file and restart it" in refused[0]
        assert "--entity-default" in refused[1]
        assert "log" in refused[2] or "retention.ms" in refused[2]
        assert "'one' is not the id of a broker" in refused[3]

    def test_the_cluster_keeps_a_min_isr_once_it_has_one(self) -> None:
        image = cluster_image(partition_image("123", "1", 1, elr="2"))
        image = after(image, self.alter(image, BROKER_RESOURCE, "", ("min.insync.replicas", 0, "2")))
        kept = "min.insync.replicas cannot be removed, the next controller's file would count: set another value"
        for outcome in (
            self.alter(image, BROKER_RESOURCE, "", ("min.insync.replicas", 1, None)),
            alter_configs(image, [(BROKER_RESOURCE, "", {"log.retention.ms": "5"})], self.RULES),
        ):
            assert kept in outcome.response[0].message
            assert outcome.records == []

    def test_taking_back_what_was_never_set_on_a_broker_is_done_at_once(self) -> None:
        outcome = self.alter(cluster_image(), BROKER_RESOURCE, "1", ("leader.replication.throttled.rate", 1, None))
        assert (outcome.response, outcome.records) == ([None], [])

    def test_long_lists_of_values_hold_nobody_up(self) -> None:
        key, image = "leader.replication.throttled.replicas", cluster_image(partition_image("1", "1", 1))
        first, second = (",".join(f"{index}:1" for index in range(start, start + 60_000)) for start in (0, 30_000))
        image = after(image, self.alter(image, TOPIC_RESOURCE, "t", (key, 2, first)))
        image = after(image, self.alter(image, TOPIC_RESOURCE, "t", (key, 2, second)))  # each is looked up among all
        assert image.topic_configs("t")[key].count(",") == 90_000 - 1
        refused = self.alter(image, TOPIC_RESOURCE, "t", (key, 0, "1:1," * (1 << 19))).response[0]
        assert refused.code == ErrorCode.POLICY_VIOLATION
        refused = self.alter(image, TOPIC_RESOURCE, "t", (key, 2, "1:2," * 200_000 + ("2" * 400_000) + ":1")).response[
            0
        ]
        assert refused.code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_CONFIG)

    def test_precedence(self) -> None:
        image = cluster_image(partition_image("1", "1", 1))
        image = after(image, self.alter(image, BROKER_RESOURCE, "", ("min.insync.replicas", 0, "2")))
        assert self.RULES.min_insync_replicas(image, "t") == 2
        image = after(image, self.alter(image, TOPIC_RESOURCE, "t", ("min.insync.replicas", 0, "3")))
        assert self.RULES.min_insync_replicas(image, "t") == 3
        image = after(image, self.alter(image, TOPIC_RESOURCE, "t", ("min.insync.replicas", 1, None)))
        assert self.RULES.min_insync_replicas(image, "t") == 2

    def test_who_is_eligible_hangs_on_no_nodes_file(self) -> None:
        """R1: a leader whose file says less would acknowledge what the eligible replica lacks."""
        image = cluster_image(partition_image("12", "12", 1))
        assert self.RULES.min_insync_replicas(image, "t") == 1
        assert ConfigRecord not in map(type, bootstrap_records(image, 1))
        image = after(image, Outcome(None, bootstrap_records(image, 4)))
        assert self.RULES.min_insync_replicas(image, "t") == 4
        assert bootstrap_records(image, 3) == []


def test_features_can_only_be_what_they_are() -> None:
    image = MetadataImage(features={"metadata.version": 30})
    wanted = [FeatureUpdateKey(feature="metadata.version", max_version_level=30), FeatureUpdateKey(feature="x.version")]
    request = UpdateFeaturesRequest(feature_updates=wanted)
    assert update_features(image, request, 2).response.error_code == 0
    wanted[0].max_version_level = 29
    refused = update_features(image, request, 2).response
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "metadata.version is 30 and cannot become 29" in (refused.error_message or "")
    assert [result.error_code for result in update_features(image, request, 1).response.results] == [95, 0]


def test_internal_topics_grow_as_brokers_come() -> None:
    image = cluster_image(brokers="1234", fenced="4")
    offsets = TopicImage("__consumer_offsets", b"o" * 16, tuple(partition_image("1", "1", 1) for _ in range(3)))
    image = MetadataImage(
        offset=1, brokers=image.brokers, topics={offsets.name: offsets}, topic_names={offsets.topic_id: offsets.name}
    )
    outcome = grow_internal_topics(image, 3, rules())
    assert outcome.response == 3
    grown = after(image, outcome).topics[offsets.name].partitions
    assert [set(item.replicas) for item in grown] == [{1, 2, 3}] * 3
    assert [item.leader for item in grown] == [1, 1, 1]
    assert grow_internal_topics(after(image, outcome), 3, rules()).response == 0
    assert grow_internal_topics(image, 1, rules()).response == 0
