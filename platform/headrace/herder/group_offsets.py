"""Offsets of sink connectors: the committed offsets of their consumer groups in the Kafka cluster (KIP-875)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from headrace.herder.errors import BadRequestError, HerderError
from headrace.runtime import client_configs
from headrace_broker.client.admin import Admin
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import BrokerError, ClientError
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode

CLUSTER_ID_TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 15.0  # limits all requests to brokers that one REST request causes
Offsets = Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]


class GroupOffsets:
    """Reads and alters group offsets; opens an admin client for each request, because such requests are rare."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        self._worker = worker
        self._cluster_id: str | None = None

    async def cluster_id(self) -> str | None:
        """Return the Kafka cluster's id; None if the cluster cannot be reached."""
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

    async def alter(self, name: str, config: Mapping[str, str], offsets: Offsets) -> None:
        """Set the group's offsets; None removes an offset. Raises BadRequestError, HerderError."""
        group = _group(name, config)
        wanted = {_partition(partition): _offset(offset) for partition, offset in offsets}
        sets = {key: OffsetAndMetadata(offset) for key, offset in wanted.items() if offset is not None}
        removals = [key for key, offset in wanted.items() if offset is None]
        async with self._admin(config, f"alter consumer group offsets for connector {name}") as admin:
            if sets:
                _raise_first(await admin.alter_group_offsets(group, sets))
            if removals:
                _raise_first(await admin.delete_group_offsets(group, removals))

    async def reset(self, name: str, config: Mapping[str, str]) -> None:
        """Delete the consumer group. Raises HerderError."""
        async with self._admin(config, f"reset consumer group offsets for connector {name}") as admin:
            try:
                _raise_first(await admin.delete_groups([_group(name, config)]))
            except BrokerError as error:
                if error.code is ErrorCode.NON_EMPTY_GROUP:
                    raise HerderError(
                        f"Failed to reset consumer group offsets for connector {name}: {error}. Its tasks have not "
                        "stopped yet: retry later."
                    ) from error
                if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise

    @asynccontextmanager
    async def _admin(
        self, config: Mapping[str, str], operation: str, timeout_s: float | None = None
    ) -> AsyncIterator[Admin]:
        """Open an admin client for one request. Raises HerderError if no broker responds or a broker rejects it."""
        timeout_s = REQUEST_TIMEOUT_S if timeout_s is None else timeout_s
        properties = client_configs.admin_properties(self._worker, config, config.get("name", "worker"))
        try:
            async with asyncio.timeout(timeout_s):
                admin = await Admin.open(ClientConfig.from_properties(properties, kind="admin"))
                try:
                    yield admin
                finally:
                    await admin.close()
        except TimeoutError as error:
            raise HerderError(
                f"Failed to {operation}: no response from bootstrap.servers={properties.get('bootstrap.servers')} "
                f"within {timeout_s:g} s"
            ) from error
        except (ClientError, OSError) as error:
            raise HerderError(f"Failed to {operation}: {error}") from error


def _raise_first(results: Mapping[Any, ClientError | None]) -> None:
    for error in results.values():
        if error is not None:
            raise error


def _group(name: str, config: Mapping[str, str]) -> str:
    return config.get("consumer.override.group.id") or f"connect-{name}"


def _partition(partition: Mapping[str, Any]) -> tuple[str, int]:
    try:
        return str(partition["kafka_topic"]), int(partition["kafka_partition"])
    except (KeyError, TypeError, ValueError):
        raise BadRequestError(
            f"The partition {dict(partition)} of a sink connector must have the form "
            '{"kafka_topic": …, "kafka_partition": …}'
        ) from None


def _offset(offset: Mapping[str, Any] | None) -> int | None:
    if offset is None:
        return None
    try:
        number = int(offset["kafka_offset"])
    except (KeyError, TypeError, ValueError):
        raise BadRequestError(
            f'The offset {dict(offset)} of a sink connector must have the form {{"kafka_offset": …}}'
        ) from None
    if number < 0:
        raise BadRequestError(f"The offset {number} is negative, but must be at least 0")
    return number
