"""Offsets of sink connectors: the committed offsets of their consumer groups in the Kafka cluster (KIP-875)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from headrace.herder.errors import HerderError
from headrace.herder.herder import OffsetPairs
from headrace.runtime import client_configs
from headrace_broker.client.admin import Admin
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import BrokerError, ClientError
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode

CLUSTER_ID_TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 15.0  # limits all requests to brokers that one REST request causes

# The group has members, so the brokers reject changes by clients that are not members.
_GROUP_HAS_MEMBERS = (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)


class GroupOffsets:
    """Reads and alters group offsets. Each request opens an admin client, because such requests are rare."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        self._worker = worker
        self._cluster_id: str | None = None

    async def cluster_id(self) -> str | None:
        """Return the Kafka cluster's id, or None if the cluster cannot be reached."""
        if self._cluster_id is None:
            try:
                async with self._admin({"name": "worker"}, "describe the cluster", CLUSTER_ID_TIMEOUT_S) as admin:
                    self._cluster_id = (await admin.describe_cluster()).cluster_id
            except HerderError:
                return None
        return self._cluster_id

    async def read(self, name: str, config: Mapping[str, str]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return the committed offsets as pairs of a partition and an offset. Raises HerderError."""
        operation = f"retrieve consumer group offsets for sink connector {name}"
        async with self._admin(config, operation) as admin:
            committed = await admin.list_group_offsets(_group(name, config))
        return [
            ({"kafka_topic": topic, "kafka_partition": partition}, {"kafka_offset": found.offset})
            for (topic, partition), found in sorted(committed.items())
            if found is not None
        ]

    async def alter(self, name: str, config: Mapping[str, str], offsets: OffsetPairs) -> None:
        """Set offsets from `requested_offsets.sink_offsets`.

        The offset None removes a group offset. Raises HerderError.
        """
        group = _group(name, config)
        wanted = {(each["kafka_topic"], each["kafka_partition"]): offset for each, offset in offsets}
        sets = {key: OffsetAndMetadata(each["kafka_offset"]) for key, each in wanted.items() if each is not None}
        removals = [key for key, offset in wanted.items() if offset is None]
        async with self._admin(config, f"alter consumer group offsets for connector {name}") as admin:
            errors: list[ClientError | None] = []
            if sets:
                errors += (await admin.alter_group_offsets(group, sets)).values()
            if removals:
                errors += (await admin.delete_group_offsets(group, removals)).values()
            _raise_first(errors, _zombies("alter", name))

    async def reset(self, name: str, config: Mapping[str, str]) -> None:
        """Delete the consumer group. Raises HerderError."""
        async with self._admin(config, f"reset consumer group offsets for connector {name}") as admin:
            errors = (await admin.delete_groups([_group(name, config)])).values()
            found = [each for each in errors if each is None or each.code is not ErrorCode.GROUP_ID_NOT_FOUND]
            _raise_first(found, _zombies("reset", name))

    @asynccontextmanager
    async def _admin(
        self, config: Mapping[str, str], operation: str, timeout_s: float | None = None
    ) -> AsyncIterator[Admin]:
        """Open an admin client for one request. Raises HerderError if no broker responds or a broker rejects it."""
        timeout_s = REQUEST_TIMEOUT_S if timeout_s is None else timeout_s
        properties = client_configs.admin_properties(self._worker, config, config.get("name", "worker"))
        admin: Admin | None = None
        try:
            async with asyncio.timeout(timeout_s):
                admin = await Admin.open(ClientConfig.from_properties(properties, kind="admin"))
                try:
                    yield admin
                finally:
                    await admin.close()
        except TimeoutError as error:
            last = None if admin is None else admin.cluster.retried_error
            if isinstance(last, BrokerError):
                raise HerderError(f"Failed to {operation} within {timeout_s:g} s: {last}") from error
            raise HerderError(
                f"Failed to {operation}: no response from bootstrap.servers={properties.get('bootstrap.servers')} "
                f"within {timeout_s:g} s"
            ) from error
        except (ClientError, OSError) as error:
            raise HerderError(f"Failed to {operation}: {error}") from error


def _zombies(operation: str, name: str) -> str:
    return (
        f"Failed to {operation} consumer group offsets for connector {name} either because its tasks haven't stopped "
        f"completely yet or the connector was resumed before the request to {operation} its offsets could be "
        "successfully completed. If the connector is in a stopped state, this operation can be safely retried. If it "
        "doesn't eventually succeed, the Connect cluster may need to be restarted to get rid of the zombie sink tasks."
    )


def _raise_first(errors: Collection[ClientError | None], zombies: str) -> None:
    """Raise the first error. If the group still has members, raise HerderError with the text `zombies` instead."""
    for error in errors:
        if isinstance(error, BrokerError) and error.code in _GROUP_HAS_MEMBERS:
            raise HerderError(zombies) from error
        if error is not None:
            raise error


def _group(name: str, config: Mapping[str, str]) -> str:
    return config.get("consumer.override.group.id") or f"connect-{name}"
