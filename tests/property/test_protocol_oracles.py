"""Compares Headrace's codecs with two independent implementations, kio 0.6.5 and kafka-python 3.0.12 (the oracles).

The tests encode random messages for every API, version and direction. Each oracle that supports the
version decodes these messages, encodes them again, and must return the same bytes. kafka-python has
the same field names, so the tests also compare the fields that it decodes. Versions that neither
oracle supports are tested by round trips and by the unit tests `test_golden_bytes`.
"""

from __future__ import annotations

import importlib
import io
import warnings
from functools import cache
from random import Random
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace_broker.protocol import (
    control_records,
    group_records,
    metadata_records,
    transaction_records,
)
from headrace_broker.protocol.apis import API, Api, ApiKey
from headrace_broker.protocol.codec import decoder, encode, encode_joined
from headrace_broker.protocol.messages import module_name
from headrace_broker.protocol.notation import VERSION_MAX, ZERO_UUID, Message, MessageField, StructField
from support.random_messages import random_message

MESSAGES_PER_VERSION = 20


def versions_of(message: type[Message]) -> range:
    """Return the versions that `message` supports."""
    return range(message.__versions__[0], message.__versions__[1] + 1)


def choose_for_kio(field: MessageField, rng: Random) -> Any:
    """Return a random value that kio can convert to an enum, date or duration.

    Return None if kio does not convert the field.
    """
    if field.kind == "int16" and field.name.endswith("error_code"):
        return rng.randint(-1, 133)
    if field.kind == "int64" and ("time" in field.name or field.name.endswith("_ms")):
        return rng.randint(0, 4_000_000_000_000)
    return None


def kio_path(api_name: str, version: int, direction: str) -> str | None:
    """Return the module and name of kio's class for `version` of a message, or None if kio does not support it."""
    path: str | None = schema_name_map.get(module_name(api_name), {}).get(version, {}).get(EntityType[direction])
    return path


def kio_class(path: str) -> Any:
    """Return the class of kio at `path` ("MODULE:CLASS").

    The function imports only MODULE. The import of all 600 modules of kio is slow.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


@cache
def kafka_python_classes() -> dict[str, Any]:
    """Return kafka-python's message classes by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas with a deprecated function
        for part in ("admin", "consumer", "metadata", "producer", "sasl"):
            importlib.import_module(f"kafka.protocol.{part}")
        from kafka.protocol.api_message import ApiMessage
    found, left = {}, list(ApiMessage.__subclasses__())
    while left:
        each = left.pop()
        found[each.__name__] = each
        left += each.__subclasses__()
    return found


# Fields whose names differ in kafka-python, some because Kafka 4.2 used another name.
RENAMED = {
    "topic_authorized_operations": "authorized_operations",
    "cluster_authorized_operations": "authorized_operations",
    "generation_id_or_member_epoch": "generation_id",
}


def differences(ours: Message, theirs: Any, version: int) -> list[str]:
    """Return the fields that have different values in our message and kafka-python's message."""
    found = []
    for field in ours.__fields__:
        if not field.is_present(version):
            continue
        name = field.name if hasattr(theirs, field.name) else RENAMED[field.name]
        mine, other = getattr(ours, field.name), getattr(theirs, name)
        if isinstance(mine, Message):
            # kafka-python decodes an absent tagged struct as None, and Headrace as the struct's default value.
            found += [] if other is None and mine == type(mine)() else differences(mine, other, version)
        elif isinstance(mine, list) and mine and isinstance(mine[0], Message):
            for one, another in zip(mine, other, strict=True):
                found += differences(one, another, version)
        elif mine != plain(field, other):
            found.append(f"{field.name}: {mine!r} != {other!r}"[:200])
    return found


def plain(field: MessageField, value: Any) -> Any:
    """Convert a kafka-python value to Headrace's representation: UUIDs to 16 bytes, bit fields to a number."""
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, list):
        return [plain(field, each) for each in value]
    if value is None and field.kind == "uuid":
        return ZERO_UUID
    if field.name.endswith("authorized_operations") and not isinstance(value, (bool, int)):
        return -(2**31) if value is None else int(sum(1 << bit for bit in value)) - (2**32 if 31 in value else 0)
    return value


def no_error(field: MessageField, _rng: Random) -> Any:
    """Return error code 0, because clients decode an ApiVersionsResponse with another error code as version 0."""
    return 0 if field.name == "error_code" else None


def kio_versions(api: Api, direction: str) -> list[int]:
    """Return the versions of the API's request or response that kio supports."""
    return [each for each in versions_of(getattr(api, direction)) if kio_path(api.name, each, direction)]


def kafka_python_versions(message: type[Message]) -> list[int]:
    """Return the versions of `message` that kafka-python supports."""
    oracle = kafka_python_classes().get(message.__name__)
    return [each for each in versions_of(message) if oracle is not None and each <= oracle.max_version]


DIRECTIONS = ("request", "response")
EVERY = [pytest.param(api, kind, id=f"{api.name}-{kind}") for api in API.values() for kind in DIRECTIONS]
KIO = [
    pytest.param(api, kind, id=f"{api.name}-{kind}")
    for api in API.values()
    for kind in DIRECTIONS
    if kio_versions(api, kind)
]
KAFKA_PYTHON = [
    pytest.param(api, kind, id=f"{api.name}-{kind}")
    for api in API.values()
    for kind in DIRECTIONS
    if kafka_python_versions(getattr(api, kind))
]

# Versions added in Kafka 4.4, which neither oracle supports.
UNCOVERED = {
    ("ApiVersionsRequest", 5),
    ("ApiVersionsResponse", 5),
    ("DeleteGroupsRequest", 3),
    ("DeleteGroupsResponse", 3),
    ("StreamsGroupDescribeRequest", 1),
    ("StreamsGroupDescribeResponse", 1),
    ("StreamsGroupHeartbeatRequest", 1),
    ("StreamsGroupHeartbeatResponse", 1),
    ("StreamsGroupTopologyDescriptionUpdateRequest", 0),
    ("StreamsGroupTopologyDescriptionUpdateResponse", 0),
    ("TxnOffsetCommitRequest", 6),
    ("TxnOffsetCommitResponse", 6),
    ("UnregisterControllerRequest", 0),
    ("UnregisterControllerResponse", 0),
}


@pytest.mark.parametrize(("api", "direction"), EVERY)
def test_random_protocol_messages_round_trip_in_every_version(api: Api, direction: str) -> None:
    message: type[Message] = getattr(api, direction)
    for version in versions_of(message):
        rng = Random(f"{message.__name__} {version}")
        for _ in range(MESSAGES_PER_VERSION):
            check_round_trip(message, version, rng)


def check_round_trip(message: type[Message], version: int, rng: Random) -> None:
    original = random_message(message, version, rng)
    data = encode_joined(original, version)
    decoded, end = decoder(message, version)(data, 0)
    assert decoded == original
    assert end == len(data)
    assert b"".join(encode(decoded, version)) == data


@pytest.mark.parametrize(("api", "direction"), KIO)
def test_kio_library_decodes_random_messages_and_encodes_them_to_the_same_bytes(api: Api, direction: str) -> None:
    message: type[Message] = getattr(api, direction)
    for version in kio_versions(api, direction):
        rng = Random(f"kio {message.__name__} {version}")
        path = kio_path(api.name, version, direction)
        assert path is not None
        oracle = kio_class(path)
        for _ in range(MESSAGES_PER_VERSION):
            check_kio(oracle, encode_joined(random_message(message, version, rng, choose_for_kio), version))


def check_kio(oracle: Any, data: bytes) -> None:
    theirs, size = entity_reader(oracle)(data, 0)
    encoded = io.BytesIO()
    entity_writer(oracle)(encoded, theirs)
    assert (size, encoded.getvalue()) == (len(data), data)


@pytest.mark.parametrize(("api", "direction"), KAFKA_PYTHON)
def test_kafka_python_decodes_random_messages_and_encodes_them_to_the_same_bytes(api: Api, direction: str) -> None:
    message: type[Message] = getattr(api, direction)
    oracle = kafka_python_classes()[message.__name__]
    for version in kafka_python_versions(message):
        rng = Random(f"kafka-python {message.__name__} {version}")
        for _ in range(MESSAGES_PER_VERSION):
            ours = random_message(message, version, rng, no_error if api.key == ApiKey.API_VERSIONS else None)
            data = encode_joined(ours, version)
            theirs = oracle.decode(data, version=version)
            theirs._header = None  # kafka-python encodes a decoded message only without its header
            assert theirs.encode(version=version) == data
            assert differences(ours, theirs, version) == []


# kafka-python's defaults for these messages differ from Kafka's. Records are empty instead of null, and the replica id
# is a consumer's.
OTHER_DEFAULTS = {"ProduceRequest", "FetchResponse", "ListOffsetsRequest"}


def with_one_of_each(message: type[Message], version: int) -> Any:
    """Return a message with default fields. Each of its arrays of structs contains one struct with default fields."""
    return message(
        **{
            field.name: [with_one_of_each(field.element.message, version)]
            for field in message.__fields__
            if isinstance(field.element, StructField) and field.is_present(version) and field.tag is None
        }
    )


def theirs_with_one_of_each(ours: Message, oracle: Any, version: int) -> Any:
    """Return the kafka-python message that equals `ours`, a message from `with_one_of_each`."""
    values = {
        field.name: [theirs_with_one_of_each(each, oracle._struct.fields[field.name].data_class, version)]
        for field in ours.__fields__
        if isinstance(field.element, StructField)
        for each in getattr(ours, field.name)
    }
    return oracle(version=version, **values)


@pytest.mark.parametrize(("api", "direction"), KAFKA_PYTHON)
def test_field_defaults_of_messages_equal_the_field_defaults_in_kafka_python(api: Api, direction: str) -> None:
    message: type[Message] = getattr(api, direction)
    oracle = kafka_python_classes()[message.__name__]
    equal = []
    for version in kafka_python_versions(message):
        ours = with_one_of_each(message, version)
        equal.append(
            theirs_with_one_of_each(ours, oracle, version).encode(version=version) == encode_joined(ours, version)
        )
    assert not any(equal) if message.__name__ in OTHER_DEFAULTS else all(equal)


def test_each_message_version_has_an_oracle_or_is_a_known_exception() -> None:
    """The constant `UNCOVERED` contains exactly the versions that no oracle supports."""
    uncovered = {
        (getattr(api, kind).__name__, version)
        for api in API.values()
        for kind in DIRECTIONS
        for version in versions_of(getattr(api, kind))
        if not kio_path(api.name, version, kind) and version not in kafka_python_versions(getattr(api, kind))
    }
    assert uncovered == UNCOVERED


@pytest.mark.parametrize("family", [control_records, group_records, metadata_records, transaction_records])
def test_records_of_internal_topics_and_control_records_round_trip_in_every_version(family: ModuleType) -> None:
    for message in vars(family).values():
        if isinstance(message, type) and issubclass(message, Message) and message.__module__ == family.__name__:
            last = message.__versions__[1]
            for version in range(message.__versions__[0], last + 1 if last < VERSION_MAX else 1):
                rng = Random(f"{message.__name__} {version}")
                for _ in range(MESSAGES_PER_VERSION):
                    check_round_trip(message, version, rng)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (control_records.EndTxnMarker, "end_txn_marker"),
        (control_records.LeaderChangeMessage, "leader_change_message"),
        (control_records.SnapshotHeaderRecord, "snapshot_header_record"),
        (control_records.SnapshotFooterRecord, "snapshot_footer_record"),
        (control_records.KRaftVersionRecord, "k_raft_version_record"),
        (control_records.VotersRecord, "voters_record"),
    ],
)
def test_library_kio_decodes_control_records_and_encodes_them_to_the_same_bytes(
    message: type[Message], name: str
) -> None:
    for version in versions_of(message):
        oracle = kio_class(schema_name_map[name][version][EntityType.data])
        rng = Random(f"kio {name} {version}")
        for _ in range(MESSAGES_PER_VERSION):
            check_kio(oracle, encode_joined(random_message(message, version, rng, choose_for_kio), version))
