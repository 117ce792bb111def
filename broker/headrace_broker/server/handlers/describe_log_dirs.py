"""DescribeLogDirs (35): return the sizes of partitions on disk, and the offline directories.

Version 4 adds the total and usable bytes of each directory.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict

from headrace_broker.log.directory import LogDirectory
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_LOG_DIRS
VERSIONS = (1, 4)
_PARTITIONS_PER_STEP = 1000


async def handle(context: RequestContext, request: DescribeLogDirsRequest, version: int) -> DescribeLogDirsResponse:
    """Describe every log directory and the requested partitions in it.

    Without a topic list, describe all partitions.
    """
    wanted = None if request.topics is None else _requested_partitions(request.topics)
    by_dir: dict[str, dict[str, list[DescribeLogDirsPartition]]] = {
        directory.path: defaultdict(list) for directory in context.logs.directories
    }
    for number, partition in enumerate(list(context.partitions), 1):
        if not number % _PARTITIONS_PER_STEP:
            await asyncio.sleep(0)
        if wanted is not None and partition.index not in wanted.get(partition.topic, ()):
            continue
        path = os.path.dirname(partition.log.directory)
        by_dir[path][partition.topic].append(
            DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)
        )
    return DescribeLogDirsResponse(results=[_result(item, by_dir[item.path]) for item in context.logs.directories])


def _requested_partitions(topics: list[DescribableLogDirTopic]) -> dict[str, set[int]]:
    requested: defaultdict[str, set[int]] = defaultdict(set)
    for item in topics:
        requested[item.topic].update(item.partitions)
    return requested


def _result(directory: LogDirectory, topics: dict[str, list[DescribeLogDirsPartition]]) -> DescribeLogDirsResult:
    path = directory.path
    total_bytes = usable_bytes = -1
    if os.path.isdir(path):
        disk = os.statvfs(path)
        total_bytes, usable_bytes = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    return DescribeLogDirsResult(
        error_code=ErrorCode.NONE if directory.offline_reason is None else ErrorCode.KAFKA_STORAGE_ERROR,
        log_dir=os.path.abspath(path),
        topics=[DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()],
        total_bytes=total_bytes,
        usable_bytes=usable_bytes,
    )
