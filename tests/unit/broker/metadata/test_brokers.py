"""Tests of broker registration, heartbeats, fencing, controlled shutdown and unregistration in the controller."""

from __future__ import annotations

import pytest

from headrace_broker.metadata.brokers import fence_broker, heartbeat, register_broker, unregister_broker
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.liveness import BrokerLiveness
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from support.images import apply_result, broker_image, cluster_image, describe_partition, partition_image, topic_configs


def register(
    image: MetadataImage, broker_id: int, *, previous: int = -1, is_alive: bool = False, incarnation: bytes = b"n" * 16
) -> ControllerResult[BrokerRegistrationResponse]:
    request = BrokerRegistrationRequest(
        broker_id=broker_id, cluster_id="C", incarnation_id=incarnation, previous_broker_epoch=previous
    )
    return register_broker(
        image, request, cluster_id="C", next_offset=image.offset + 1, is_alive=is_alive, topic_configs=topic_configs()
    )


def send_heartbeat(
    image: MetadataImage, broker_id: int, offset: int = 1000, liveness: BrokerLiveness | None = None, **wants: bool
) -> ControllerResult[BrokerHeartbeatResponse]:
    epoch = image.brokers[broker_id].epoch
    request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=offset, **wants)
    return heartbeat(image, request, liveness or BrokerLiveness(9000), topic_configs(), image.offset + 1)


def error_code_of(call: object) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()  # type: ignore[operator]
    return caught.value.code


def test_new_broker_is_fenced_and_its_broker_epoch_is_its_registration_offset() -> None:
    image = cluster_image(brokers="1")
    result = register(image, 4)
    assert result.response.broker_epoch == 501
    broker = apply_result(image, result).brokers[4]
    assert (broker.epoch, broker.fenced) == (501, True)


def test_broker_epoch_is_the_registration_offset_even_if_other_records_precede_the_registration_record() -> None:
    image = cluster_image(partition_image("12", "12", 1), partition_image("12", "12", 2), brokers="12")
    result = register(image, 1)
    assert len(result.records) == 3
    assert result.response.broker_epoch == apply_result(image, result).brokers[1].epoch == 503


def test_broker_of_another_cluster_is_rejected() -> None:
    request = BrokerRegistrationRequest(broker_id=1, cluster_id="other")
    with pytest.raises(ApiError, match=r"C.*other") as caught:
        register_broker(
            MetadataImage(), request, cluster_id="C", next_offset=0, is_alive=False, topic_configs=topic_configs()
        )
    assert caught.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_duplicate_broker_id_is_rejected_while_first_broker_is_alive() -> None:
    image = cluster_image(brokers="1")
    assert error_code_of(lambda: register(image, 1, is_alive=True)) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert register(image, 1, is_alive=False).records
    repeated = register(image, 1, is_alive=True, incarnation=image.brokers[1].incarnation_id)
    assert (repeated.records, repeated.response.broker_epoch) == ([], 101)


def test_broker_that_returns_after_a_clean_shutdown_stays_in_elr() -> None:
    image = cluster_image(partition_image("12", "12", 1), brokers="12")
    assert describe_partition(apply_result(image, register(image, 1, previous=101))) == "2/2/1/"


def test_broker_that_returns_after_an_unclean_shutdown_leaves_elr() -> None:
    """Rule R6 in docs/broker.md: after an unclean shutdown, the broker may have lost acknowledged records."""
    image = cluster_image(partition_image("12", "12", 1), brokers="12")
    assert describe_partition(apply_result(image, register(image, 1, previous=-1))) == "2/2//"
    assert describe_partition(apply_result(image, register(image, 1, previous=99))) == "2/2//"


def test_restarted_broker_stays_in_the_isr_of_a_partition_without_other_replicas() -> None:
    image = cluster_image(partition_image("1", "1", 1), brokers="1")
    assert len(register(image, 1).records) == 1


def test_broker_is_unfenced_after_it_has_read_its_registration_record() -> None:
    """Rule R11 in docs/broker.md: a broker can be elected leader only after it has caught up with the metadata log."""
    image = cluster_image(partition_image("12", "", -1, elr="12"), brokers="12", fenced="1")
    late = send_heartbeat(image, 1, offset=100)
    assert (late.response.is_caught_up, late.response.is_fenced, late.records) == (False, True, [])
    result = send_heartbeat(image, 1, offset=101)
    assert not result.response.is_fenced
    assert describe_partition(apply_result(image, result)) == "1/1/2/"


def test_broker_that_requests_fencing_stays_fenced() -> None:
    image = cluster_image(brokers="1", fenced="1")
    assert send_heartbeat(image, 1, want_fence=True).response.is_fenced


def test_unfenced_broker_may_request_fencing() -> None:
    image = cluster_image(partition_image("12", "12", 1), brokers="12")
    assert describe_partition(apply_result(image, send_heartbeat(image, 1, want_fence=True))) == "2/2/1/"


def test_heartbeat_of_earlier_incarnation_is_rejected_with_error_stale_broker_epoch() -> None:
    image = cluster_image(brokers="1")
    request = BrokerHeartbeatRequest(broker_id=1, broker_epoch=55, current_metadata_offset=1000)
    assert (
        error_code_of(lambda: heartbeat(image, request, BrokerLiveness(9000), topic_configs(), 0))
        == ErrorCode.STALE_BROKER_EPOCH
    )


def test_partitions_of_a_fenced_leader_elect_another_replica_or_have_no_leader_if_no_other_replica_exists() -> None:
    image = cluster_image(partition_image("12", "12", 1), partition_image("1", "1", 1), brokers="12")
    fenced = apply_result(image, ControllerResult(None, fence_broker(image, image.brokers[1], topic_configs())))
    assert describe_partition(fenced, 0) == "2/2/1/"
    assert describe_partition(fenced, 1) == "-1//1/1"
    assert fenced.brokers[1].fenced
    back = apply_result(fenced, send_heartbeat(fenced, 1))
    assert describe_partition(back, 1) == "1/1//"
    assert back.topics["t"].partitions[1].leader_epoch == 2


def test_controlled_shutdown_ends_after_all_other_brokers_have_applied_the_new_leaders() -> None:
    """Test rule R13 in docs/broker.md.

    The broker closes its sockets only after every other broker has applied the new leaders.
    """
    image = cluster_image(partition_image("12", "12", 1), brokers="123")
    liveness = BrokerLiveness(9000)
    for broker_id in (1, 2, 3):
        liveness.on_heartbeat(broker_id, 500, 0)
    image = apply_result(image, send_heartbeat(image, 1, liveness=liveness, want_shut_down=True))
    assert image.brokers[1].in_controlled_shutdown
    assert describe_partition(image) == "2/2/1/"
    moved_at = image.offset
    liveness.on_heartbeat(2, moved_at, 0)
    assert not send_heartbeat(image, 1, liveness=liveness, want_shut_down=True).response.should_shut_down
    liveness.on_heartbeat(3, moved_at, 0)
    assert send_heartbeat(image, 1, liveness=liveness, want_shut_down=True).response.should_shut_down


def test_fenced_broker_may_shut_down_immediately() -> None:
    image = cluster_image(brokers="1", fenced="1")
    assert send_heartbeat(image, 1, want_shut_down=True).response.should_shut_down


def test_unregistered_broker_leaves_isr_and_elr() -> None:
    image = cluster_image(partition_image("12", "12", 1), partition_image("12", "2", 2, elr="1"), brokers="12")
    unregistered = apply_result(image, unregister_broker(image, 1, topic_configs()))
    assert 1 not in unregistered.brokers
    assert [describe_partition(unregistered, 0), describe_partition(unregistered, 1)] == ["2/2//", "2/2//"]
    assert (
        error_code_of(lambda: unregister_broker(unregistered, 1, topic_configs())) == ErrorCode.BROKER_ID_NOT_REGISTERED
    )


class TestLiveness:
    def test_broker_session_expires_without_heartbeats(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.on_registered(1, 0)
        liveness.on_heartbeat(2, 5, 4000)
        assert liveness.next_deadline_ms([1, 2]) == 9001
        assert liveness.stale_brokers([1, 2], 9000) == []
        assert liveness.stale_brokers([1, 2], 9001) == [1]

    def test_broker_that_is_marked_dead_has_no_session_until_its_next_heartbeat(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.on_heartbeat(1, 5, 0)
        liveness.mark_dead(1)
        liveness.mark_dead(7)
        assert not liveness.has_session(1, 1)
        liveness.on_heartbeat(1, 5, 2)
        assert liveness.has_session(1, 3)

    def test_pause_of_the_controller_extends_all_broker_sessions(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.on_heartbeat(1, 5, 0)
        liveness.extend_sessions(20_000)
        assert liveness.has_session(1, 29_000)
        assert not liveness.has_session(1, 29_001)

    def test_unregistered_broker_has_no_session(self) -> None:
        liveness = BrokerLiveness(9000)
        assert not liveness.has_session(1, 0)
        assert liveness.next_deadline_ms([1]) is None
        liveness.on_registered(1, 0)
        liveness.remove(1)
        assert not liveness.has_session(1, 0)

    def test_metadata_offset_of_a_broker_never_decreases(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.on_heartbeat(1, 50, 0)
        liveness.on_heartbeat(1, 40, 1)
        assert liveness.lowest_metadata_offset([1]) == 50
        assert liveness.lowest_metadata_offset([]) > 1 << 60


def test_broker_can_register_again_while_its_old_process_is_in_controlled_shutdown() -> None:
    image = cluster_image(brokers="2")
    image = MetadataImage(offset=500, brokers={**image.brokers, 1: broker_image(1, stopping=True)})
    assert register(image, 1, is_alive=True).records
