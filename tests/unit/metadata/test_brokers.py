"""A broker's life in the controller's eyes: registered, unfenced, silent, stopping, back again, forgotten."""

from __future__ import annotations

import pytest

from headrace_broker.metadata.brokers import fence_broker, heartbeat, register_broker, unregister_broker
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.liveness import BrokerLiveness
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from support.images import after, broker_image, cluster_image, partition_image, rules, shown


def register(
    image: MetadataImage, broker_id: int, *, previous: int = -1, is_alive: bool = False, incarnation: bytes = b"n" * 16
) -> Outcome[BrokerRegistrationResponse]:
    request = BrokerRegistrationRequest(
        broker_id=broker_id, cluster_id="C", incarnation_id=incarnation, previous_broker_epoch=previous
    )
    return register_broker(
        image, request, cluster_id="C", next_offset=image.offset + 1, is_alive=is_alive, rules=rules()
    )


def beat(
    image: MetadataImage, broker_id: int, offset: int = 1000, liveness: BrokerLiveness | None = None, **wants: bool
) -> Outcome[BrokerHeartbeatResponse]:
    epoch = image.brokers[broker_id].epoch
    request = BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=offset, **wants)
    return heartbeat(image, request, liveness or BrokerLiveness(9000), rules(), image.offset + 1)


def refusal(call: object) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        call()  # type: ignore[operator]
    return caught.value.code


def test_a_new_broker_is_fenced_and_its_epoch_is_where_its_record_stands() -> None:
    image = cluster_image(brokers="1")
    outcome = register(image, 4)
    assert outcome.response.broker_epoch == 501
    broker = after(image, outcome).brokers[4]
    assert (broker.epoch, broker.fenced) == (501, True)


def test_the_epoch_is_right_with_records_before_it() -> None:
    image = cluster_image(partition_image("12", "12", 1), partition_image("12", "12", 2), brokers="12")
    outcome = register(image, 1)
    assert len(outcome.records) == 3
    assert outcome.response.broker_epoch == after(image, outcome).brokers[1].epoch == 503


def test_another_cluster_is_refused_by_name() -> None:
    request = BrokerRegistrationRequest(broker_id=1, cluster_id="other")
    with pytest.raises(ApiError, match=r"C.*other") as caught:
        register_broker(MetadataImage(), request, cluster_id="C", next_offset=0, is_alive=False, rules=rules())
    assert caught.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_a_second_broker_of_the_same_id_is_refused_while_the_first_lives() -> None:
    image = cluster_image(brokers="1")
    assert refusal(lambda: register(image, 1, is_alive=True)) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert register(image, 1, is_alive=False).records
    repeated = register(image, 1, is_alive=True, incarnation=image.brokers[1].incarnation_id)
    assert (repeated.records, repeated.response.broker_epoch) == ([], 101)


def test_who_comes_back_after_a_clean_stop_stays_eligible() -> None:
    image = cluster_image(partition_image("12", "12", 1), brokers="12")
    assert shown(after(image, register(image, 1, previous=101))) == "2/2/1/"


def test_who_comes_back_without_its_memory_is_eligible_for_nothing() -> None:
    """R6: a stop that was not clean may have cost it what it had acknowledged."""
    image = cluster_image(partition_image("12", "12", 1), brokers="12")
    assert shown(after(image, register(image, 1, previous=-1))) == "2/2//"
    assert shown(after(image, register(image, 1, previous=99))) == "2/2//"


def test_the_only_replica_stays_where_it_is() -> None:
    image = cluster_image(partition_image("1", "1", 1), brokers="1")
    assert len(register(image, 1).records) == 1


def test_a_broker_is_unfenced_when_it_has_read_its_own_registration() -> None:
    """R11."""
    image = cluster_image(partition_image("12", "", -1, elr="12"), brokers="12", fenced="1")
    late = beat(image, 1, offset=100)
    assert (late.response.is_caught_up, late.response.is_fenced, late.records) == (False, True, [])
    outcome = beat(image, 1, offset=101)
    assert not outcome.response.is_fenced
    assert shown(after(image, outcome)) == "1/1/2/"


def test_a_broker_that_wants_to_stay_fenced_does() -> None:
    image = cluster_image(brokers="1", fenced="1")
    assert beat(image, 1, want_fence=True).response.is_fenced


def test_an_unfenced_broker_may_ask_to_be_fenced() -> None:
    image = cluster_image(partition_image("12", "12", 1), brokers="12")
    assert shown(after(image, beat(image, 1, want_fence=True))) == "2/2/1/"


def test_an_old_incarnation_hears_that_it_is_one() -> None:
    image = cluster_image(brokers="1")
    request = BrokerHeartbeatRequest(broker_id=1, broker_epoch=55, current_metadata_offset=1000)
    assert refusal(lambda: heartbeat(image, request, BrokerLiveness(9000), rules(), 0)) == ErrorCode.STALE_BROKER_EPOCH


def test_fencing_gives_its_partitions_to_others_and_a_sole_one_to_nobody() -> None:
    image = cluster_image(partition_image("12", "12", 1), partition_image("1", "1", 1), brokers="12")
    fenced = after(image, Outcome(None, fence_broker(image, image.brokers[1], rules())))
    assert shown(fenced, 0) == "2/2/1/"
    assert shown(fenced, 1) == "-1//1/1"
    assert fenced.brokers[1].fenced
    back = after(fenced, beat(fenced, 1))
    assert shown(back, 1) == "1/1//"
    assert back.topics["t"].partitions[1].leader_epoch == 2


def test_a_stop_moves_leaders_then_waits_until_all_others_have_seen_it() -> None:
    """R13: the sockets close when nobody needs them any more."""
    image = cluster_image(partition_image("12", "12", 1), brokers="123")
    liveness = BrokerLiveness(9000)
    for broker_id in (1, 2, 3):
        liveness.heard(broker_id, 500, 0)
    image = after(image, beat(image, 1, liveness=liveness, want_shut_down=True))
    assert image.brokers[1].in_controlled_shutdown
    assert shown(image) == "2/2/1/"
    moved_at = image.offset
    liveness.heard(2, moved_at, 0)
    assert not beat(image, 1, liveness=liveness, want_shut_down=True).response.should_shut_down
    liveness.heard(3, moved_at, 0)
    assert beat(image, 1, liveness=liveness, want_shut_down=True).response.should_shut_down


def test_a_fenced_broker_may_stop_at_once() -> None:
    image = cluster_image(brokers="1", fenced="1")
    assert beat(image, 1, want_shut_down=True).response.should_shut_down


def test_a_forgotten_broker_leads_nothing_and_is_eligible_for_nothing() -> None:
    image = cluster_image(partition_image("12", "12", 1), partition_image("12", "2", 2, elr="1"), brokers="12")
    gone = after(image, unregister_broker(image, 1, rules()))
    assert 1 not in gone.brokers
    assert [shown(gone, 0), shown(gone, 1)] == ["2/2//", "2/2//"]
    assert refusal(lambda: unregister_broker(gone, 1, rules())) == ErrorCode.BROKER_ID_NOT_REGISTERED


class TestLiveness:
    def test_a_session_ends_when_nothing_is_heard(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.registered(1, 0)
        liveness.heard(2, 5, 4000)
        assert liveness.next_deadline_ms([1, 2]) == 9001
        assert liveness.stale([1, 2], 9000) == []
        assert liveness.stale([1, 2], 9001) == [1]

    def test_the_dead_have_no_session_until_they_are_heard_again(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.heard(1, 5, 0)
        liveness.dead(1)
        liveness.dead(7)
        assert not liveness.has_session(1, 1)
        liveness.heard(1, 5, 2)
        assert liveness.has_session(1, 3)

    def test_a_controller_that_was_held_up_blames_nobody(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.heard(1, 5, 0)
        liveness.excuse(20_000)
        assert liveness.has_session(1, 29_000)
        assert not liveness.has_session(1, 29_001)

    def test_what_is_not_known_is_not_alive(self) -> None:
        liveness = BrokerLiveness(9000)
        assert not liveness.has_session(1, 0)
        assert liveness.next_deadline_ms([1]) is None
        liveness.registered(1, 0)
        liveness.forget(1)
        assert not liveness.has_session(1, 0)

    def test_offsets_never_go_back(self) -> None:
        liveness = BrokerLiveness(9000)
        liveness.heard(1, 50, 0)
        liveness.heard(1, 40, 1)
        assert liveness.lowest_metadata_offset([1]) == 50
        assert liveness.lowest_metadata_offset([]) > 1 << 60


def test_brokers_in_shutdown_do_not_keep_their_id_from_a_successor() -> None:
    image = cluster_image(brokers="2")
    image = MetadataImage(offset=500, brokers={**image.brokers, 1: broker_image(1, stopping=True)})
    assert register(image, 1, is_alive=True).records
