"""The requests and responses of the protocol, in one module per API.

A module is imported when one of its messages is first used. Classes and fields have Kafka's names
(fields in snake case). Requests and responses can be imported from this package. The messages nested in
them must be imported from the API's module, because several APIs have a nested message `TopicData`::

    from headrace_broker.protocol.messages import MetadataRequest
    from headrace_broker.protocol.messages.metadata import MetadataRequestTopic

If a request and its response nest different messages of the same name, the names of the nested
classes start with the outer message's name (`VoteRequestTopicData`). To add an API, write a module
for the API's messages and add the API to the imports below and to `apis`.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest as AddOffsetsToTxnRequest
    from headrace_broker.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnResponse as AddOffsetsToTxnResponse
    from headrace_broker.protocol.messages.add_partitions_to_txn import (
        AddPartitionsToTxnRequest as AddPartitionsToTxnRequest,
    )
    from headrace_broker.protocol.messages.add_partitions_to_txn import (
        AddPartitionsToTxnResponse as AddPartitionsToTxnResponse,
    )
    from headrace_broker.protocol.messages.add_raft_voter import AddRaftVoterRequest as AddRaftVoterRequest
    from headrace_broker.protocol.messages.add_raft_voter import AddRaftVoterResponse as AddRaftVoterResponse
    from headrace_broker.protocol.messages.allocate_producer_ids import (
        AllocateProducerIdsRequest as AllocateProducerIdsRequest,
    )
    from headrace_broker.protocol.messages.allocate_producer_ids import (
        AllocateProducerIdsResponse as AllocateProducerIdsResponse,
    )
    from headrace_broker.protocol.messages.alter_client_quotas import (
        AlterClientQuotasRequest as AlterClientQuotasRequest,
    )
    from headrace_broker.protocol.messages.alter_client_quotas import (
        AlterClientQuotasResponse as AlterClientQuotasResponse,
    )
    from headrace_broker.protocol.messages.alter_configs import AlterConfigsRequest as AlterConfigsRequest
    from headrace_broker.protocol.messages.alter_configs import AlterConfigsResponse as AlterConfigsResponse
    from headrace_broker.protocol.messages.alter_partition import AlterPartitionRequest as AlterPartitionRequest
    from headrace_broker.protocol.messages.alter_partition import AlterPartitionResponse as AlterPartitionResponse
    from headrace_broker.protocol.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest as AlterPartitionReassignmentsRequest,
    )
    from headrace_broker.protocol.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsResponse as AlterPartitionReassignmentsResponse,
    )
    from headrace_broker.protocol.messages.alter_replica_log_dirs import (
        AlterReplicaLogDirsRequest as AlterReplicaLogDirsRequest,
    )
    from headrace_broker.protocol.messages.alter_replica_log_dirs import (
        AlterReplicaLogDirsResponse as AlterReplicaLogDirsResponse,
    )
    from headrace_broker.protocol.messages.alter_share_group_offsets import (
        AlterShareGroupOffsetsRequest as AlterShareGroupOffsetsRequest,
    )
    from headrace_broker.protocol.messages.alter_share_group_offsets import (
        AlterShareGroupOffsetsResponse as AlterShareGroupOffsetsResponse,
    )
    from headrace_broker.protocol.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsRequest as AlterUserScramCredentialsRequest,
    )
    from headrace_broker.protocol.messages.alter_user_scram_credentials import (
        AlterUserScramCredentialsResponse as AlterUserScramCredentialsResponse,
    )
    from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest as ApiVersionsRequest
    from headrace_broker.protocol.messages.api_versions import ApiVersionsResponse as ApiVersionsResponse
    from headrace_broker.protocol.messages.assign_replicas_to_dirs import (
        AssignReplicasToDirsRequest as AssignReplicasToDirsRequest,
    )
    from headrace_broker.protocol.messages.assign_replicas_to_dirs import (
        AssignReplicasToDirsResponse as AssignReplicasToDirsResponse,
    )
    from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest as BeginQuorumEpochRequest
    from headrace_broker.protocol.messages.begin_quorum_epoch import (
        BeginQuorumEpochResponse as BeginQuorumEpochResponse,
    )
    from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest as BrokerHeartbeatRequest
    from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatResponse as BrokerHeartbeatResponse
    from headrace_broker.protocol.messages.broker_registration import (
        BrokerRegistrationRequest as BrokerRegistrationRequest,
    )
    from headrace_broker.protocol.messages.broker_registration import (
        BrokerRegistrationResponse as BrokerRegistrationResponse,
    )
    from headrace_broker.protocol.messages.consumer_group_describe import (
        ConsumerGroupDescribeRequest as ConsumerGroupDescribeRequest,
    )
    from headrace_broker.protocol.messages.consumer_group_describe import (
        ConsumerGroupDescribeResponse as ConsumerGroupDescribeResponse,
    )
    from headrace_broker.protocol.messages.consumer_group_heartbeat import (
        ConsumerGroupHeartbeatRequest as ConsumerGroupHeartbeatRequest,
    )
    from headrace_broker.protocol.messages.consumer_group_heartbeat import (
        ConsumerGroupHeartbeatResponse as ConsumerGroupHeartbeatResponse,
    )
    from headrace_broker.protocol.messages.controller_registration import (
        ControllerRegistrationRequest as ControllerRegistrationRequest,
    )
    from headrace_broker.protocol.messages.controller_registration import (
        ControllerRegistrationResponse as ControllerRegistrationResponse,
    )
    from headrace_broker.protocol.messages.create_acls import CreateAclsRequest as CreateAclsRequest
    from headrace_broker.protocol.messages.create_acls import CreateAclsResponse as CreateAclsResponse
    from headrace_broker.protocol.messages.create_delegation_token import (
        CreateDelegationTokenRequest as CreateDelegationTokenRequest,
    )
    from headrace_broker.protocol.messages.create_delegation_token import (
        CreateDelegationTokenResponse as CreateDelegationTokenResponse,
    )
    from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest as CreatePartitionsRequest
    from headrace_broker.protocol.messages.create_partitions import CreatePartitionsResponse as CreatePartitionsResponse
    from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest as CreateTopicsRequest
    from headrace_broker.protocol.messages.create_topics import CreateTopicsResponse as CreateTopicsResponse
    from headrace_broker.protocol.messages.delete_acls import DeleteAclsRequest as DeleteAclsRequest
    from headrace_broker.protocol.messages.delete_acls import DeleteAclsResponse as DeleteAclsResponse
    from headrace_broker.protocol.messages.delete_groups import DeleteGroupsRequest as DeleteGroupsRequest
    from headrace_broker.protocol.messages.delete_groups import DeleteGroupsResponse as DeleteGroupsResponse
    from headrace_broker.protocol.messages.delete_records import DeleteRecordsRequest as DeleteRecordsRequest
    from headrace_broker.protocol.messages.delete_records import DeleteRecordsResponse as DeleteRecordsResponse
    from headrace_broker.protocol.messages.delete_share_group_offsets import (
        DeleteShareGroupOffsetsRequest as DeleteShareGroupOffsetsRequest,
    )
    from headrace_broker.protocol.messages.delete_share_group_offsets import (
        DeleteShareGroupOffsetsResponse as DeleteShareGroupOffsetsResponse,
    )
    from headrace_broker.protocol.messages.delete_share_group_state import (
        DeleteShareGroupStateRequest as DeleteShareGroupStateRequest,
    )
    from headrace_broker.protocol.messages.delete_share_group_state import (
        DeleteShareGroupStateResponse as DeleteShareGroupStateResponse,
    )
    from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest as DeleteTopicsRequest
    from headrace_broker.protocol.messages.delete_topics import DeleteTopicsResponse as DeleteTopicsResponse
    from headrace_broker.protocol.messages.describe_acls import DescribeAclsRequest as DescribeAclsRequest
    from headrace_broker.protocol.messages.describe_acls import DescribeAclsResponse as DescribeAclsResponse
    from headrace_broker.protocol.messages.describe_client_quotas import (
        DescribeClientQuotasRequest as DescribeClientQuotasRequest,
    )
    from headrace_broker.protocol.messages.describe_client_quotas import (
        DescribeClientQuotasResponse as DescribeClientQuotasResponse,
    )
    from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest as DescribeClusterRequest
    from headrace_broker.protocol.messages.describe_cluster import DescribeClusterResponse as DescribeClusterResponse
    from headrace_broker.protocol.messages.describe_configs import DescribeConfigsRequest as DescribeConfigsRequest
    from headrace_broker.protocol.messages.describe_configs import DescribeConfigsResponse as DescribeConfigsResponse
    from headrace_broker.protocol.messages.describe_delegation_token import (
        DescribeDelegationTokenRequest as DescribeDelegationTokenRequest,
    )
    from headrace_broker.protocol.messages.describe_delegation_token import (
        DescribeDelegationTokenResponse as DescribeDelegationTokenResponse,
    )
    from headrace_broker.protocol.messages.describe_groups import DescribeGroupsRequest as DescribeGroupsRequest
    from headrace_broker.protocol.messages.describe_groups import DescribeGroupsResponse as DescribeGroupsResponse
    from headrace_broker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest as DescribeLogDirsRequest
    from headrace_broker.protocol.messages.describe_log_dirs import DescribeLogDirsResponse as DescribeLogDirsResponse
    from headrace_broker.protocol.messages.describe_producers import (
        DescribeProducersRequest as DescribeProducersRequest,
    )
    from headrace_broker.protocol.messages.describe_producers import (
        DescribeProducersResponse as DescribeProducersResponse,
    )
    from headrace_broker.protocol.messages.describe_quorum import DescribeQuorumRequest as DescribeQuorumRequest
    from headrace_broker.protocol.messages.describe_quorum import DescribeQuorumResponse as DescribeQuorumResponse
    from headrace_broker.protocol.messages.describe_share_group_offsets import (
        DescribeShareGroupOffsetsRequest as DescribeShareGroupOffsetsRequest,
    )
    from headrace_broker.protocol.messages.describe_share_group_offsets import (
        DescribeShareGroupOffsetsResponse as DescribeShareGroupOffsetsResponse,
    )
    from headrace_broker.protocol.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest as DescribeTopicPartitionsRequest,
    )
    from headrace_broker.protocol.messages.describe_topic_partitions import (
        DescribeTopicPartitionsResponse as DescribeTopicPartitionsResponse,
    )
    from headrace_broker.protocol.messages.describe_transactions import (
        DescribeTransactionsRequest as DescribeTransactionsRequest,
    )
    from headrace_broker.protocol.messages.describe_transactions import (
        DescribeTransactionsResponse as DescribeTransactionsResponse,
    )
    from headrace_broker.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest as DescribeUserScramCredentialsRequest,
    )
    from headrace_broker.protocol.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsResponse as DescribeUserScramCredentialsResponse,
    )
    from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest as ElectLeadersRequest
    from headrace_broker.protocol.messages.elect_leaders import ElectLeadersResponse as ElectLeadersResponse
    from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest as EndQuorumEpochRequest
    from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochResponse as EndQuorumEpochResponse
    from headrace_broker.protocol.messages.end_txn import EndTxnRequest as EndTxnRequest
    from headrace_broker.protocol.messages.end_txn import EndTxnResponse as EndTxnResponse
    from headrace_broker.protocol.messages.envelope import EnvelopeRequest as EnvelopeRequest
    from headrace_broker.protocol.messages.envelope import EnvelopeResponse as EnvelopeResponse
    from headrace_broker.protocol.messages.expire_delegation_token import (
        ExpireDelegationTokenRequest as ExpireDelegationTokenRequest,
    )
    from headrace_broker.protocol.messages.expire_delegation_token import (
        ExpireDelegationTokenResponse as ExpireDelegationTokenResponse,
    )
    from headrace_broker.protocol.messages.fetch import FetchRequest as FetchRequest
    from headrace_broker.protocol.messages.fetch import FetchResponse as FetchResponse
    from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest as FetchSnapshotRequest
    from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotResponse as FetchSnapshotResponse
    from headrace_broker.protocol.messages.find_coordinator import FindCoordinatorRequest as FindCoordinatorRequest
    from headrace_broker.protocol.messages.find_coordinator import FindCoordinatorResponse as FindCoordinatorResponse
    from headrace_broker.protocol.messages.get_telemetry_subscriptions import (
        GetTelemetrySubscriptionsRequest as GetTelemetrySubscriptionsRequest,
    )
    from headrace_broker.protocol.messages.get_telemetry_subscriptions import (
        GetTelemetrySubscriptionsResponse as GetTelemetrySubscriptionsResponse,
    )
    from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest as HeartbeatRequest
    from headrace_broker.protocol.messages.heartbeat import HeartbeatResponse as HeartbeatResponse
    from headrace_broker.protocol.messages.incremental_alter_configs import (
        IncrementalAlterConfigsRequest as IncrementalAlterConfigsRequest,
    )
    from headrace_broker.protocol.messages.incremental_alter_configs import (
        IncrementalAlterConfigsResponse as IncrementalAlterConfigsResponse,
    )
    from headrace_broker.protocol.messages.init_producer_id import InitProducerIdRequest as InitProducerIdRequest
    from headrace_broker.protocol.messages.init_producer_id import InitProducerIdResponse as InitProducerIdResponse
    from headrace_broker.protocol.messages.initialize_share_group_state import (
        InitializeShareGroupStateRequest as InitializeShareGroupStateRequest,
    )
    from headrace_broker.protocol.messages.initialize_share_group_state import (
        InitializeShareGroupStateResponse as InitializeShareGroupStateResponse,
    )
    from headrace_broker.protocol.messages.join_group import JoinGroupRequest as JoinGroupRequest
    from headrace_broker.protocol.messages.join_group import JoinGroupResponse as JoinGroupResponse
    from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest as LeaveGroupRequest
    from headrace_broker.protocol.messages.leave_group import LeaveGroupResponse as LeaveGroupResponse
    from headrace_broker.protocol.messages.list_config_resources import (
        ListConfigResourcesRequest as ListConfigResourcesRequest,
    )
    from headrace_broker.protocol.messages.list_config_resources import (
        ListConfigResourcesResponse as ListConfigResourcesResponse,
    )
    from headrace_broker.protocol.messages.list_groups import ListGroupsRequest as ListGroupsRequest
    from headrace_broker.protocol.messages.list_groups import ListGroupsResponse as ListGroupsResponse
    from headrace_broker.protocol.messages.list_offsets import ListOffsetsRequest as ListOffsetsRequest
    from headrace_broker.protocol.messages.list_offsets import ListOffsetsResponse as ListOffsetsResponse
    from headrace_broker.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest as ListPartitionReassignmentsRequest,
    )
    from headrace_broker.protocol.messages.list_partition_reassignments import (
        ListPartitionReassignmentsResponse as ListPartitionReassignmentsResponse,
    )
    from headrace_broker.protocol.messages.list_transactions import ListTransactionsRequest as ListTransactionsRequest
    from headrace_broker.protocol.messages.list_transactions import ListTransactionsResponse as ListTransactionsResponse
    from headrace_broker.protocol.messages.metadata import MetadataRequest as MetadataRequest
    from headrace_broker.protocol.messages.metadata import MetadataResponse as MetadataResponse
    from headrace_broker.protocol.messages.offset_commit import OffsetCommitRequest as OffsetCommitRequest
    from headrace_broker.protocol.messages.offset_commit import OffsetCommitResponse as OffsetCommitResponse
    from headrace_broker.protocol.messages.offset_delete import OffsetDeleteRequest as OffsetDeleteRequest
    from headrace_broker.protocol.messages.offset_delete import OffsetDeleteResponse as OffsetDeleteResponse
    from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequest as OffsetFetchRequest
    from headrace_broker.protocol.messages.offset_fetch import OffsetFetchResponse as OffsetFetchResponse
    from headrace_broker.protocol.messages.offset_for_leader_epoch import (
        OffsetForLeaderEpochRequest as OffsetForLeaderEpochRequest,
    )
    from headrace_broker.protocol.messages.offset_for_leader_epoch import (
        OffsetForLeaderEpochResponse as OffsetForLeaderEpochResponse,
    )
    from headrace_broker.protocol.messages.produce import ProduceRequest as ProduceRequest
    from headrace_broker.protocol.messages.produce import ProduceResponse as ProduceResponse
    from headrace_broker.protocol.messages.push_telemetry import PushTelemetryRequest as PushTelemetryRequest
    from headrace_broker.protocol.messages.push_telemetry import PushTelemetryResponse as PushTelemetryResponse
    from headrace_broker.protocol.messages.read_share_group_state import (
        ReadShareGroupStateRequest as ReadShareGroupStateRequest,
    )
    from headrace_broker.protocol.messages.read_share_group_state import (
        ReadShareGroupStateResponse as ReadShareGroupStateResponse,
    )
    from headrace_broker.protocol.messages.read_share_group_state_summary import (
        ReadShareGroupStateSummaryRequest as ReadShareGroupStateSummaryRequest,
    )
    from headrace_broker.protocol.messages.read_share_group_state_summary import (
        ReadShareGroupStateSummaryResponse as ReadShareGroupStateSummaryResponse,
    )
    from headrace_broker.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest as RemoveRaftVoterRequest
    from headrace_broker.protocol.messages.remove_raft_voter import RemoveRaftVoterResponse as RemoveRaftVoterResponse
    from headrace_broker.protocol.messages.renew_delegation_token import (
        RenewDelegationTokenRequest as RenewDelegationTokenRequest,
    )
    from headrace_broker.protocol.messages.renew_delegation_token import (
        RenewDelegationTokenResponse as RenewDelegationTokenResponse,
    )
    from headrace_broker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest as SaslAuthenticateRequest
    from headrace_broker.protocol.messages.sasl_authenticate import SaslAuthenticateResponse as SaslAuthenticateResponse
    from headrace_broker.protocol.messages.sasl_handshake import SaslHandshakeRequest as SaslHandshakeRequest
    from headrace_broker.protocol.messages.sasl_handshake import SaslHandshakeResponse as SaslHandshakeResponse
    from headrace_broker.protocol.messages.share_acknowledge import ShareAcknowledgeRequest as ShareAcknowledgeRequest
    from headrace_broker.protocol.messages.share_acknowledge import ShareAcknowledgeResponse as ShareAcknowledgeResponse
    from headrace_broker.protocol.messages.share_fetch import ShareFetchRequest as ShareFetchRequest
    from headrace_broker.protocol.messages.share_fetch import ShareFetchResponse as ShareFetchResponse
    from headrace_broker.protocol.messages.share_group_describe import (
        ShareGroupDescribeRequest as ShareGroupDescribeRequest,
    )
    from headrace_broker.protocol.messages.share_group_describe import (
        ShareGroupDescribeResponse as ShareGroupDescribeResponse,
    )
    from headrace_broker.protocol.messages.share_group_heartbeat import (
        ShareGroupHeartbeatRequest as ShareGroupHeartbeatRequest,
    )
    from headrace_broker.protocol.messages.share_group_heartbeat import (
        ShareGroupHeartbeatResponse as ShareGroupHeartbeatResponse,
    )
    from headrace_broker.protocol.messages.streams_group_describe import (
        StreamsGroupDescribeRequest as StreamsGroupDescribeRequest,
    )
    from headrace_broker.protocol.messages.streams_group_describe import (
        StreamsGroupDescribeResponse as StreamsGroupDescribeResponse,
    )
    from headrace_broker.protocol.messages.streams_group_heartbeat import (
        StreamsGroupHeartbeatRequest as StreamsGroupHeartbeatRequest,
    )
    from headrace_broker.protocol.messages.streams_group_heartbeat import (
        StreamsGroupHeartbeatResponse as StreamsGroupHeartbeatResponse,
    )
    from headrace_broker.protocol.messages.streams_group_topology_description_update import (
        StreamsGroupTopologyDescriptionUpdateRequest as StreamsGroupTopologyDescriptionUpdateRequest,
    )
    from headrace_broker.protocol.messages.streams_group_topology_description_update import (
        StreamsGroupTopologyDescriptionUpdateResponse as StreamsGroupTopologyDescriptionUpdateResponse,
    )
    from headrace_broker.protocol.messages.sync_group import SyncGroupRequest as SyncGroupRequest
    from headrace_broker.protocol.messages.sync_group import SyncGroupResponse as SyncGroupResponse
    from headrace_broker.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest as TxnOffsetCommitRequest
    from headrace_broker.protocol.messages.txn_offset_commit import TxnOffsetCommitResponse as TxnOffsetCommitResponse
    from headrace_broker.protocol.messages.unregister_broker import UnregisterBrokerRequest as UnregisterBrokerRequest
    from headrace_broker.protocol.messages.unregister_broker import UnregisterBrokerResponse as UnregisterBrokerResponse
    from headrace_broker.protocol.messages.unregister_controller import (
        UnregisterControllerRequest as UnregisterControllerRequest,
    )
    from headrace_broker.protocol.messages.unregister_controller import (
        UnregisterControllerResponse as UnregisterControllerResponse,
    )
    from headrace_broker.protocol.messages.update_features import UpdateFeaturesRequest as UpdateFeaturesRequest
    from headrace_broker.protocol.messages.update_features import UpdateFeaturesResponse as UpdateFeaturesResponse
    from headrace_broker.protocol.messages.update_raft_voter import UpdateRaftVoterRequest as UpdateRaftVoterRequest
    from headrace_broker.protocol.messages.update_raft_voter import UpdateRaftVoterResponse as UpdateRaftVoterResponse
    from headrace_broker.protocol.messages.vote import VoteRequest as VoteRequest
    from headrace_broker.protocol.messages.vote import VoteResponse as VoteResponse
    from headrace_broker.protocol.messages.write_share_group_state import (
        WriteShareGroupStateRequest as WriteShareGroupStateRequest,
    )
    from headrace_broker.protocol.messages.write_share_group_state import (
        WriteShareGroupStateResponse as WriteShareGroupStateResponse,
    )
    from headrace_broker.protocol.messages.write_txn_markers import WriteTxnMarkersRequest as WriteTxnMarkersRequest
    from headrace_broker.protocol.messages.write_txn_markers import WriteTxnMarkersResponse as WriteTxnMarkersResponse


def module_name(api_name: str) -> str:
    """Return the name of the module with an API's messages, such as "list_offsets" for "ListOffsets"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()


# `__getattr__` is hidden from type checkers, so that they report names which are not imported above.
if not TYPE_CHECKING:

    def __getattr__(name: str):
        for suffix in ("Request", "Response"):
            if name.endswith(suffix):
                path = f"{__name__}.{module_name(name.removesuffix(suffix))}"
                try:
                    message = getattr(import_module(path), name)
                except ModuleNotFoundError as error:
                    if error.name != path:
                        raise
                    break
                globals()[name] = message
                return message
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
