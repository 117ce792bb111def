"""Tests of the list of faults that the broker of `headrace.testing` applies to requests."""

from __future__ import annotations

import pytest

from headrace.testing.broker_faults import Delay, Disconnect, Fail, FaultList, find_api, find_error
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode

ERROR = Fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_faults_of_an_api_apply_in_the_order_in_which_they_were_added() -> None:
    faults = FaultList()
    first = faults.add("Produce", ERROR, 2)
    second = faults.add(ApiKey.PRODUCE, Delay(1), None)
    faults.add("Fetch", ERROR, None)
    found = []
    for _ in range(4):
        fault = faults.find(ApiKey.PRODUCE)
        assert fault is not None
        faults.use(fault)
        found.append(fault)
    assert found == [first, first, second, second]


def test_fault_does_not_apply_after_the_end_of_its_with_block() -> None:
    faults = FaultList()
    with faults.add("Fetch", Disconnect(before_request=True), None):
        assert faults.find(ApiKey.FETCH) is not None
    assert faults.find(ApiKey.FETCH) is None


def test_waiting_for_a_fault_that_is_not_applied_in_time_raises_an_error_with_the_api_name() -> None:
    fault = FaultList().add("Fetch", Delay(0.5), None)
    fault.record_applied()
    fault.wait(1)
    with pytest.raises(TimeoutError, match=r"Fetch: the fault was applied to 1 of 2 requests within 0.01 s"):
        fault.wait(2, timeout=0.01)


def test_unknown_api_and_error_names_are_rejected_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'Produced' is not the name of a Kafka API; did you mean 'Produce'\?"):
        find_api("Produced")
    with pytest.raises(ValueError, match="999 is not a Kafka API key"):
        find_api(999)
    with pytest.raises(ValueError, match=r"did you mean 'NOT_LEADER_OR_FOLLOWER'\?"):
        find_error("NOT_LEADER")
    with pytest.raises(ValueError, match="0 is not an error code"):
        find_error(0)
    assert find_error(6) is find_error("NOT_LEADER_OR_FOLLOWER")


def test_error_injection_for_an_unsupported_api_is_rejected_with_a_list_of_supported_apis() -> None:
    faults = FaultList()
    with pytest.raises(ValueError, match=r"error injection is not supported for this API, only for .*Produce"):
        faults.add("ApiVersions", ERROR, None)
    faults.add("ApiVersions", Delay(0.1), 1)


def test_fault_for_zero_requests_is_rejected() -> None:
    with pytest.raises(ValueError, match="times=0"):
        FaultList().add("Fetch", ERROR, 0)
