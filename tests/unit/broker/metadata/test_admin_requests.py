"""Tests of the controller's admin requests (reassignments, elections, configs, features) and internal topics."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_broker.metadata.cluster import bootstrap_records
from headrace_broker.metadata.configs import Replacement, alter_configs
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.elections import elect_leaders
from headrace_broker.metadata.features import update_features
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, TopicImage
from headrace_broker.metadata.leadership import imbalanced_partitions
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
from headrace_broker.server.log_config_provider import controller_topic_configs
from support.images import apply_result, cluster_image, describe_partition, partition_image, topic_configs


def move(
    image: MetadataImage, target: str | None, *, index: int = 0, unclean: bool = False, **more: Any
) -> ControllerResult[Any]:
    replicas = None if target is None else list(map(int, target))
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[partition])], **more)
    return alter_reassignments(image, request, topic_configs(unclean=unclean))


def error_of(result: ControllerResult[Any]) -> int:
    partition = result.response.responses[0].partitions[0]
    assert (partition.error_code == 0) == (partition.error_message is None)
    assert partition.error_code == 0 or not result.records
    return int(partition.error_code)


def replicas_of(image: MetadataImage) -> tuple[str, str, str]:
    partition = image.topics["t"].partitions[0]
    found = (partition.replicas, partition.adding_replicas, partition.removing_replicas)
    return tuple("".join(map(str, item)) for item in found)  # type: ignore[return-value]


class TestReassignments:
    def test_reassignment_adds_new_replicas_before_it_removes_old_replicas(self) -> None:
        image = cluster_image(partition_image("12", "12", 1), brokers="1234")
        moved = apply_result(image, move(image, "34"))
        assert replicas_of(moved) == ("3412", "34", "12")
        assert describe_partition(moved) == "1/12//"

    def test_reassignment_that_adds_no_replicas_completes_immediately(self) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        assert replicas_of(apply_result(image, move(image, "21"))) == ("21", "", "")
        assert move(image, "12").records == []
        assert replicas_of(apply_result(image, move(image, "2"))) == ("2", "", "")

    def test_reassignment_that_replaces_an_unfinished_reassignment_starts_from_the_original_replicas(self) -> None:
        image = cluster_image(partition_image("12", "12", 1), brokers="12345")
        image = apply_result(image, move(image, "34"))
        assert replicas_of(apply_result(image, move(image, "35"))) == ("35412", "35", "412")
        assert replicas_of(apply_result(image, move(image, "12"))) == ("12", "", "")

    def test_cancelled_reassignment_restores_the_original_replicas(self) -> None:
        image = cluster_image(partition_image("12", "12", 1), brokers="1234")
        assert error_of(move(image, None)) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        reassigning = apply_result(image, move(image, "34"))
        back = apply_result(reassigning, move(reassigning, None))
        assert replicas_of(back) == ("12", "", "")
        assert describe_partition(back) == "1/12//"
        assert back.topics["t"].partitions[0].leader_epoch > reassigning.topics["t"].partitions[0].leader_epoch

    def test_reassignment_cannot_be_cancelled_if_no_original_replica_is_in_sync(self) -> None:
        image = cluster_image(
            partition_image("312", "3", 3, adding_replicas=(3,), removing_replicas=(1,)), brokers="123"
        )
        assert error_of(move(image, None)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        result = move(image, None, unclean=True)
        assert error_of(result) == 0
        assert describe_partition(apply_result(image, result)) == "1/1//"
        assert apply_result(image, result).topics["t"].partitions[0].leader_recovery_state == 1

    @pytest.mark.parametrize("target", ["", "11", "19"])
    def test_invalid_reassignment_target_is_rejected(self, target: str) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        assert error_of(move(image, target)) == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_reassignment_changes_the_replication_factor_only_if_the_request_allows_it(self) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        result = move(image, "123", allow_replication_factor_change=False)
        assert error_of(result) == ErrorCode.INVALID_REPLICATION_FACTOR
        assert error_of(move(image, "13", allow_replication_factor_change=False)) == 0
        assert error_of(move(image, "123")) == 0

    def test_reassignment_of_unknown_or_duplicate_partition_is_rejected(self) -> None:
        image = cluster_image(partition_image("12", "12", 1))
        assert error_of(move(image, "12", index=3)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        twice = [ReassignablePartition(partition_index=0, replicas=[item]) for item in (1, 2)]
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=twice)])
        first, second = alter_reassignments(image, request, topic_configs()).response.responses[0].partitions
        assert (first.error_code, second.error_code) == (0, ErrorCode.INVALID_REQUEST)


class TestElections:
    def elect(
        self, image: MetadataImage, kind: int, requested: list[int] | None
    ) -> tuple[ControllerResult[Any], dict[int, int]]:
        topics = None if requested is None else [TopicPartitions(topic="t", partitions=requested)]
        result = elect_leaders(image, ElectLeadersRequest(election_type=kind, topic_partitions=topics), topic_configs())
        results = result.response.replica_election_results
        return result, {item.partition_id: item.error_code for topic in results for item in topic.partition_result}

    def test_preferred_election_moves_leadership_or_returns_an_error_for_each_partition(self) -> None:
        image = cluster_image(
            partition_image("123", "123", 2), partition_image("12", "12", 1), partition_image("12", "2", 2)
        )
        result, codes = self.elect(image, 0, [0, 1, 2, 9, 0])
        assert codes == {
            0: 0,
            1: ErrorCode.ELECTION_NOT_NEEDED,
            2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert describe_partition(apply_result(image, result)) == "1/123//"
        assert self.elect(image, 0, None)[1] == {0: 0, 2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}

    def test_unclean_election_elects_replica_outside_isr(self) -> None:
        image = cluster_image(partition_image("12", "2", -1), partition_image("12", "12", 1), fenced="2")
        result, codes = self.elect(image, 1, None)
        assert codes == {0: 0}
        assert describe_partition(apply_result(image, result)) == "1/1//"
        all_fenced = cluster_image(partition_image("12", "2", -1), fenced="12")
        assert self.elect(all_fenced, 1, [0])[1] == {0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}

    def test_unknown_election_type_is_rejected(self) -> None:
        with pytest.raises(ApiError, match="election type 7"):
            self.elect(cluster_image(), 7, None)

    def test_leaders_are_rebalanced_only_for_brokers_whose_leader_imbalance_exceeds_the_threshold(self) -> None:
        unbalanced = [partition_image("12", "12", 2)]
        image = cluster_image(*unbalanced, *[partition_image("12", "12", 1)] * 9)
        assert [index for _, index in imbalanced_partitions(image, 9)] == [0]
        assert imbalanced_partitions(image, 10) == []
        assert imbalanced_partitions(cluster_image(*unbalanced, fenced="1")) == []
        assert imbalanced_partitions(cluster_image(partition_image("12", "2", 2))) == []


class TestConfigs:
    RULES = controller_topic_configs({"min.insync.replicas": "4"})

    def alter(
        self, image: MetadataImage, kind: int, name: str, *changes: tuple[str, int, str | None]
    ) -> ControllerResult[Any]:
        return alter_configs(image, [(kind, name, changes)], self.RULES)

    def test_enabling_unclean_leader_election_triggers_an_unclean_election(self) -> None:
        image = cluster_image(partition_image("12", "2", -1), fenced="2")
        allow = ("unclean.leader.election.enable", 0, "true")
        assert describe_partition(apply_result(image, self.alter(image, TOPIC_RESOURCE, "t", allow))) == "1/1//"
        assert describe_partition(apply_result(image, self.alter(image, BROKER_RESOURCE, "", allow))) == "1/1//"
        tested = alter_configs(image, [(BROKER_RESOURCE, "", [allow])], self.RULES, validate_only=True)
        assert (tested.response, tested.records) == ([None], [])

    def test_lowering_min_isr_to_the_size_of_the_isr_clears_the_elr(self) -> None:
        image = cluster_image(partition_image("123", "1", 1, elr="2"))
        result = self.alter(image, TOPIC_RESOURCE, "t", ("min.insync.replicas", 0, "1"))
        assert describe_partition(apply_result(image, result)) == "1/1//"

    def test_invalid_config_change_is_rejected_with_a_message_that_explains_the_error(self) -> None:
        image = cluster_image()
        rejected = [
            self.alter(image, BROKER_RESOURCE, name, (key, 0, value)).response[0].message
            for name, key, value in [
                ("1", "node.id", "2"),
                ("1", "min.insync.replicas", "2"),
                ("", "log.retention.ms", "soon"),
                ("one", "log.retention.ms", "1"),
            ]
        ]
        assert (
            "node.id cannot be altered dynamically: set it in the broker's properties file and restart" in rejected[0]
        )
        assert "--entity-default" in rejected[1]
        assert "log" in rejected[2] or "retention.ms" in rejected[2]
        assert "'one' is not a broker id" in rejected[3]

    def test_cluster_wide_min_isr_cannot_be_removed(self) -> None:
        image = cluster_image(partition_image("123", "1", 1, elr="2"))
        image = apply_result(image, self.alter(image, BROKER_RESOURCE, "", ("min.insync.replicas", 0, "2")))
        message = "min.insync.replicas cannot be removed: set another value instead"
        for result in (
            self.alter(image, BROKER_RESOURCE, "", ("min.insync.replicas", 1, None)),
            alter_configs(image, [(BROKER_RESOURCE, "", Replacement([("log.retention.ms", "5")]))], self.RULES),
        ):
            assert message in result.response[0].message
            assert result.records == []

    def test_deleting_unset_broker_config_succeeds(self) -> None:
        result = self.alter(cluster_image(), BROKER_RESOURCE, "1", ("leader.replication.throttled.rate", 1, None))
        assert (result.response, result.records) == ([None], [])

    def test_config_that_only_another_version_knows_can_be_deleted_and_does_not_prevent_other_changes(self) -> None:
        record = ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name="new.config", value="1")
        image = apply_result(cluster_image(partition_image("1", "1", 1)), ControllerResult(None, [record]))
        image = apply_result(image, self.alter(image, TOPIC_RESOURCE, "t", ("retention.ms", 0, "5")))
        assert image.topic_configs("t") == {"new.config": "1", "retention.ms": "5"}
        (rejected,) = self.alter(image, TOPIC_RESOURCE, "t", ("new.config", 0, "2")).response
        assert rejected.code == ErrorCode.INVALID_CONFIG
        image = apply_result(image, self.alter(image, TOPIC_RESOURCE, "t", ("new.config", 1, None)))
        assert image.topic_configs("t") == {"retention.ms": "5"}

    def test_append_to_a_long_list_config_is_fast_and_the_size_of_the_result_is_limited(self) -> None:
        key, image = "leader.replication.throttled.replicas", cluster_image(partition_image("1", "1", 1))
        first, second = (",".join(f"{index}:1" for index in range(start, start + 60_000)) for start in (0, 30_000))
        image = apply_result(image, self.alter(image, TOPIC_RESOURCE, "t", (key, 2, first)))
        # Appending looks up each entry of the appended list in the existing list.
        image = apply_result(image, self.alter(image, TOPIC_RESOURCE, "t", (key, 2, second)))
        assert image.topic_configs("t")[key].count(",") == 90_000 - 1
        rejected = self.alter(image, TOPIC_RESOURCE, "t", (key, 0, "1:1," * (1 << 19))).response[0]
        assert rejected.code == ErrorCode.POLICY_VIOLATION
        rejected = self.alter(image, TOPIC_RESOURCE, "t", (key, 2, "1:2," * 200_000 + ("2" * 400_000) + ":1")).response[
            0
        ]
        assert rejected.code in (ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_CONFIG)

    def test_config_of_a_topic_takes_precedence_over_the_cluster_wide_config(self) -> None:
        image = cluster_image(partition_image("1", "1", 1))
        image = apply_result(image, self.alter(image, BROKER_RESOURCE, "", ("min.insync.replicas", 0, "2")))
        assert self.RULES.min_insync_replicas(image, "t") == 2
        image = apply_result(image, self.alter(image, TOPIC_RESOURCE, "t", ("min.insync.replicas", 0, "3")))
        assert self.RULES.min_insync_replicas(image, "t") == 3
        image = apply_result(image, self.alter(image, TOPIC_RESOURCE, "t", ("min.insync.replicas", 1, None)))
        assert self.RULES.min_insync_replicas(image, "t") == 2

    def test_elections_use_the_min_isr_in_the_metadata_log_instead_of_the_value_in_properties_files(self) -> None:
        """Test rule R1 in docs/broker.md.

        Leaders and the controller must use the same value of min.insync.replicas. Otherwise, the controller could elect
        a replica that lacks acknowledged records.
        """
        image = cluster_image(partition_image("12", "12", 1))
        assert self.RULES.min_insync_replicas(image, "t") == 1
        assert ConfigRecord not in map(type, bootstrap_records(image, 1))
        image = apply_result(image, ControllerResult(None, bootstrap_records(image, 4)))
        assert self.RULES.min_insync_replicas(image, "t") == 4
        assert bootstrap_records(image, 3) == []


def test_feature_update_accepts_only_the_current_feature_level() -> None:
    image = MetadataImage(features={"metadata.version": 30})
    requested = [
        FeatureUpdateKey(feature="metadata.version", max_version_level=30),
        FeatureUpdateKey(feature="x.version"),
    ]
    request = UpdateFeaturesRequest(feature_updates=requested)
    assert update_features(image, request).response.error_code == 0
    requested[0].max_version_level = 29
    rejected = update_features(image, request).response
    assert rejected.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "metadata.version is 30 and cannot be set to 29" in (rejected.error_message or "")
    assert rejected.results == []


def test_internal_topics_gain_replicas_when_brokers_register() -> None:
    image = cluster_image(brokers="1234", fenced="4")
    offsets = TopicImage("__consumer_offsets", b"o" * 16, tuple(partition_image("1", "1", 1) for _ in range(3)))
    image = MetadataImage(
        offset=1, brokers=image.brokers, topics={offsets.name: offsets}, topic_names={offsets.topic_id: offsets.name}
    )
    result = grow_internal_topics(image, 3, topic_configs())
    assert result.response == 3
    grown = apply_result(image, result).topics[offsets.name].partitions
    assert [set(item.replicas) for item in grown] == [{1, 2, 3}] * 3
    assert [item.leader for item in grown] == [1, 1, 1]
    assert grow_internal_topics(apply_result(image, result), 3, topic_configs()).response == 0
    assert grow_internal_topics(image, 1, topic_configs()).response == 0
