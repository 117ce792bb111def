"""The settings that protect a cluster of Apache Kafka, and that headrace does not support yet.

A node must not run without a protection that a user has configured. The image therefore contains the metadata records
that set a protection: ACLs, SCRAM credentials, client quotas, delegation tokens, and the dynamic broker configs in
`PROTECTING_KEYS` and `_CONNECTION_LIMITS`. A node stops if the image contains such a record (see `server.node`). A
record that removes a protection removes it from the image, so a node starts again when the last protection was removed
in Apache Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from headrace_broker.metadata.image import BROKER_RESOURCE
from headrace_broker.protocol.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    MetadataRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

PROTECTING_KEYS = {
    "alter.config.policy.class.name": "this policy for changes of configs",
    "authorizer.class.name": "authorization",
    "client.quota.callback.class": "these quotas",
    "create.topic.policy.class.name": "this policy for new topics",
    "max.connection.creation.rate": "this limit on new connections",
    "max.connections.per.ip.overrides": "these limits on connections",
    "principal.builder.class": "the principals of this class",
    "ssl.client.auth": "client certificates",
    "super.users": "authorization",
}
"""The broker keys that protect a cluster. Each value names the feature that a node lacks, for the error text."""

_CONNECTION_LIMITS = ("max.connections", "max.connections.per.ip")
"""The keys that headrace applies if they are in the properties file, but not if they are set dynamically."""

_UNPROTECTED_VALUES = {
    "max.connection.creation.rate": ("2147483647",),
    "max.connections": ("2147483647",),
    "max.connections.per.ip": ("2147483647",),
    "principal.builder.class": ("org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",),
    "ssl.client.auth": ("none", "requested"),
}
"""The values of these keys that do not protect a cluster."""

_LISTENER_PREFIX = "listener.name."
_LISTENER_DOTS_MAX = 100
"""Limits the work for a key from a request, which may contain thousands of dots."""

Protection = tuple[str, Hashable]
"""(kind of the protection, identity of the protection within its kind)."""


def has_protecting_value(key: str, value: str) -> bool:
    """Return whether the value of a key that can protect a cluster does so; `key` has no listener prefix."""
    return bool(value) and value not in _UNPROTECTED_VALUES.get(key, ())


def split_listener_prefix(key: str) -> list[tuple[str | None, str]]:
    """Split `listener.name.<name>.<key>` into the listener's name in upper case, and the key.

    The names of listeners may contain dots. The result contains each possible split, with the shortest name first. If
    the key has no such prefix, the result is [(None, key)].
    """
    if not key.startswith(_LISTENER_PREFIX):
        return [(None, key)]
    parts = key.removeprefix(_LISTENER_PREFIX).split(".", _LISTENER_DOTS_MAX)
    return [(".".join(parts[:count]).upper(), ".".join(parts[count:])) for count in range(1, len(parts))]


def protection_of(record: MetadataRecord) -> tuple[Protection, bool] | None:
    """Return the protection that a record changes, and whether the record sets it (True) or removes it (False).

    Return None if the record changes no protection.
    """
    find = _FINDERS.get(type(record))
    return None if find is None else find(record)


def protections_in(records: Iterable[MetadataRecord]) -> set[Protection]:
    """Return the protections that are set after these records."""
    found: set[Protection] = set()
    for record in records:
        if (change := protection_of(record)) is not None:
            protection, is_set = change
            (found.add if is_set else found.discard)(protection)
    return found


def describe(protections: Iterable[Protection]) -> str:
    """Return the kinds of the protections and their numbers, for example `ACLs (3), client quotas (1)`."""
    counts = Counter(kind for kind, _ in protections)
    return ", ".join(f"{kind} ({number})" for kind, number in sorted(counts.items()))


def refusal_reason(protections: Iterable[Protection], offset: int) -> str:
    """Return why a node does not run with the metadata up to `offset`, which contains these protections."""
    return (
        f"the metadata log contains {describe(protections)} at offset {offset}. headrace does not support them "
        "yet, and would run the cluster without them. Use Apache Kafka for this cluster, or remove the protection "
        "with Apache Kafka's tools first"
    )


def _config(record: ConfigRecord) -> tuple[Protection, bool] | None:
    if record.resource_type != BROKER_RESOURCE:
        return None
    for _, key in split_listener_prefix(record.name):
        if key in PROTECTING_KEYS or key in _CONNECTION_LIMITS:
            protection = (f"the broker config {record.name}", record.resource_name)
            return protection, has_protecting_value(key, record.value or "")
    return None


def _quota(record: ClientQuotaRecord) -> tuple[Protection, bool]:
    entity = frozenset((item.entity_type, item.entity_name) for item in record.entity)
    return ("client quotas", (entity, record.key)), not record.remove


_FINDERS: dict[type, Callable[[Any], tuple[Protection, bool] | None]] = {
    AccessControlEntryRecord: lambda record: (("ACLs", record.id), True),
    RemoveAccessControlEntryRecord: lambda record: (("ACLs", record.id), False),
    UserScramCredentialRecord: lambda record: (("SCRAM credentials", (record.name, record.mechanism)), True),
    RemoveUserScramCredentialRecord: lambda record: (("SCRAM credentials", (record.name, record.mechanism)), False),
    DelegationTokenRecord: lambda record: (("delegation tokens", record.token_id), True),
    RemoveDelegationTokenRecord: lambda record: (("delegation tokens", record.token_id), False),
    ClientQuotaRecord: _quota,
    ConfigRecord: _config,
}
