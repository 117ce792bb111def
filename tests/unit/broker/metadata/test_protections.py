"""Tests that the image contains ACLs, SCRAM credentials, quotas and delegation tokens until they are removed."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_broker.metadata.delta import apply_records
from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from headrace_broker.metadata.protections import describe
from headrace_broker.metadata.snapshots import image_from_records, image_records
from headrace_broker.protocol.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EntityData,
    MetadataRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

ACL_ID = bytes(15) + b"\1"


def image_of(*records: MetadataRecord, base: MetadataImage | None = None) -> MetadataImage:
    return apply_records(base or MetadataImage(), records, offset=7, epoch=1)


def quota(user: str | None, *, is_removed: bool = False, key: str = "producer_byte_rate") -> ClientQuotaRecord:
    entity = [EntityData(entity_type="user", entity_name=user)]
    return ClientQuotaRecord(entity=entity, key=key, value=1.0, remove=is_removed)


def broker_config(key: str, value: str | None, broker: str = "1") -> ConfigRecord:
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource_name=broker, name=key, value=value)


CASES: list[tuple[MetadataRecord, MetadataRecord, str]] = [
    (
        AccessControlEntryRecord(id=ACL_ID, resource_name="t", principal="User:a", host="*"),
        RemoveAccessControlEntryRecord(id=ACL_ID),
        "ACLs (1)",
    ),
    (
        UserScramCredentialRecord(name="a", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k"),
        RemoveUserScramCredentialRecord(name="a", mechanism=1),
        "SCRAM credentials (1)",
    ),
    (quota("a"), quota("a", is_removed=True), "client quotas (1)"),
    (quota(None), quota(None, is_removed=True), "client quotas (1)"),
    (
        DelegationTokenRecord(owner="a", requester="a", token_id="t"),
        RemoveDelegationTokenRecord(token_id="t"),
        "delegation tokens (1)",
    ),
    (
        broker_config("max.connections.per.ip.overrides", "192.0.2.1:0"),
        broker_config("max.connections.per.ip.overrides", None),
        "the broker config max.connections.per.ip.overrides (1)",
    ),
    (
        broker_config("listener.name.out.ssl.client.auth", "required", broker=""),
        broker_config("listener.name.out.ssl.client.auth", "none", broker=""),
        "the broker config listener.name.out.ssl.client.auth (1)",
    ),
    (
        broker_config("listener.name.client.a.principal.builder.class", "com.example.Builder"),
        broker_config("listener.name.client.a.principal.builder.class", ""),
        "the broker config listener.name.client.a.principal.builder.class (1)",
    ),
    (
        broker_config("max.connections", "100"),
        broker_config("max.connections", "2147483647"),
        "the broker config max.connections (1)",
    ),
    (
        broker_config("max.connections.per.ip", "5", broker=""),
        broker_config("max.connections.per.ip", None, broker=""),
        "the broker config max.connections.per.ip (1)",
    ),
    (
        broker_config("listener.name.client.a.max.connections", "100"),
        broker_config("listener.name.client.a.max.connections", None),
        "the broker config listener.name.client.a.max.connections (1)",
    ),
]


@pytest.mark.parametrize(("created", "removed", "words"), CASES)
def test_protection_is_in_the_image_until_a_record_removes_it(
    created: MetadataRecord, removed: MetadataRecord, words: str
) -> None:
    image = image_of(created)
    assert describe(image.protections) == words
    assert image_of(removed, base=image).protections == {}
    assert describe(image.protections) == words  # the old image is unchanged


@pytest.mark.parametrize(("created", "removed", "words"), CASES)
def test_protection_is_kept_in_snapshots(created: MetadataRecord, removed: MetadataRecord, words: str) -> None:
    image = image_of(created)
    assert image_from_records(image_records(image), image.offset, image.epoch) == image


def test_protections_of_several_kinds_are_counted() -> None:
    records: list[Any] = [quota("a"), quota("b"), quota("b", key="request_percentage"), CASES[0][0], CASES[1][0]]
    assert describe(image_of(*records).protections) == "ACLs (1), SCRAM credentials (1), client quotas (3)"


@pytest.mark.parametrize(
    "record",
    [
        broker_config("log.retention.ms", "1000"),
        broker_config("listener.name.out.ssl.keystore.location", "/k"),
        broker_config("principal.builder.class", ""),
        broker_config("max.connections", "2147483647"),
        broker_config("listener.name.out.max.connections.per.ip", "2147483647"),
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name="super.users", value="User:a"),
    ],
)
def test_other_configs_are_not_protections(record: ConfigRecord) -> None:
    assert image_of(record).protections == {}
