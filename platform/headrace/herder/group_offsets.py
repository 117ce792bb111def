"""Offsets of sink connectors: the committed offsets of their consumer groups in the Kafka cluster (KIP-875)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.herder.errors import BadRequestError, HerderError
from headrace.runtime import client_configs
from headrace_broker.client.admin import Admin
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ClientError
from headrace_broker.client.offsets import OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode

CLUSTER_ID_TIMEOUT_S = 2.0
Offsets = list[tuple[dict[str, Any], dict[str, Any] | None]]


class GroupOffsets:
    """Reads and alters group offsets; opens an admin client for each request, because such requests are rare."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        self._worker = worker
        self._cluster_id: str | None = None

    async def cluster_id(self) -> str | None:
        """Return the Kafka cluster's id; None if the cluster cannot be reached."""
        if self._cluster_id is None:
            try:
                async with asyncio.timeout(CLUSTER_ID_TIMEOUT_S), _Opened(self._worker, {"name": "worker"}) as admin:
                    self._cluster_id = (await admin.describe_cluster()).cluster_id
            except (ClientError, OSError, TimeoutError):
                return None
        return self._cluster_id

    async def read(self, name: str, config: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the committed offsets in the REST API's format."""
        async with _Opened(self._worker, config) as admin:
            committed = await admin.list_group_offsets(_group(name, config))
        return [
            {
                "partition": {"kafka_topic": topic, "kafka_partition": partition},
                "offset": {"kafka_offset": found.offset},
            }
            for (topic, partition), found in sorted(committed.items())
            if found is not None
        ]

    async def alter(self, name: str, config: Mapping[str, str], offsets: Offsets) -> None:
        """Set the group's offsets; None removes an offset. Raises BadRequestError, HerderError."""
        group = _group(name, config)
        wanted = {_partition(partition): _offset(offset) for partition, offset in offsets}
        sets = {key: OffsetAndMetadata(offset) for key, offset in wanted.items() if offset is not None}
        removals = [key for key, offset in wanted.items() if offset is None]
        try:
            async with _Opened(self._worker, config) as admin:
                if sets:
                    _raise_first(await admin.alter_group_offsets(group, sets))
                if removals:
                    _raise_first(await admin.delete_group_offsets(group, removals))
        except ClientError as error:
            raise HerderError(f"Failed to alter consumer group offsets for connector {name}: {error}") from error

    async def reset(self, name: str, config: Mapping[str, str]) -> None:
        """Delete the consumer group. Raises HerderError."""
        try:
            async with _Opened(self._worker, config) as admin:
                _raise_first(await admin.delete_groups([_group(name, config)]))
        except ClientError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
                return
            raise HerderError(
                f"Failed to reset consumer group offsets for connector {name}: {error}. If its tasks have not stopped "
                "yet, retry later."
            ) from error


class _Opened:
    """An admin client for the time of one request."""

    def __init__(self, worker: Mapping[str, str], config: Mapping[str, str]) -> None:
        self._properties = client_configs.admin_properties(worker, config, config.get("name", "worker"))
        self._admin: Admin | None = None

    async def __aenter__(self) -> Admin:
        self._admin = await Admin.open(ClientConfig.from_properties(self._properties, kind="admin"))
        return self._admin

    async def __aexit__(self, *_exception: object) -> None:
        if self._admin is not None:
            await self._admin.close()


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
