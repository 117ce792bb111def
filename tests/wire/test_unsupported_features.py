"""Tests of requests for unsupported features. The broker responds like an Apache Kafka broker that does not use them.

Tools and user interfaces send such requests when they start, and would fail if the broker closed the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    alter_client_quotas,
    alter_configs,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_producers,
    describe_user_scram_credentials,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_config_resources,
    list_transactions,
    write_txn_markers,
)
from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest
from headrace_broker.protocol.notation import Request
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, create_topic

TOPIC_TYPE, BROKER_TYPE, LOGGER_TYPE, CLIENT_METRICS_TYPE, GROUP_TYPE = 2, 4, 8, 16, 32
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("unsupported")) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as connection:
        yield connection


def test_describe_acls_returns_security_disabled(client: RawClient) -> None:
    response = client.call(
        describe_acls.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
        3,
    )
    assert response.error_code == ErrorCode.SECURITY_DISABLED
    assert response.error_message == "No Authorizer is configured on the broker"


def test_create_acls_returns_security_disabled_for_each_acl(client: RawClient) -> None:
    creation = create_acls.AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
    )
    response = client.call(create_acls.CreateAclsRequest(creations=[creation] * 2), 3)
    assert [(item.error_code, item.error_message) for item in response.results] == [
        (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    ] * 2


def test_delete_acls_returns_security_disabled_for_each_filter(client: RawClient) -> None:
    acl_filter = delete_acls.DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    response = client.call(delete_acls.DeleteAclsRequest(filters=[acl_filter] * 2), 3)
    assert [(item.error_code, item.error_message) for item in response.filter_results] == [
        (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    ] * 2


def test_describe_client_quotas_returns_no_entries(client: RawClient) -> None:
    response = client.call(
        describe_client_quotas.DescribeClientQuotasRequest(components=[_component("user", SPECIFIED)]), 1
    )
    assert (response.error_code, response.entries) == (ErrorCode.NONE, [])


def _component(entity_type: str, match_type: int, match: str | None = None) -> describe_client_quotas.ComponentData:
    return describe_client_quotas.ComponentData(entity_type=entity_type, match_type=match_type, match=match)


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([_component("", DEFAULT)], ErrorCode.INVALID_REQUEST, "Invalid empty entity type."),
        ([_component("group", DEFAULT)], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        (
            [_component("user", DEFAULT), _component("user", SPECIFIED)],
            ErrorCode.INVALID_REQUEST,
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            [_component("user", DEFAULT), _component("ip", SPECIFIED)],
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        ),
        ([_component("user", 7)], ErrorCode.INVALID_REQUEST, "Unknown match type 7"),
        (
            [_component("user", EXACT)],
            ErrorCode.INVALID_REQUEST,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [_component("user", DEFAULT, "x")],
            ErrorCode.INVALID_REQUEST,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
    ],
)
def test_describe_client_quotas_rejects_invalid_filters_with_kafkas_messages(
    client: RawClient, components: list[describe_client_quotas.ComponentData], code: ErrorCode, message: str
) -> None:
    response = client.call(describe_client_quotas.DescribeClientQuotasRequest(components=components), 1)
    assert (response.error_code, response.error_message, response.entries) == (code, message, None)


def test_describe_user_scram_credentials_returns_no_users(client: RawClient) -> None:
    request = describe_user_scram_credentials.DescribeUserScramCredentialsRequest
    response = client.call(request(users=None), 0)
    assert (response.error_code, response.results) == (ErrorCode.NONE, [])
    names = [describe_user_scram_credentials.UserName(name=name) for name in ("a", "b", "b")]
    assert [(item.user, item.error_code) for item in client.call(request(users=names), 0).results] == [
        ("a", ErrorCode.RESOURCE_NOT_FOUND),
        ("b", ErrorCode.DUPLICATE_RESOURCE),
    ]


@pytest.mark.parametrize(
    "request_type",
    [
        alter_client_quotas.AlterClientQuotasRequest,
        alter_user_scram_credentials.AlterUserScramCredentialsRequest,
        create_delegation_token.CreateDelegationTokenRequest,
    ],
)
def test_request_that_sets_an_unsupported_protection_is_not_offered_and_closes_the_connection(
    client: RawClient, request_type: type[Request[Any]]
) -> None:
    versions = client.call(api_versions.ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3)
    assert request_type.__api_key__ not in {item.api_key for item in versions.api_keys}
    client.send(request_type(), request_type.__versions__[1])
    assert client.is_closed()


def test_client_that_alters_scram_credentials_receives_an_error(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    user = UserScramCredentialUpsertion("a", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"password")
    (future,) = admin.alter_user_scram_credentials([user]).values()
    with pytest.raises(KafkaException, match="not supported"):
        future.result(20)


@pytest.mark.parametrize(
    ("name", "value", "lacking"),
    [
        ("max.connections.per.ip.overrides", "192.0.2.1:0", "these limits on connections"),
        ("listener.name.plaintext.ssl.client.auth", "required", "client certificates"),
        ("listener.name.plaintext.ssl.keystore.location", "/k", "TLS and SASL"),
        ("sasl.enabled.mechanisms", "PLAIN", "TLS and SASL"),
        ("principal.builder.class", "com.example.Builder", "the principals of this class"),
    ],
)
@pytest.mark.parametrize("broker_name", ["1", ""])
def test_dynamic_config_that_sets_an_unsupported_protection_is_refused(
    client: RawClient, name: str, value: str, lacking: str, broker_name: str
) -> None:
    label = "Broker 1" if broker_name else "Cluster-wide broker default"
    text = f"{label}: {name} is not supported yet: headrace would run without {lacking}"
    altered = incremental_alter_configs.AlterableConfig(name=name, config_operation=0, value=value)
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=BROKER_TYPE, resource_name=broker_name, configs=[altered]
    )
    (result,) = client.call(incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_CONFIG, text)
    replaced = alter_configs.AlterConfigsResource(
        resource_type=BROKER_TYPE,
        resource_name=broker_name,
        configs=[alter_configs.AlterableConfig(name=name, value=value)],
    )
    (result,) = client.call(alter_configs.AlterConfigsRequest(resources=[replaced]), 2).responses
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_CONFIG, text)


def test_list_transactions_returns_no_transactions_and_returns_the_unknown_state_filters(client: RawClient) -> None:
    request = list_transactions.ListTransactionsRequest
    response = client.call(request(state_filters=["Ongoing", "Bogus"]), 1)
    assert (response.error_code, response.unknown_state_filters, response.transaction_states) == (0, ["Bogus"], [])
    assert client.call(request(transactional_id_pattern="["), 2).error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_describe_producers_returns_the_producer_state_of_the_leader(broker: BrokerProcess, client: RawClient) -> None:
    create_topic(client, "produced")
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for _ in range(3):
        producer.produce("produced", b"v")
        producer.flush()
    response = client.call(
        describe_producers.DescribeProducersRequest(
            topics=[
                describe_producers.TopicRequest(name="produced", partition_indexes=[0, 5]),
                describe_producers.TopicRequest(name="missing", partition_indexes=[0]),
                describe_producers.TopicRequest(name="b@d", partition_indexes=[0]),
            ]
        ),
        0,
    )
    found = {(topic.name, item.partition_index): item for topic in response.topics for item in topic.partitions}
    (state,) = found["produced", 0].active_producers
    assert (state.producer_epoch, state.last_sequence, state.current_txn_start_offset) == (0, 2, -1)
    assert state.producer_id >= 0
    assert state.last_timestamp > 0
    assert {key: item.error_code for key, item in found.items()} == {
        ("produced", 0): ErrorCode.NONE,
        ("produced", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("b@d", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


def test_list_config_resources_lists_topics_brokers_and_loggers(client: RawClient) -> None:
    create_topic(client, "listed")
    request = list_config_resources.ListConfigResourcesRequest
    assert client.call(request(), 0).config_resources == []  # version 0 lists only client metrics
    found = {(item.resource_type, item.resource_name) for item in client.call(request(), 1).config_resources}
    assert {(TOPIC_TYPE, "listed"), (BROKER_TYPE, "1"), (LOGGER_TYPE, "1")} <= found
    brokers = client.call(request(resource_types=[BROKER_TYPE]), 1)
    assert [(item.resource_type, item.resource_name) for item in brokers.config_resources] == [(BROKER_TYPE, "1")]
    assert client.call(request(resource_types=[99]), 1).error_code == ErrorCode.UNSUPPORTED_VERSION


def _describe(client: RawClient, resource_type: int, name: str) -> describe_configs.DescribeConfigsResult:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    return client.call(request, 4).results[0]


@pytest.mark.parametrize(
    ("resource_type", "name", "config", "value"),
    [
        (GROUP_TYPE, "any-group", "consumer.session.timeout.ms", "45000"),
        (GROUP_TYPE, "any-group", "share.isolation.level", "read_uncommitted"),
        (CLIENT_METRICS_TYPE, "any-subscription", "interval.ms", "300000"),
        (LOGGER_TYPE, "1", "root", "INFO"),
    ],
)
def test_configs_of_groups_and_of_client_metrics_and_of_loggers_are_described_as_read_only(
    client: RawClient, resource_type: int, name: str, config: str, value: str
) -> None:
    result = _describe(client, resource_type, name)
    assert result.error_code == ErrorCode.NONE
    (found,) = [item for item in result.configs if item.name == config]
    assert (found.value, found.read_only) == (value, True)


@pytest.mark.parametrize(
    ("resource_type", "name", "message"),
    [
        (GROUP_TYPE, "", "Group name must not be empty"),
        (CLIENT_METRICS_TYPE, "", "Client metrics subscription name must not be empty"),
        (LOGGER_TYPE, "", "Broker id must not be empty"),
        (LOGGER_TYPE, "7", "Unexpected broker id, expected 1 but received 7"),
        (BROKER_TYPE, "x", "Broker id must be an integer, but it is: x"),
        (3, "x", "Unexpected resource type 3 for resource x"),
    ],
)
def test_describe_configs_of_an_invalid_resource_returns_kafkas_error(
    client: RawClient, resource_type: int, name: str, message: str
) -> None:
    result = _describe(client, resource_type, name)
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_REQUEST, message)


def test_transactional_producer_fails_with_the_brokers_message_before_its_timeout(broker: BrokerProcess) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "t"})
    with pytest.raises(KafkaException) as failure:
        producer.init_transactions(30)
    error = failure.value.args[0]
    assert error.fatal()
    assert "Transactions are not supported by this broker yet: remove transactional.id" in error.str()


def test_transaction_requests_of_named_clients_return_the_error_that_librdkafka_or_newer_clients_show(
    client: RawClient,
) -> None:
    client.call(ApiVersionsRequest(client_software_name="librdkafka", client_software_version="2"), 3)
    errors = {1: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 2: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    for version in range(1, 4):
        found = client.call(find_coordinator.FindCoordinatorRequest(key="t", key_type=1), version)
        assert found.error_code == errors.get(version, ErrorCode.INVALID_TXN_STATE)
        assert found.error_message.startswith("Transactions are not supported by this broker yet")
    for version in range(4, 7):
        request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["t"], key_type=1)
        (item,) = client.call(request, version).coordinators
        assert item.error_code == ErrorCode.INVALID_TXN_STATE
        assert item.error_message.startswith("Transactions are not supported by this broker yet")


def test_transaction_requests_of_a_client_without_a_name_find_a_coordinator_that_returns_invalid_txn_state(
    client: RawClient,
) -> None:
    found = client.call(find_coordinator.FindCoordinatorRequest(key="t", key_type=1), 2)
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, 1)
    for version in range(6):
        request = init_producer_id.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        response = client.call(request, version)
        assert (response.error_code, response.producer_id, response.producer_epoch) == (
            ErrorCode.INVALID_TXN_STATE,
            -1,
            -1,
        )


@pytest.mark.parametrize(
    "fields",
    [{"transactional_id": ""}, {"producer_id": 5, "producer_epoch": -1}, {"producer_id": -1, "producer_epoch": 3}],
)
def test_init_producer_id_request_with_inconsistent_fields_is_invalid(
    client: RawClient, fields: dict[str, Any]
) -> None:
    request = init_producer_id.InitProducerIdRequest(
        **{"transactional_id": None, "transaction_timeout_ms": 1000, **fields}
    )
    assert client.call(request, 4).error_code == ErrorCode.INVALID_REQUEST


def test_write_txn_markers_request_returns_invalid_txn_state_for_each_partition(client: RawClient) -> None:
    topic = write_txn_markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 3])
    markers = [
        write_txn_markers.WritableTxnMarker(
            producer_id=number, producer_epoch=0, transaction_result=False, topics=[topic], coordinator_epoch=0
        )
        for number in (7, 8)
    ]
    response = client.call(write_txn_markers.WriteTxnMarkersRequest(markers=markers), 1)
    assert [
        (marker.producer_id, result.name, item.partition_index, item.error_code)
        for marker in response.markers
        for result in marker.topics
        for item in result.partitions
    ] == [(number, "t", index, ErrorCode.INVALID_TXN_STATE) for number in (7, 8) for index in (0, 3)]


def test_coordinator_request_for_a_share_group_is_invalid(client: RawClient) -> None:
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["k"], key_type=2)
    (found,) = client.call(request, 6).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert found.error_message.startswith("Share groups are not supported")


def test_consumer_of_the_consumer_protocol_fails_with_a_fatal_error(broker: BrokerProcess) -> None:
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "new", "group.protocol": "consumer", "log_level": 0}
    )
    consumer.subscribe(["t"])
    message = consumer.poll(30)
    assert message is not None
    assert "API version not supported" in message.error().str()
    consumer.close()


def test_requests_of_the_consumer_protocol_return_unsupported_version(client: RawClient) -> None:
    keys = {
        item.api_key: (item.min_version, item.max_version) for item in client.call(ApiVersionsRequest(), 0).api_keys
    }
    assert (keys[68], keys[69]) == ((0, 1), (0, 1))
    heartbeat = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"], topic_partitions=[]
    )
    describe = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=["g", "g", ""])
    for version in (0, 1):
        assert client.call(heartbeat, version).error_code == ErrorCode.UNSUPPORTED_VERSION
        groups = client.call(describe, version).groups
        assert [(group.group_id, group.error_code) for group in groups] == [
            (name, ErrorCode.UNSUPPORTED_VERSION) for name in ("g", "g", "")
        ]
