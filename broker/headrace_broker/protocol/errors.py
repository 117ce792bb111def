"""The error codes of the protocol, and the exceptions `ApiError` and `ProtocolError`.

`ErrorCode` has the names and codes of Kafka 4.4, and states for each code whether a client may retry.
An `ApiError` carries the error code that the client receives in the response. `ProtocolError` means
that the peer violated the protocol, so its connection must be closed. `codec.EncodeError` means
that this process built a message that cannot be encoded. It is not a subclass of these exceptions.
"""

from __future__ import annotations

from enum import IntEnum

RETRIABLE = True


class ErrorCode(IntEnum):
    """An error code of the protocol, with Kafka's name for it.

    `message` explains the error in one sentence. It is empty for NONE. `is_retriable` states whether
    the same request may succeed later, perhaps after the client has refreshed its metadata or looked
    up the coordinator again.
    """

    _value_: int
    message: str
    is_retriable: bool

    def __new__(cls, code: int, message: str, is_retriable: bool = False) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.message = message
        member.is_retriable = is_retriable
        return member

    @classmethod
    def from_code(cls, code: int) -> ErrorCode:
        """Return the member for the number `code`, or UNKNOWN_SERVER_ERROR if `code` is unknown."""
        return _BY_CODE.get(code, cls.UNKNOWN_SERVER_ERROR)

    UNKNOWN_SERVER_ERROR = -1, "The server experienced an unexpected error."
    NONE = 0, ""
    OFFSET_OUT_OF_RANGE = 1, "The offset is not between the log start offset and the log end offset."
    CORRUPT_MESSAGE = 2, "The record batch has a wrong checksum or size, or is otherwise corrupt.", RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "This broker does not have the topic or partition.", RETRIABLE
    INVALID_FETCH_SIZE = 4, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at the moment.", RETRIABLE
    NOT_LEADER_OR_FOLLOWER = (
        6,
        "This broker is not the partition's leader, or is not a replica if any replica may handle the request.",
        RETRIABLE,
    )
    REQUEST_TIMED_OUT = 7, "The request took longer than its timeout.", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, "The replica is not available on this broker.", RETRIABLE
    MESSAGE_TOO_LARGE = 10, "The record batch is larger than the topic's max.message.bytes."
    STALE_CONTROLLER_EPOCH = 11, "The controller epoch is stale: another node is the controller now."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata text of a committed offset is too long."
    NETWORK_EXCEPTION = 13, "The server disconnected before the response was received.", RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still loading its partition.", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "The coordinator is not available at the moment.", RETRIABLE
    NOT_COORDINATOR = 16, "This broker is not the coordinator.", RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "The topic name is not valid, or the topic is internal."
    RECORD_LIST_TOO_LARGE = 18, "The record batch is larger than a segment of the log."
    NOT_ENOUGH_REPLICAS = 19, "Not written: fewer replicas are in sync than min.insync.replicas requires.", RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        "Written, but fewer replicas are in sync than min.insync.replicas requires.",
        RETRIABLE,
    )
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The generation is not the group's current generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member's protocol type or protocols do not match the group's."
    INVALID_GROUP_ID = 24, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, "The group has no member with this id."
    INVALID_SESSION_TIMEOUT = (
        26,
        "The session timeout is not between group.min.session.timeout.ms and group.max.session.timeout.ms.",
    )
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; the member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The committed offsets are too large to be stored."
    TOPIC_AUTHORIZATION_FAILED = 29, "Not authorized for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "Not authorized for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "Not authorized for the cluster."
    INVALID_TIMESTAMP = 32, "A record's timestamp is outside of the range that the topic accepts."
    UNSUPPORTED_SASL_MECHANISM = 33, "The broker does not support this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, "The request is not valid in the current state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, "The version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The replica assignment is not valid."
    INVALID_CONFIG = 40, "The configuration is not valid."
    NOT_CONTROLLER = 41, "This node is not the active controller.", RETRIABLE
    INVALID_REQUEST = 42, "The request is inconsistent, or not valid for this broker."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The log's message format does not support this request."
    POLICY_VIOLATION = 44, "The request violates a policy of the broker."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The batch does not continue the producer's sequence numbers."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The batch was already written."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is older than its current epoch in the log."
    INVALID_TXN_STATE = 48, "The request is not valid in the transaction's current state."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is above transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, "Another operation on the same transaction is still running.", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "The marker was sent by a former transaction coordinator."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "Not authorized for the transactional id."
    SECURITY_DISABLED = 54, "Security features are disabled on this broker."
    OPERATION_NOT_ATTEMPTED = 55, "This operation was not attempted, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, "Disk error while accessing the log.", RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, "The log has no state of this producer, or the producer's state has expired."
    REASSIGNMENT_IN_PROGRESS = 60, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are disabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, "The delegation token does not exist."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal neither owns the delegation token nor may renew it."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "Delegation tokens cannot be managed over this kind of connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "Not authorized for the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "The principal's type is not supported."
    NON_EMPTY_GROUP = 68, "The group has members."
    GROUP_ID_NOT_FOUND = 69, "The group does not exist."
    FETCH_SESSION_ID_NOT_FOUND = 70, "The fetch session does not exist or was evicted.", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch session epoch is not the expected one.", RETRIABLE
    LISTENER_NOT_FOUND = 72, "The leader does not have the listener that received the request.", RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "Topic deletion is disabled."
    FENCED_LEADER_EPOCH = 74, "The request's leader epoch is older than the broker's.", RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "The request's leader epoch is newer than the broker's.", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "This version of the request does not support the compression type."
    STALE_BROKER_EPOCH = 77, "The broker epoch is stale: the broker has registered again."
    OFFSET_NOT_AVAILABLE = 78, "The new leader does not know the high watermark yet.", RETRIABLE
    MEMBER_ID_REQUIRED = 79, "Join again with the member id in this response."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not available.", RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "The group has reached its maximum size."
    FENCED_INSTANCE_ID = 82, "Another member now uses the group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No eligible leader is available.", RETRIABLE
    ELECTION_NOT_NEEDED = 84, "The partition needs no leader election.", RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group is subscribed to the topic, so its offsets cannot be deleted."
    INVALID_RECORD = 87, "A record failed the broker's validation."
    UNSTABLE_OFFSET_COMMIT = 88, "A transaction that commits offsets is still open.", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "The quota is exceeded.", RETRIABLE
    PRODUCER_FENCED = 90, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, "The resource does not exist."
    DUPLICATE_RESOURCE = 92, "The request names the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, "The sender or the receiver is not in the voter set."
    INVALID_UPDATE_VERSION = 95, "The update is based on an outdated version."
    FEATURE_UPDATE_FAILED = 96, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The forwarded principal cannot be read."
    SNAPSHOT_NOT_FOUND = 98, "The snapshot does not exist."
    POSITION_OUT_OF_RANGE = 99, "The position is outside of the snapshot."
    UNKNOWN_TOPIC_ID = 100, "This broker has no topic with this id.", RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic id does not match the topic's id on this broker.", RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "The cluster id does not match this cluster's id."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "The transactional id does not exist."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The fetch session mixes requests with and without topic ids.", RETRIABLE
    INELIGIBLE_REPLICA = 107, "The new ISR has a replica that is not eligible for it."
    NEW_LEADER_ELECTED = 108, "The partition change elected a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset is in tiered storage only."
    FENCED_MEMBER_EPOCH = 110, "The member's epoch is fenced: it must abandon its partitions and rejoin."
    UNRELEASED_INSTANCE_ID = 111, "The instance id is in use by a member that has not left the group."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = 113, "The member epoch is out of date: retry with the epoch from the next heartbeat."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request was sent to an endpoint of the wrong type."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "This type of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "The controller id is not known."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription id is not current."
    TELEMETRY_TOO_LARGE = 118, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, "The controller does not accept the broker's registration."
    TRANSACTION_ABORTABLE = 120, "The transaction must be aborted; its transactional id stays usable."
    INVALID_RECORD_STATE = 121, "The record is not in a state that can be acknowledged."
    SHARE_SESSION_NOT_FOUND = 122, "The share session does not exist or was evicted.", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "The share session epoch is not the expected one.", RETRIABLE
    FENCED_STATE_EPOCH = 124, "The state epoch is not the expected one."
    INVALID_VOTER_KEY = 125, "The voter key does not match the replica that received the request."
    DUPLICATE_VOTER = 126, "The voter is already in the voter set."
    VOTER_NOT_FOUND = 127, "The voter is not in the voter set."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, "The client's metadata is out of date: it must start over from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, "The topology epoch is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, "The limit of share sessions is reached.", RETRIABLE
    GROUP_DELETION_FAILED = 134, "The group could not be deleted; its error message gives the reason."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "The topology description could not be updated."
    CONTROLLER_ID_NOT_REGISTERED = 136, "The controller id is not registered."


_BY_CODE: dict[int, ErrorCode] = {int(code): code for code in ErrorCode}


class ProtocolError(Exception):
    """The peer violated the protocol. Its connection must be closed."""


class ApiError(Exception):
    """An error code for a whole response, or for one topic, partition or resource in the response."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        self.code = code
        self.message = message or code.message
        super().__init__(f"{code.name}: {self.message}")

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.is_retriable
